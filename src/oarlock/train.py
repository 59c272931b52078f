"""One run, from its configuration to a trained model: the wiring of the rooms."""

from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console
from tokenizers import Tokenizer

from oarlock.batches import evaluation_batches, training_batches
from oarlock.batches.balance import quadratic_length
from oarlock.config import RunConfig
from oarlock.config.folders import fetch
from oarlock.corpus import Dataset, open_dataset
from oarlock.launch import Interrupt
from oarlock.model import (
    MaskedLM,
    build_model,
    flops_per_token,
    load_huggingface,
    sample_predictions,
)
from oarlock.ops import OPERATORS, gemm_rate, serving_form
from oarlock.parallel import DTYPES
from oarlock.recipes.fit import fit_to_data
from oarlock.report import (
    Recorder,
    RecorderState,
    RunFacts,
    Sample,
    StepRecord,
    read_facts,
    read_metrics,
    write_facts,
    write_report,
    write_samples,
)
from oarlock.state import CheckpointWriter, claim_run, newest_checkpoint, open_run, resume, take_snapshot
from oarlock.step import build_learner, choose_device, evaluate, learning_rate_share, train_step


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    """Local folder of the run."""
    step: int
    """Steps done."""
    finished: bool
    """Whether those are all; a stopped run goes on when it is started again."""
    eval_loss: float | None
    """Of the last evaluation, in nats a target."""
    eval_accuracy: float | None
    """Of the last evaluation, as a share."""


def pretrain(config: RunConfig, console: Console | None = None) -> RunResult:
    """Train, or go on with the run that the folder holds; returns when all steps are done, or after Ctrl-C.

    Raises:
        ValueError: the configuration does not fit the data set, the folder or its checkpoint; the message says how.
    """
    device = choose_device(config.device)
    dataset = open_dataset(config.data)
    config = fit_to_data(config, dataset)
    with ExitStack() as stack:
        run = stack.enter_context(open_run(config.out))
        digest = claim_run(run.local, config, dataset.manifest.fingerprint, dataset.folder / "tokenizer")
        learner = build_learner(_first_model(config, run.local).to(device), config.optimizer, config.precision)
        saved = resume(run.local, learner.masters.items(), learner.optimizers)
        learner.layout.write_copies()
        start = RecorderState.model_validate(saved)
        facts = _facts(config, dataset, learner.model, device, read_facts(run.local), start.step)
        write_facts(run.local, facts)
        (run.local / "data_report.json").write_bytes((dataset.folder / "report.json").read_bytes())
        held_out = evaluation_batches(
            dataset,
            config.masking,
            seed=config.seed,
            max_tokens_per_microbatch=config.batch.max_tokens_per_microbatch,
            max_sequences=config.evaluation.max_sequences,
        )
        saver = stack.enter_context(CheckpointWriter(run.local, config.checkpoint.keep, after=run.publish))
        recorder = stack.enter_context(
            Recorder(
                run.local,
                steps=config.steps,
                log_every=config.log_every,
                flops_per_token=facts.flops_per_token or 0.0,
                gemm_rate=facts.gemm_rate or 1.0,
                unigram_baseline=facts.unigram_baseline,
                start=start,
                console=console,
            )
        )
        interrupt = stack.enter_context(
            Interrupt(
                lambda name: recorder.say(f"{name}: saving after this step, then stopping; again to stop at once")
            )
        )
        batches = training_batches(
            dataset,
            config.batch,
            config.masking,
            seed=config.seed,
            first_step=start.step + 1,
            last_step=config.steps,
            quadratic=quadratic_length(config.model),
            device=device,
        )
        recorder.say(_outlook(config, dataset, facts))
        step = start.step
        for batch in stack.enter_context(closing(batches)):
            step = batch.step
            share = learning_rate_share(step, config.steps, config.schedule)
            result = train_step(learner, batch, share)
            rate = share * config.optimizer.learning_rate
            recorder.record(StepRecord(step, result.loss, result.grad_norm, rate, batch.num_tokens, batch.imbalance))
            if batch.num_targets == 0:
                recorder.say(f"step {step}: no token of the batch can be masked, so the weights stay as they were")
            last = step == config.steps
            if step % config.evaluation.every == 0 or last:
                with recorder.pause():
                    loss, accuracy = evaluate(learner.model, held_out, learner.layout)
                    recorder.evaluation(step, loss.item(), accuracy.item())
            if step % config.checkpoint.every == 0 or last or interrupt.requested:
                saver.save(
                    take_snapshot(
                        step,
                        learner.masters.items(),
                        learner.optimizers,
                        progress=recorder.state().model_dump(),
                        seed=config.seed,
                        config_digest=digest,
                    )
                )
            if interrupt.requested:
                break
        saver.wait()
        if saver.last_saved != step > start.step:
            raise RuntimeError(f"step {step} was not saved in {run.local}; make room and run the same command again")
        finished = step == config.steps
        write_facts(run.local, facts.model_copy(update={"status": "finished" if finished else "stopped"}))
        tokenizer = Tokenizer.from_file(str(dataset.folder / "tokenizer" / "tokenizer.json"))
        samples = sample_predictions(learner.model, held_out, tokenizer, dataset.manifest.special.mask, 6)
        write_samples(run.local, [Sample.model_validate(sample) for sample in samples])
        write_report(run.local)
        run.publish()
    _, evaluations = read_metrics(run.local / "metrics.jsonl")
    newest = evaluations[-1] if evaluations else None
    return RunResult(run.local, step, finished, newest and newest["eval_loss"], newest and newest["eval_accuracy"])


def _first_model(config: RunConfig, run: Path) -> MaskedLM:
    """The model as the run begins with it; a checkpoint's weights come on top."""
    if config.init_from is None or newest_checkpoint(run) is not None:
        return build_model(config.model, config.seed)
    return load_huggingface(fetch(config.init_from), config=config.model, seed=config.seed)[0]


def _outlook(config: RunConfig, dataset: Dataset, facts: RunFacts) -> str:
    """What is about to be done, in a line."""
    split = dataset.manifest.train
    tokens = config.steps * (config.batch.tokens or config.batch.sequences * split.tokens / split.sequences)
    return (
        f"{config.model.kind} of {facts.num_parameters:,} parameters on {facts.device} in {config.precision}: "
        f"{config.steps:,} steps, {tokens / split.tokens:.1f} epochs of {split.tokens:,} tokens"
    )


def _facts(
    config: RunConfig, dataset: Dataset, model: MaskedLM, device: torch.device, before: RunFacts, step: int
) -> RunFacts:
    lengths = dataset.train.lengths[:1_000_000].astype(float)
    flops = flops_per_token(config.model, lengths.mean(), (lengths**2).mean(), config.masking.rate)
    return RunFacts(
        oarlock_version=version("oarlock"),
        torch_version=torch.__version__,
        device=torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        gemm_rate=gemm_rate(device, DTYPES[config.precision]),
        flops_per_token=flops,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        unigram_baseline=dataset.manifest.unigram_baseline,
        steps=config.steps,
        status="running",
        operators={name: serving_form(name, config.model.ops.get(name, "auto"), device) for name in OPERATORS},
        started=before.started or datetime.now(UTC).isoformat(timespec="seconds"),
        resumed_at=(*before.resumed_at, step) if 0 < step < config.steps else before.resumed_at,
    )
