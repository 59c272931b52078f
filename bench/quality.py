"""Equal quality in less time: held-out accuracy against training time, ours beside a plain loop on `transformers`.

Both train the same model from the same weights by the same recipe: batches of as many sequences, masks drawn anew each
time at the same rates, AdamW with the same settings, the same learning rate, which is constant after a warm-up so that
it does not depend on how long a run is. The order of the data differs, and so do the masks.

- transformers: bf16 autocast, sdpa attention, fused AdamW, its own masking collator, padded to the longest sequence.
  A batch is trained on in parts: a copy of the logits at every position of 64 sequences of 512 tokens has 1 GB at
  8,192 words and 4 GB at 30,522, and parts have less padding.
- transformers-sparse: the same with ModernBERT's switch `sparse_prediction`, off by default, that makes logits at the
  targets only.
- oarlock: packed, bf16 with fp32 masters, as the command line trains.

Both are evaluated on the same held-out sequences with the same masks, each by its own model. The clock runs while a
batch is made and trained on, and stands still in an evaluation. Each evaluation is written to the file at once.

    oarlock prepare CORPUS/*.txt --out DATA --vocab-size 8192
    python -m bench.quality --who oarlock --data DATA --minutes 8 --out oarlock.json
    python -m bench.quality --who transformers --data DATA --minutes 40 --out transformers.json
    python -m bench.quality --plot oarlock.json transformers.json --out docs/quality.svg
"""

import argparse
import os

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # before torch is loaded, as the `oarlock` command does, for both

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from bench.peers.huggingface import load
from bench.peers.work import padded, write_folder
from bench.quality_chart import draw
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.data import DataLoader

from oarlock.batches import evaluation_batches, quadratic_length, training_batches
from oarlock.batches.batch import Batch
from oarlock.config import OptimizerConfig, RunConfig, ScheduleConfig
from oarlock.corpus import Dataset, open_dataset
from oarlock.launch import prepare_process
from oarlock.model import MaskedLM, build_model
from oarlock.recipes import recipe
from oarlock.recipes.fit import fit_to_data
from oarlock.report import machine_facts
from oarlock.step import (
    build_learner,
    build_optimizer,
    evaluate,
    learning_rate_share,
    limit_gradients,
    set_learning_rate,
    train_step,
)

WITHOUT_END = 10**9
"""Steps of a run whose length its recipe must not know."""
PART = 16
"""Sequences that `transformers` trains on at once."""
EVALUATED = 1024
"""Held-out sequences."""


class Contestant(NamedTuple):
    """One way of training."""

    steps: Iterator[int]
    """Each item is one optimizer step, done when it comes: its useful tokens."""
    evaluate: Callable[[], tuple[float, float]]
    """Loss in nats a target and accuracy on the held-out sequences."""


