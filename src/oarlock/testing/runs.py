"""Run folders that look like real ones, for tests of the report."""

import json
import math
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from oarlock.config import BatchConfig, ModelConfig, RunConfig
from oarlock.corpus.data_report import DataReport
from oarlock.report.metrics import EvaluationRow, MetricsFile, TrainingRow, truncate_after

Curve = NDArray[np.float64]

UNIGRAM_BASELINE = 6.469
FIRST_LOSS = math.log(4096)
TOKENS_A_STEP = 1024
TOKENS_PER_SECOND = 12_400.0
FLOPS_PER_TOKEN = 8.1e6
GEMM_RATE = 390e9

SAMPLES = (
    (
        "The people of the [MASK] States have every reason to be [MASK] for the prosperity which they enjoy , and the "
        "[MASK] recommends to the attention of [MASK] the condition of the public lands .",
        (
            ("United", (("United", 0.97), ("several", 0.01), ("other", 0.005), ("two", 0.002), ("Southern", 0.001))),
            (
                "thankful",
                (("proud", 0.22), ("grateful", 0.18), ("thankful", 0.11), ("satisfied", 0.07), ("content", 0.05)),
            ),
            (
                "Executive",
                (("President", 0.31), ("Secretary", 0.29), ("Department", 0.12), ("Executive", 0.09), ("report", 0.04)),
            ),
            ("Congress", (("Congress", 0.88), ("the", 0.03), ("Government", 0.02), ("both", 0.01), ("Senate", 0.01))),
        ),
    ),
    (
        "Our relations with all foreign [MASK] remain peaceful and [MASK] .",
        (
            (
                "powers",
                (("nations", 0.41), ("powers", 0.38), ("countries", 0.09), ("governments", 0.05), ("states", 0.01)),
            ),
            (
                "friendly",
                (("friendly", 0.52), ("cordial", 0.11), ("harmonious", 0.04), (".", 0.03), ("amicable", 0.03)),
            ),
        ),
    ),
)


_DATA_REPORT: dict[str, object] = {
    "reused": False,
    "input": {"files": 3, "bytes_on_disk": 12_345_678, "empty_files": 1},
    "tokenizer": {
        "source": "trained on the input",
        "model": "WordPiece",
        "normalizer": "BertNormalizer (lowercase, strip accents)",
        "pre_tokenizer": "BertPreTokenizer",
        "vocab_size": 4096,
        "special_tokens": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
        "trained_on_bytes": 12_345_678,
    },
    "max_length": 64,
    "documents": {
        "rule": "a line is a document",
        "count": 21_480,
        "empty": 3,
        "skipped": 0,
        "mean_tokens": 126.4,
        "median_tokens": 104.0,
        "longest_tokens": 1_912,
        "mean_lines": 1.0,
        "lines": 21_480,
        "blank_lines": 3,
        "characters": 12_301_200,
    },
    "train": {"documents": 21_265, "sequences": 52_304, "tokens": 2_792_633, "longest": 64},
    "validation": {"documents": 215, "sequences": 541, "tokens": 28_116, "longest": 64},
    "tokens": {
        "produced": 2_715_072,
        "placed": 2_715_059,
        "dropped": 13,
        "dropped_sequences": 11,
        "framing": 105_690,
    },
    "lengths": [
        {"low": 8 * part + 1, "high": 8 * part + 8, "sequences": sequences, "tokens": sequences * (8 * part + 5)}
        for part, sequences in enumerate((1210, 2344, 2651, 2702, 2518, 2466, 2402, 36_552))
    ],
    "padding": {"to_max_length": 1.199, "to_longest": 1.199},
    "duplicates": {"lines": 0.123, "documents": 0.123, "exact": True},
    "unknown": {
        "count": 112,
        "share": 112 / 2_715_072,
        "files": [
            {"path": "speeches/1790.txt", "tokens": 4_210, "unknown": 96, "share": 96 / 4_210},
            {"path": "speeches/1941.txt", "tokens": 902_331, "unknown": 16, "share": 16 / 902_331},
        ],
    },
    "normalizer": {
        "removed": 214,
        "replaced": 0,
        "accents_stripped": 1_877,
        "lowercased": 401_220,
        "characters": [
            {
                "character": "\u200d",
                "code_point": "U+200D",
                "name": "ZERO WIDTH JOINER",
                "change": "removed",
                "becomes": "",
                "count": 214,
                "before": "the \u0995\u09cd\u200d\u09b7 in",
                "after": "the \u0995\u09cd\u09b7 in",
            },
            {
                "character": "\u00e9",
                "code_point": "U+00E9",
                "name": "LATIN SMALL LETTER E WITH ACUTE",
                "change": "accent stripped",
                "becomes": "e",
                "count": 1_877,
                "before": "the protégé of",
                "after": "the protege of",
            },
            {
                "character": "T",
                "code_point": "U+0054",
                "name": "LATIN CAPITAL LETTER T",
                "change": "lowercased",
                "becomes": "t",
                "count": 51_220,
                "before": "",
                "after": "",
            },
        ],
    },
    "undecodable": {
        "count": 2,
        "files": [{"path": "speeches/1823.txt", "count": 2, "first_line": 40, "first_offset": 20_133}],
    },
    "special_tokens_in_text": {"[SEP]": 3},
    "special_tokens_parsed": False,
    "unigram_baseline": UNIGRAM_BASELINE,
    "warnings": [
        "12.3 % of lines were seen before: duplicated text is learned by heart; remove it before you train.",
        "speeches/1790.txt: 2.3 % of its tokens are unknown to the tokenizer.",
    ],
}


