"""What a run came to, in a few figures and sentences."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from oarlock.report import formats
from oarlock.report.html.run import Run

PLATEAU_NATS = 0.15
"""Nearer than this to the unigram baseline, a model has learned little but token frequencies."""
IMBALANCE_WORTH_A_WORD = 1.1
KIND_NAMES = {"bert": "BERT", "roberta": "RoBERTa", "modernbert": "ModernBERT"}


@dataclass(frozen=True)
class Card:
    """One figure."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """One sentence on the run."""

    level: str
    """`good`, `info` or `warning`."""
    text: str


def subtitle(run: Run) -> str:
    """What was trained, in a line."""
    model, optimizer, facts = _part(run, "model"), _part(run, "optimizer"), run.facts
    kind = str(model.get("kind", ""))
    shape = (
        f"{model['num_layers']} layers x {model['hidden_size']}" if {"num_layers", "hidden_size"} <= set(model) else ""
    )
    parts = [
        KIND_NAMES.get(kind, kind),
        shape,
        "" if facts.num_parameters is None else f"{formats.count(facts.num_parameters)} parameters",
        str(optimizer.get("name", "")),
        str(run.config.get("precision", "")),
        facts.device or "",
    ]
    return ", ".join(part for part in parts if part)


def cards(run: Run) -> list[Card]:
    """The figures a reader looks for first; those that the run does not have are left out."""
    result = []
    baseline = run.facts.unigram_baseline
    if run.training:
        last = run.training[-1]
        result.append(Card("Training loss", formats.loss(last["loss"]), f"at step {last['step']:,}"))
    if run.evaluations:
        evaluation = run.evaluations[-1]
        at = f"at step {evaluation['step']:,}"
        result.append(Card("Evaluation loss", formats.loss(evaluation["eval_loss"]), at))
        result.append(Card("Masked accuracy", formats.percent(evaluation["eval_accuracy"]), f"held-out text, {at}"))
    under = nats_under_baseline(run)
    if under is not None and baseline is not None:
        result.append(Card("Under the unigram baseline", f"{under:.2f} nats", f"baseline {formats.loss(baseline)}"))
    if run.training:
        last = run.training[-1]
        rate = last["useful_tokens"] / last["seconds"] if last["seconds"] else math.nan
        result += [
            Card(
                "Useful tokens/s",
                formats.count(_median([row["useful_tokens_per_second"] for row in run.training])),
                "median",
            ),
            Card("GEMM share", formats.percent(_median([row["gemm_share"] for row in run.training])), "median"),
            Card("Time", formats.duration(last["seconds"]), f"{formats.count(rate)} tokens/s over all of it"),
            Card("Useful tokens", formats.count(last["useful_tokens"]), _steps_note(run)),
        ]
    return result


def configuration(run: Run) -> list[tuple[str, str]]:
    """What the run was made with, by name; config.yaml has the rest."""
    facts = run.facts
    rate = None if facts.gemm_rate is None else f"{facts.gemm_rate / 1e9:,.0f} GFLOP/s"
    work = None if facts.flops_per_token is None else f"{facts.flops_per_token / 1e6:,.1f} MFLOP"
    listed = {
        "Started": facts.started,
        "Resumed at step": ", ".join(f"{step:,}" for step in facts.resumed_at) or None,
        "Device": facts.device,
        "GEMM rate of the machine": rate,
        "Parameters": None if facts.num_parameters is None else f"{facts.num_parameters:,}",
        "Work per token": work,
        "Oarlock": facts.oarlock_version,
        "PyTorch": facts.torch_version,
        **{f"Operator {name}": form for name, form in facts.operators.items()},
    }
    return [(name, value) for name, value in listed.items() if value is not None]


def processes(run: Run) -> list[tuple[str, ...]]:
    """A row for each of several processes, of text."""
    return [
        (
            str(rank),
            formats.duration(process.busy_seconds),
            formats.percent(process.busy_seconds / max(process.seconds, 1e-9)),
            f"{process.peak_memory / 1e9:.2f} GB",
            f"{process.bytes_sent / 1e9:.2f} GB",
        )
        for rank, process in enumerate(run.facts.processes)
    ]


def process_imbalance(run: Run) -> float:
    """Largest over mean time that a process was busy."""
    busy = [process.busy_seconds for process in run.facts.processes]
    return max(busy) / statistics.fmean(busy)


def nats_under_baseline(run: Run) -> float | None:
    """How far the newest evaluation (or, without one, training) loss lies under the unigram baseline."""
    losses = [row["eval_loss"] for row in run.evaluations] or [row["loss"] for row in run.training]
    if run.facts.unigram_baseline is None or not losses or not math.isfinite(losses[-1]):
        return None
    return run.facts.unigram_baseline - losses[-1]


def verdicts(run: Run) -> list[Verdict]:
    """What a colleague who looks at the curves would say."""
    return [verdict for verdict in (_status(run), _not_finite(run), _learning(run), _balance(run)) if verdict]


def _status(run: Run) -> Verdict | None:
    made = f"{run.training[-1]['step']:,}" if run.training else "0"
    at = f"step {made}" if run.facts.steps is None else f"step {made} of {run.facts.steps:,}"
    if run.facts.status == "running":
        return Verdict("info", f"At {at}: this run goes on, or was killed. oarlock train RUN/config.yaml resumes it.")
    if run.facts.status == "stopped":
        return Verdict("info", f"Stopped at {at}. oarlock train RUN/config.yaml resumes it.")
    return Verdict("info", "No step has been logged yet.") if not run.training else None


def _not_finite(run: Run) -> Verdict | None:
    bad = [row["step"] for row in run.training if not math.isfinite(row["loss"])]
    if not bad:
        return None
    text = (
        f"The loss was not finite in {len(bad):,} of {len(run.training):,} rows, first at step {bad[0]:,}. "
        "Lower the learning rate, lengthen the warm-up, or look at the gradient norm before that step."
    )
    return Verdict("warning", text)


def _learning(run: Run) -> Verdict | None:
    under = nats_under_baseline(run)
    if under is None:
        return None
    if under >= PLATEAU_NATS:
        return Verdict("good", f"The model uses context: its loss is {under:.2f} nats under the unigram baseline.")
    if under < -PLATEAU_NATS and len(run.training) > 1 and run.training[-1]["loss"] > run.training[0]["loss"]:
        text = (
            f"The run has diverged: its loss is {-under:.2f} nats above the loss of a model that only knows how often "
            "each token occurs, and rose. Lower the learning rate, clip the gradient, or lengthen the warm-up."
        )
        return Verdict("warning", text)
    where = f"{under:.2f} nats under" if under >= 0 else f"{-under:.2f} nats above"
    text = (
        f"Not yet past the unigram plateau: the loss is {where} the loss of a model that only knows how often each "
        "token occurs. Every masked-language model pauses there; with learned positions it takes far more steps than "
        "with rotary ones. If it lasts, train longer, raise the learning rate, or try ModernBERT."
    )
    return Verdict("warning", text)


def _balance(run: Run) -> Verdict | None:
    imbalance = _median([row["imbalance"] for row in run.training])
    if not imbalance > IMBALANCE_WORTH_A_WORD:
        return None
    text = f"The fullest micro-batch holds {imbalance:.2f} times the mean number of tokens"
    return Verdict("info", f"{text}; a larger batch balances better.")


def _steps_note(run: Run) -> str:
    steps = run.training[-1]["step"]
    return f"{steps:,} steps of {formats.count(run.training[-1]['useful_tokens'] / steps)}" if steps else ""


def _median(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan


def _part(run: Run, name: str) -> dict[str, Any]:
    part = run.config.get(name)
    return part if isinstance(part, dict) else {}
