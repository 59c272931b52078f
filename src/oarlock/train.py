"""One run, from its configuration to a trained model: the wiring of the rooms."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console
from tokenizers import Tokenizer

from oarlock.batches import Batch, evaluation_batches, training_batches
from oarlock.batches.balance import quadratic_length
from oarlock.config import RunConfig
from oarlock.config.folders import fetch
from oarlock.corpus import Dataset, open_dataset
from oarlock.launch import Interrupt, Watchdog
from oarlock.model import (
    MaskedLM,
    build_model,
    load_huggingface,
    sample_predictions,
)
from oarlock.parallel import connect, disconnect, place
from oarlock.recipes.fit import fit_to_data
from oarlock.report import (
    Bystander,
    Recorder,
    RecorderState,
    RunFacts,
    Sample,
    StepRecord,
    outlook,
    process_facts,
    read_facts,
    read_metrics,
    run_facts,
    write_facts,
    write_report,
    write_samples,
)
from oarlock.state import (
    CheckpointWriter,
    claim_run,
    load_trained,
    newest_checkpoint,
    open_run,
    resume,
    take_snapshot,
    trajectory_digest,
)
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
    plan, here = config.plan.resolved(place().world_size), place()
    device = choose_device(config.device, here.local_rank)
    dataset = open_dataset(config.data)
    config = fit_to_data(config, dataset)
    with ExitStack() as stack:
        stack.callback(disconnect)
        groups, first = connect(plan, device), here.rank == 0
        run = stack.enter_context(open_run(config.out, first))
        digest = trajectory_digest(config, dataset.manifest.fingerprint)
        if first:
            claim_run(run.local, config, dataset.manifest.fingerprint, dataset.folder / "tokenizer")
        saver = stack.enter_context(CheckpointWriter(run.local, config.checkpoint.keep, run.publish, first))
        groups.wait()
        model = _first_model(config, run.local).to(device)
        learner = build_learner(model, config.optimizer, config.precision, plan, groups)
        saved = resume(run.local, learner.masters.items(), learner.optimizers, learner.layout)
        learner.layout.write_copies()
        start = RecorderState.model_validate(saved)
        size, before = learner.layout.num_parameters, read_facts(run.local)
        facts = run_facts(config, dataset, size, device, groups, before, start.step)
        if first:
            write_facts(run.local, facts)
            (run.local / "data_report.json").write_bytes((dataset.folder / "report.json").read_bytes())
        mine = groups.share_of_batches(plan)
        held_out = evaluation_batches(
            dataset,
            config.masking,
            seed=config.seed,
            max_tokens_per_microbatch=config.batch.max_tokens_per_microbatch,
            max_sequences=config.evaluation.max_sequences,
            **mine,
        )
        recorder: Recorder | Bystander = _recorder(config, run.local, facts, start, console) if first else Bystander()
        stack.enter_context(recorder)
        stopping = "saving after this step, then stopping; again to stop at once"
        interrupt = stack.enter_context(Interrupt(lambda name: recorder.say(f"{name}: {stopping}")))
        batches = training_batches(
            dataset,
            config.batch,
            config.masking,
            seed=config.seed,
            first_step=start.step + 1,
            last_step=config.steps,
            quadratic=quadratic_length(config.model),
            device=device,
            **mine,
        )
        recorder.say(outlook(config, dataset, facts))
        watchdog = stack.enter_context(Watchdog(plan.patience if here.world_size > 1 else None))
        began = monotonic()
        step = start.step
        for batch in stack.enter_context(closing(batches)):
            step = batch.step
            share = learning_rate_share(step, config.steps, config.schedule)
            result = train_step(learner, batch, share)
            rate = share * config.optimizer.learning_rate
            recorder.record(StepRecord(step, result.loss, result.grad_norm, rate, batch.num_tokens, batch.imbalance))
            if batch.num_targets == 0:
                recorder.say(f"step {step}: no token of the batch can be masked, so the weights stay as they were")
            stop = groups.anybody(interrupt.requested)
            last = step == config.steps
            if step % config.evaluation.every == 0 or last:
                with recorder.pause():
                    loss, accuracy = evaluate(model, held_out, learner)
                    recorder.evaluation(step, loss.item(), accuracy.item())
            if (step % config.checkpoint.every == 0 or last or stop) and learner.layout.part.kept:
                saver.save(
                    take_snapshot(
                        step,
                        learner.masters.items(),
                        learner.optimizers,
                        progress=recorder.state().model_dump(),
                        seed=config.seed,
                        config_digest=digest,
                        layout=learner.layout,
                    )
                )
            if stop:
                break
            watchdog.alive()
        saver.wait()
        if learner.layout.part.kept and saver.last_saved != step > start.step:
            raise RuntimeError(f"step {step} was not saved in {run.local}; make room and run the same command again")
        finished = step == config.steps
        processes = process_facts(groups, device, monotonic() - began)
        if first:
            ended = {"status": "finished" if finished else "stopped", "processes": processes}
            write_facts(run.local, facts.model_copy(update=ended))
            _write_samples(run.local, dataset, held_out)
            write_report(run.local)
            run.publish()
    _, evaluations = read_metrics(run.local / "metrics.jsonl")
    newest = evaluations[-1] if evaluations else None
    return RunResult(run.local, step, finished, newest and newest["eval_loss"], newest and newest["eval_accuracy"])


def _recorder(config: RunConfig, run: Path, facts: RunFacts, start: RecorderState, console: Console | None) -> Recorder:
    return Recorder(
        run,
        steps=config.steps,
        log_every=config.log_every,
        flops_per_token=facts.flops_per_token or 0.0,
        gemm_rate=facts.gemm_rate or 1.0,
        unigram_baseline=facts.unigram_baseline,
        start=start,
        console=console,
    )


def _write_samples(run: Path, dataset: Dataset, held_out: Sequence[Batch]) -> None:
    """Predictions of the model as it was saved: what is in training may lie over many processes."""
    tokenizer = Tokenizer.from_file(str(dataset.folder / "tokenizer" / "tokenizer.json"))
    model = load_trained(str(run)).model
    samples = sample_predictions(model, held_out, tokenizer, dataset.manifest.special.mask, 6)
    write_samples(run, [Sample.model_validate(sample) for sample in samples])


def _first_model(config: RunConfig, run: Path) -> MaskedLM:
    """The model as the run begins with it; a checkpoint's weights come on top."""
    if config.init_from is None or newest_checkpoint(run) is not None:
        return build_model(config.model, config.seed)
    return load_huggingface(fetch(config.init_from), config=config.model, seed=config.seed)[0]