def main() -> None:
    options = parse_options()
    if options.plot:
        curves = [json.loads(path.read_text()) for path in options.plot]
        options.out.write_text(draw(curves))
        return
    dataset = open_dataset(options.data)
    config = fit_to_data(
        recipe(
            options.model,
            data=options.data,
            out="",
            steps=WITHOUT_END,
            batch={"sequences": options.sequences},
            optimizer=OptimizerConfig(learning_rate=options.learning_rate),
            schedule=ScheduleConfig(kind="constant", warmup_steps=options.warmup_steps),
        ),
        dataset,
    )
    held_out = evaluation_batches(
        dataset, config.masking, seed=config.seed, max_tokens_per_microbatch=8192, max_sequences=EVALUATED
    )
    if options.who == "oarlock":
        prepare_process()  # as its command does; the peer's memory would grow to several times as much
    contestant = CONTESTANTS[options.who](config, dataset, held_out)
    about = {
        "who": options.who,
        "model": options.model,
        "sequences": options.sequences,
        "learning_rate": options.learning_rate,
        "warmup_steps": options.warmup_steps,
        "seed": config.seed,
        "data": dataset.manifest.fingerprint,
        "evaluated_targets": held_out[0].num_targets,
        "unigram_baseline": dataset.manifest.unigram_baseline,
        "machine": machine_facts(torch.device("cpu")),
        "transformers": transformers.__version__,
    }
    follow(contestant, about, 60 * options.minutes, 60 * options.evaluate_minutes, options.out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--who", choices=CONTESTANTS)
    parser.add_argument("--data", help="folder that `oarlock prepare` wrote")
    parser.add_argument("--minutes", type=float, help="of training")
    parser.add_argument("--evaluate-minutes", type=float, default=1.0, help="of training between evaluations")
    parser.add_argument("--model", default="modernbert-mini")
    parser.add_argument("--sequences", type=int, default=64, help="in a batch")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument("--plot", type=Path, nargs="+", metavar="CURVE", help="draw the curves of these files")
    parser.add_argument("--out", type=Path, required=True, help="file for the curve (JSON) or the picture (SVG)")
    options = parser.parse_args()
    if not options.plot and not (options.who and options.data and options.minutes):
        parser.error("give --who, --data and --minutes, or --plot")
    return options


def follow(contestant: Contestant, about: dict[str, Any], seconds: float, every: float, out: Path) -> None:
    """Train for so many seconds, and write the curve after each evaluation."""
    console = Console()
    points: list[dict[str, float]] = []
    spent, step, tokens = 0.0, 0, 0

    def evaluate_now() -> None:
        loss, accuracy = contestant.evaluate()
        points.append({"seconds": spent, "step": step, "tokens": tokens, "eval_loss": loss, "eval_accuracy": accuracy})
        out.write_text(json.dumps(about | {"curve": points}, indent=1) + "\n")
        console.print(f"{spent / 60:6.2f} min  step {step:6,}  {tokens:11,} tokens  loss {loss:.4f}  {accuracy:.2%}")

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(about["who"], total=seconds, rate="")
        evaluate_now()
        while spent < seconds:
            start = time.perf_counter()
            tokens += next(contestant.steps)
            spent += time.perf_counter() - start
            step += 1
            progress.update(bar, completed=spent, rate=f"step {step:,}, {tokens / spent:,.0f} tokens/s")
            if spent >= every * len(points) or spent >= seconds:
                evaluate_now()


def oarlock(config: RunConfig, dataset: Dataset, held_out: list[Batch]) -> Contestant:
    learner = build_learner(build_model(config.model, config.seed), config.optimizer, config.precision)

    def steps() -> Iterator[int]:
        batches = training_batches(
            dataset,
            config.batch,
            config.masking,
            seed=config.seed,
            first_step=1,
            last_step=config.steps,
            quadratic=quadratic_length(config.model),
        )
        for batch in batches:
            train_step(learner, batch, learning_rate_share(batch.step, config.steps, config.schedule))
            yield batch.num_tokens

    def result() -> tuple[float, float]:
        loss, accuracy = evaluate(learner.model, held_out)
        return loss.item(), accuracy.item()

    return Contestant(steps(), result)


def plain(config: RunConfig, dataset: Dataset, held_out: list[Batch], sparse: bool = False) -> Contestant:
    """`transformers`; `sparse` makes logits at the targets only."""
    model = same_model(build_model(config.model, config.seed), config.model.pad_id).train()
    model.sparse_prediction = sparse
    optimizers = build_optimizer(model.named_parameters(), config.optimizer)  # torch's AdamW
    loader = DataLoader(
        samples(dataset),
        batch_size=config.batch.sequences,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(config.seed),
        collate_fn=list,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(dataset.folder / "tokenizer")
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=config.masking.rate)

    def steps() -> Iterator[int]:
        torch.manual_seed(config.seed)  # of the masks
        endless = (batch for _ in count() for batch in loader)
        for step, batch in enumerate(endless, start=1):
            parts = [collate(batch[i : i + PART]) for i in range(0, len(batch), PART)]
            num_targets = sum(int((part["labels"] >= 0).sum()) for part in parts)
            for part in parts:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(**part, num_items_in_batch=num_targets).loss
                loss.backward()
            limit_gradients(optimizers, config.optimizer.clip_norm)
            set_learning_rate(optimizers, learning_rate_share(step, config.steps, config.schedule))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            yield sum(int(part["attention_mask"].sum()) for part in parts)

    return Contestant(steps(), lambda: evaluate_plain(model, held_out, config.model.pad_id))


@torch.no_grad()
def evaluate_plain(model: torch.nn.Module, held_out: list[Batch], pad_id: int) -> tuple[float, float]:
    """Loss and accuracy at the same targets; logits are made at the targets only, as nothing else is read."""
    model.eval()
    loss, hits, num_targets = 0.0, 0, 0
    for batch in held_out:
        rows = padded(batch, pad_id)
        labels_M = rows["labels"][rows["labels"] >= 0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden_SLD = model.model(rows["input_ids"], attention_mask=rows["attention_mask"]).last_hidden_state
            logits_MV = model.decoder(model.head(hidden_SLD[rows["labels"] >= 0])).float()
        loss += torch.nn.functional.cross_entropy(logits_MV, labels_M, reduction="sum").item()
        hits += int((logits_MV.argmax(dim=-1) == labels_M).sum())
        num_targets += len(labels_M)
    model.train()
    return loss / num_targets, hits / num_targets


def same_model(model: MaskedLM, pad_id: int) -> torch.nn.Module:
    """The model of `transformers` with the same shape, dropout and weights."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, Path(folder), pad_id)
        return load(Path(folder))


def samples(dataset: Dataset) -> list[dict[str, Any]]:
    """The training sequences as `transformers` wants them: tokenized, with a mask of their special tokens."""
    split = dataset.train
    ids = np.asarray(split.ids, dtype=np.int64)
    special = np.isin(ids, dataset.manifest.special.all).astype(np.int64)
    return [
        {"input_ids": ids[start:end], "special_tokens_mask": special[start:end]}
        for start, end in zip(split.offsets[:-1].tolist(), split.offsets[1:].tolist(), strict=True)
    ]


CONTESTANTS: dict[str, Callable[[RunConfig, Dataset, list[Batch]], Contestant]] = {
    "oarlock": oarlock,
    "transformers": plain,
    "transformers-sparse": partial(plain, sparse=True),
}

if __name__ == "__main__":
    main()
