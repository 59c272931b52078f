"""Training speed beside `transformers`: the same model, lengths, batch and optimizer, interleaved in one run.

Ours: packed, bf16 compute with fp32 masters. Theirs: the model of `transformers` in a plain loop under bf16 autocast,
padded to the longest sequence, sdpa attention, fused AdamW. Both clip the gradient norm, both have dropout as the
model's configuration says, both start from the same weights; the losses of both are compared first (without dropout).

The committed results were run with GOMP_SPINCOUNT=5000 for both, which is what the `oarlock` command sets.

    python bench/train.py --models bert-mini bert-base modernbert-base --out bench/results/train-MACHINE.json
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from oarlock.batches import Batch, GlobalBatch
from oarlock.config import OptimizerConfig
from oarlock.model import MaskedLM, build_model
from oarlock.model.huggingface.weights import KINDS, to_folder
from oarlock.ops import gemm_rate
from oarlock.recipes import recipe
from oarlock.step import build_learner, train_step
from oarlock.step.measure import batch_flops_per_token, wikipedia_batch

VOCABULARIES = {"bert": 30522, "roberta": 50265, "modernbert": 50368}
PAD = 0
LOSS_TOLERANCE = 0.02  # of two bf16 forward passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["bert-mini", "bert-base", "modernbert-base"])
    parser.add_argument("--sequences", type=int, default=32, help="in a batch")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved timings of each")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    results = [compare(name, options.sequences, options.repeats) for name in options.models]
    report = {
        "machine": {"processor": processor(), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "transformers": transformers.__version__,
        "sequences": options.sequences,
        "results": results,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def compare(name: str, num_sequences: int, repeats: int) -> dict[str, float | str]:
    config = recipe(name, data="", out="", steps=1).model
    config = config.model_copy(update={"vocab_size": VOCABULARIES[config.kind]})
    model = build_model(config)
    batch = wikipedia_batch(config, num_sequences, seed=0)
    theirs = same_model(model)
    rows, labels = padded(batch)
    check_equal(model, theirs, batch, rows, labels)

    learner = build_learner(model, OptimizerConfig(learning_rate=1e-5), "bf16")
    step = GlobalBatch(1, 0, (batch,), num_sequences, batch.num_tokens, batch.num_targets, 1.0)
    ours_step = lambda: train_step(learner, step, 1.0).loss.item()  # noqa: E731
    theirs_step = plain_loop(theirs, rows, labels)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for repeat in range(repeats + 1):
        for who, function in (("ours", ours_step), ("theirs", theirs_step)):
            start = time.perf_counter()
            function()
            if repeat:  # the first builds kernels and optimizer state
                seconds[who].append(time.perf_counter() - start)
    ours, other = (batch.num_tokens / statistics.median(seconds[who]) for who in ("ours", "theirs"))
    machine = gemm_rate(torch.device("cpu"), torch.bfloat16)
    result = {
        "model": name,
        "useful_tokens": batch.num_tokens,
        "padded_tokens": rows.numel(),
        "ours_useful_tokens_per_second": round(ours, 1),
        "transformers_useful_tokens_per_second": round(other, 1),
        "ratio": round(ours / other, 2),
        "gemm_gflops": round(machine / 1e9),
        "ours_gemm_share": round(ours * batch_flops_per_token(config, batch) / machine, 3),
    }
    print(json.dumps(result), flush=True)
    return result


def same_model(model: MaskedLM) -> torch.nn.Module:
    """The model of `transformers` with the same shape, dropout and weights."""
    kind = KINDS[model.config.kind]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"architectures": [kind.ARCHITECTURE], "pad_token_id": PAD, **kind.to_config(model.config)}
        Path(folder, "config.json").write_text(json.dumps(settings))
        save_file(to_folder(model), Path(folder, "model.safetensors"), metadata={"format": "pt"})
        return transformers.AutoModelForMaskedLM.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        )


def padded(batch: Batch) -> tuple[Tensor, Tensor]:
    """Ids and labels [S, longest]; padding is -1 in the ids until they are fed."""
    labels_T = torch.full_like(batch.ids_T, -100)
    labels_T[batch.target_positions_M] = batch.target_ids_M
    lengths = batch.cu_seqlens_S1.diff().tolist()
    rows = torch.nn.utils.rnn.pad_sequence(batch.ids_T.split(lengths), batch_first=True, padding_value=-1)
    labels = torch.nn.utils.rnn.pad_sequence(labels_T.split(lengths), batch_first=True, padding_value=-100)
    return rows, labels


def plain_loop(model: torch.nn.Module, rows: Tensor, labels: Tensor) -> Callable[[], float]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    inputs = {"input_ids": rows.clamp(min=PAD), "attention_mask": (rows >= 0).long(), "labels": labels}

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def check_equal(model: MaskedLM, theirs: torch.nn.Module, batch: Batch, rows: Tensor, labels: Tensor) -> None:
    """Both compute the same loss: a figure is printed only for equal work."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = theirs.eval()(
            input_ids=rows.clamp(min=PAD), attention_mask=(rows >= 0).long(), labels=labels
        ).loss.item()
    with torch.no_grad():
        ours = model.eval()(batch).item()
    model.train()
    if not abs(ours - expected) <= LOSS_TOLERANCE:
        raise SystemExit(f"the two models disagree: loss {ours:.4f} and {expected:.4f}")


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    amx = "amx_bf16" in (info.read_text() if info.exists() else "")
    return f"{found or platform.processor()}{' with AMX' if amx else ''}"


if __name__ == "__main__":
    main()