def fake_data_report(**changes: object) -> DataReport:
    """A report of a small English corpus with a little of everything that a report can say."""
    return DataReport.model_validate({**_DATA_REPORT, **changes})


def fake_run(
    folder: Path,
    *,
    steps: int = 2000,
    log_every: int = 10,
    evaluate_every: int = 250,
    until: int | None = None,
    status: str = "finished",
    resumed_at: tuple[int, ...] = (),
    plateau: bool = False,
) -> Path:
    """Fill `folder` as `oarlock train` would, and return it.

    `until` is the last step made (by default all). `evaluate_every=0` never evaluates. `plateau` stays on the unigram
    baseline. Equal arguments give equal files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = steps if until is None else until
    random = np.random.default_rng(0)
    loss = _loss_curve(np.arange(1, until + 1) / steps, plateau)
    truncate_after(folder / "metrics.jsonl", 0)
    with MetricsFile(folder / "metrics.jsonl") as file:
        for step in range(log_every, until + 1, log_every):
            file.write(_training_row(step, steps, float(loss[step - 1]), random))
            if evaluate_every and step % evaluate_every == 0:
                file.write(
                    EvaluationRow(
                        step=step,
                        eval_loss=float(loss[step - 1]) + 0.05,
                        eval_accuracy=max(0.03, 0.208 * (FIRST_LOSS - float(loss[step - 1])) / (FIRST_LOSS - 4.8)),
                    )
                )
    config = RunConfig(
        data="data/sotu",
        out=str(folder),
        steps=steps,
        model=ModelConfig(
            kind="modernbert", vocab_size=4096, hidden_size=128, num_layers=2, max_length=64, num_heads=2
        ),
        batch=BatchConfig(tokens=TOKENS_A_STEP),
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    (folder / "run.json").write_text(json.dumps(_facts(steps, status, resumed_at)))
    (folder / "data_report.json").write_text(fake_data_report().model_dump_json())
    (folder / "samples.json").write_text(json.dumps(_samples()))
    return folder


def _loss_curve(progress: Curve, plateau: bool) -> Curve:
    """From a uniform guess down to the unigram plateau, a rest there, and on to what context gives."""
    to_plateau: Curve = UNIGRAM_BASELINE - 0.03 + (FIRST_LOSS - UNIGRAM_BASELINE) * np.exp(-progress * 60)
    if plateau:
        return to_plateau
    below: Curve = 1.75 * (1 - np.exp(-3 * np.clip(progress - 0.12, 0, None))) / (1 - np.exp(-3 * 0.88))
    return to_plateau - below


def _training_row(step: int, steps: int, loss: float, random: np.random.Generator) -> TrainingRow:
    rate = TOKENS_PER_SECOND * (1 - 0.6 * math.exp(-step / 20)) * (1 + 0.02 * random.standard_normal())
    warmup = 0.06 * steps
    return TrainingRow(
        step=step,
        loss=loss + 0.04 * random.standard_normal(),
        learning_rate=2e-3 * (step / warmup if step < warmup else (steps - step) / (steps - warmup)),
        grad_norm=float(np.exp(0.25 * random.standard_normal() + 2 * math.exp(-step / 100) - 0.3)),
        useful_tokens=TOKENS_A_STEP * step,
        useful_tokens_per_second=rate,
        gemm_share=rate * FLOPS_PER_TOKEN / GEMM_RATE,
        imbalance=1.0 + abs(0.002 * random.standard_normal()),
        seconds=TOKENS_A_STEP * step / TOKENS_PER_SECOND,
    )


def _facts(steps: int, status: str, resumed_at: tuple[int, ...]) -> dict[str, object]:
    return {
        "oarlock_version": "0.1.0",
        "torch_version": "2.13.0",
        "device": "cpu",
        "gemm_rate": GEMM_RATE,
        "flops_per_token": FLOPS_PER_TOKEN,
        "num_parameters": 1_234_560,
        "unigram_baseline": UNIGRAM_BASELINE,
        "steps": steps,
        "status": status,
        "operators": {"attention": "cpu", "geglu": "cpu", "cross_entropy": "cpu"},
        "started": "2026-01-05 10:20:30",
        "resumed_at": list(resumed_at),
    }


def _samples() -> list[dict[str, object]]:
    return [
        {
            "text": text,
            "targets": [
                {
                    "truth": truth,
                    "predictions": [{"token": token, "probability": probability} for token, probability in predictions],
                }
                for truth, predictions in targets
            ],
        }
        for text, targets in SAMPLES
    ]
