"""The phases of `bench/gpu.sh`, each a process: `python -m bench.gpu_phases PHASE [ARGUMENT...] --to FILE`.

A phase writes what it knows so far after each part of its work, so that a phase that is stopped leaves the rest. No
figure is written of code that was not found equal to its reference before.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

MICROSECONDS = 1e6
TERA = 1e12


class Work:
    """Where a phase runs, how large, and where its findings go."""

    def __init__(self, path: Path, dry: bool) -> None:
        import torch

        self.dry, self._path = dry, path
        self.device = torch.device("cpu" if dry else "cuda")
        self.found: dict[str, Any] = {}

    def note(self, **values: Any) -> None:
        """Add findings and write them all."""
        self.found |= values
        self._path.write_text(json.dumps(self.found))

    def wait(self) -> None:
        """Until the device has nothing left to do."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], times: int, rounds: int = 3) -> float:
        """Of one call: the median of `rounds` timings of `times` calls each, after one round that is not counted."""
        found = []
        for _ in range(rounds + 1):
            self.wait()
            start = time.perf_counter()
            for _ in range(times):
                call()
            self.wait()
            found.append((time.perf_counter() - start) / times)
        return statistics.median(found[1:])

    def gemm_rate(self) -> float:
        """FLOP/s of a bf16 matrix product that fills the device."""
        import torch

        from oarlock.ops import gemm_rate

        return gemm_rate(self.device, torch.bfloat16, size=128 if self.dry else 8192, repeats=3)


def machine(work: Work) -> None:
    """What the GPU is, and how fast it multiplies and copies."""
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    work.note(**versions)
    if not work.dry:
        properties = torch.cuda.get_device_properties(0)
        work.note(gpu=properties.name, memory_gb=round(properties.total_memory / 1e9, 1))
    words = torch.empty(1 << (16 if work.dry else 30), dtype=torch.uint8, device=work.device)
    copy = torch.empty_like(words)
    rate = 2 * words.numel() / work.seconds(lambda: copy.copy_(words), 5)
    work.note(gemm_tflops=round(work.gemm_rate() / TERA, 1), copy_gb_per_second=round(rate / 1e9))


def check(work: Work, name: str, dtype: str) -> None:
    """The CUDA form of an operator on every case: equal to the reference, and the same bits twice."""
    import torch

    from oarlock.ops.cases import OPERATOR_CASES
    from oarlock.ops.compare import check_equal, results
    from oarlock.ops.library import serving_form

    operator = OPERATOR_CASES[name]
    function = partial(operator.function, form="auto")
    kind = getattr(torch, dtype)
    wrong, passed = {}, 0
    work.note(form=serving_form(name, "auto", torch.device("cuda")), equal=0)
    with interpreted(work):
        for case in operator.cases[:2] if work.dry else operator.cases:
            try:
                check_equal(operator, case, function, work.device, kind)
                first, second = (results(operator, function, case.inputs(work.device, kind)) for _ in range(2))
                if not all(torch.equal(first[k].nan_to_num(7.0), second[k].nan_to_num(7.0)) for k in first):
                    raise RuntimeError(f"{case.name}: the second time not the same bits")
                passed += 1
            except Exception as error:
                wrong[case.name] = str(error)[:600]
            work.note(equal=passed, wrong=wrong)
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(operator.cases)} cases are wrong")


def steps(work: Work) -> None:
    """Two models: the kernels' loss and gradient norm are the reference's, and in 50 steps no operation makes the host
    wait, data loader included.
    """

    from oarlock.batches import training_batches
    from oarlock.batches.lengths import wikipedia_lengths
    from oarlock.batches.synthetic import synthetic_dataset
    from oarlock.config import BatchConfig, MaskingConfig, ModelConfig, OptimizerConfig
    from oarlock.model import build_model
    from oarlock.ops import OPERATORS
    from oarlock.step import build_learner, train_step

    lengths = wikipedia_lengths(60 if work.dry else 4000, 0)
    size = 64 if work.dry else 256
    for kind, dropout, optimizer in (("bert", 0.1, "lamb"), ("modernbert", 0.0, "adamw")):
        config = ModelConfig(
            kind=kind, vocab_size=1000, hidden_size=size, num_layers=4, num_heads=size // 64, dropout=dropout,
            attention_dropout=dropout, intermediate_size=3 * size,
        )  # fmt: skip
        dataset = synthetic_dataset(lengths.clip(2, 512), [2], config.vocab_size, 0)
        batch = BatchConfig(sequences=4 if work.dry else 64)
        recipe = OptimizerConfig(name=optimizer, learning_rate=1e-3 if optimizer == "adamw" else 1e-2)
        first_step = {}
        for form in ("auto", "reference"):
            plain = config.model_copy(update={"ops": dict.fromkeys(OPERATORS, form)})
            learner = build_learner(build_model(plain).to(work.device), recipe, "fp32")
            batches = training_batches(
                dataset, batch, MaskingConfig(), seed=0, first_step=1, last_step=1, device=work.device
            )
            result = next(train_step(learner, step, 1.0) for step in batches)
            first_step[form] = (result.loss.item(), result.grad_norm.item())
        work.note(**{f"{kind}, fp32: loss and gradient norm": first_step})
        for ours, theirs in zip(first_step["auto"], first_step["reference"], strict=True):
            if abs(ours - theirs) > 1e-4 * abs(theirs):
                raise SystemExit(f"{kind}: {first_step} are not equal to within 1e-4")

        count = 3 if work.dry else 50
        learner = build_learner(build_model(config).to(work.device), recipe, "bf16")
        batches = training_batches(
            dataset, batch, MaskingConfig(), seed=0, first_step=1, last_step=count + 2, device=work.device
        )
        losses = [train_step(learner, next(batches), 1.0).loss for _ in range(2)]  # kernels are built
        with no_host_waits(work):
            losses += [train_step(learner, step, 1.0).loss for step in batches]
        values = [loss.item() for loss in losses]
        work.note(**{f"{kind}, bf16": {"steps without a wait": len(values) - 2, "losses": [values[0], values[-1]]}})
        if not all(value < values[0] + 1 for value in values):
            raise SystemExit(f"{kind} diverges: {values}")


def train(work: Work) -> None:
    """BERT-large at the Wikipedia lengths, by LAMB in bf16, with dropout: whole steps beside the GPU's GEMM rate."""
    import torch

    from oarlock.config import OptimizerConfig
    from oarlock.model import build_model
    from oarlock.step import build_learner, train_step
    from oarlock.step.measure import batch_flops_per_token, step_of, time_shares, wikipedia_batch

    config = large_model(work)
    optimizer = OptimizerConfig(name="lamb", learning_rate=4e-4, beta2=0.999)
    learner = build_learner(build_model(config).to(work.device), optimizer, "bf16")
    rates = [work.gemm_rate()]
    results: dict[str, Any] = {}
    for num_sequences in (2, 4) if work.dry else (56, 112, 224):
        batch = wikipedia_batch(config, num_sequences, 0)
        step = step_of(batch, work.device)
        if work.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = work.seconds(partial(train_step, learner, step, 1.0), 1 if work.dry else 1120 // num_sequences // 2)
        rates.append(work.gemm_rate())
        flops = batch_flops_per_token(config, batch) * batch.num_tokens / seconds
        results[f"{num_sequences} sequences"] = {
            "useful_tokens": batch.num_tokens,
            "step_seconds": seconds,
            "useful_tokens_per_second": round(batch.num_tokens / seconds),
            "sequences_per_second": round(num_sequences / seconds, 1),
            "tflops": round(flops / TERA, 1),
            "gemm_share": round(flops / statistics.median(rates), 4),
        }
        if work.device.type == "cuda":
            results[f"{num_sequences} sequences"]["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        work.note(model="bert-large", gemm_tflops=[round(r / TERA, 1) for r in rates], results=results)
    shares = time_shares(lambda: train_step(learner, step, 1.0).loss.item(), work.device)
    work.note(shares={part: round(share, 4) for part, share in shares.items()})


def peers(work: Work) -> None:
    """BERT-large of `transformers` on the same batch, padded, with torch's fused AdamW: eager, then compiled."""
    import torch

    try:
        import transformers
    except ImportError:
        work.note(transformers="not importable here")
        return
    from bench.peers.work import padded

    from oarlock.model.huggingface.bert import to_config
    from oarlock.step.measure import wikipedia_batch

    config = large_model(work)
    num_sequences = 2 if work.dry else 56
    batch = wikipedia_batch(config, num_sequences, 0)
    rows = {name: values.to(work.device) for name, values in padded(batch).items()}
    settings = {key: value for key, value in to_config(config).items() if key != "model_type"}
    with torch.device(work.device):
        model = transformers.AutoModelForMaskedLM.from_config(
            transformers.BertConfig(**settings), attn_implementation="sdpa"
        ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    results: dict[str, Any] = {}
    work.note(transformers=transformers.__version__, model="bert-large", sequences=num_sequences)

    def step(forward: Callable[..., Any]) -> None:
        with torch.autocast(work.device.type, dtype=torch.bfloat16):
            loss = forward(**rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for name, forward in {"sdpa": model, "sdpa, torch.compile": torch.compile(model)}.items():
        seconds = work.seconds(partial(step, forward), 1 if work.dry else 4)
        results[name] = {
            "step_seconds": seconds,
            "useful_tokens_per_second": round(batch.num_tokens / seconds),
            "sequences_per_second": round(num_sequences / seconds, 1),
        }
        work.note(results=results, padded_tokens=rows["input_ids"].numel(), useful_tokens=batch.num_tokens)


def attention(work: Work) -> None:
    """Attention of a BERT-large layer: our kernels, with and without dropout, beside torch's; and other block sizes."""
    import torch

    from oarlock.batches.lengths import wikipedia_lengths
    from oarlock.ops.attention import cuda, flash
    from oarlock.ops.case import bounds, keys, random

    lengths = tuple(wikipedia_lengths(56, 0).tolist()) if not work.dry else (20, 9)
    heads, size, longest = (2, 16, 20) if work.dry else (16, 64, max(lengths))
    qkv = random(sum(lengths), 3, heads, size, seed=0, device=work.device, dtype=torch.bfloat16)
    grad = random(sum(lengths), heads, size, seed=1, device=work.device, dtype=torch.bfloat16)
    cuts, keys_T, scale = bounds(lengths, work.device), keys(lengths, work.device), size**-0.5
    flops = 4 * heads * size * sum(length**2 for length in lengths)
    times = 1 if work.dry else 10

    def figures(seconds: tuple[float, float], window: int) -> dict[str, float]:
        both = {"forward_us": round(MICROSECONDS * seconds[0], 1), "backward_us": round(MICROSECONDS * seconds[1], 1)}
        if window < 0:
            both |= {"forward_tflops": round(flops / seconds[0] / TERA, 1)}
            both |= {"backward_tflops": round(2.5 * flops / seconds[1] / TERA, 1)}
        return both

    def ours(window: int, dropout: float) -> tuple[float, float]:
        geometry = (cuts, longest, window, scale, keys_T, dropout)
        out, logsumexp = cuda.forward(qkv, *geometry)
        return (
            work.seconds(lambda: cuda.forward(qkv, *geometry), times),
            work.seconds(lambda: cuda.backward(grad, qkv, out, logsumexp, *geometry), times),
        )

    def torchs(window: int) -> tuple[float, float]:
        geometry = (cuts, longest, window, scale)
        out, logsumexp = flash.forward(qkv, *geometry)
        expected, expected_log = cuda.forward(qkv, *geometry[:3], scale, keys_T, 0.0)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(logsumexp, expected_log, rtol=1e-2, atol=1e-2)
        grad_qkv = flash.backward(grad, qkv, out, logsumexp, *geometry)
        torch.testing.assert_close(
            grad_qkv, cuda.backward(grad, qkv, out, logsumexp, *geometry, keys_T, 0.0), rtol=5e-2, atol=5e-2
        )
        return (
            work.seconds(lambda: flash.forward(qkv, *geometry), times),
            work.seconds(lambda: flash.backward(grad, qkv, out, logsumexp, *geometry), times),
        )

    results: dict[str, Any] = {}
    with interpreted(work):
        for name, window, dropout in (("dropout 0.1", -1, 0.1), ("no dropout", -1, 0.0), ("window 64", 64, 0.0)):
            results[f"triton, {name}"] = figures(ours(window, dropout), window)
            work.note(tokens=sum(lengths), results=results)
        for name, window in (("no dropout", -1), ("window 64", 64)):
            try:
                results[f"torch flash, {name}"] = figures(torchs(window), window)
            except Exception as error:
                results[f"torch flash, {name}"] = str(error)[:300]
            work.note(results=results)
        sweep: dict[str, Any] = {}
        kept = cuda.FORWARD, cuda.BACKWARD
        for blocks in (
            (64, 64, 4, 2),
            (64, 64, 4, 3),
            (128, 64, 8, 2),
            (128, 128, 8, 2),
            (128, 32, 4, 3),
            (64, 128, 4, 2),
        ):
            for name, dropout in (("dropout 0.1", 0.1), ("no dropout", 0.0)):
                cuda.FORWARD = cuda.BACKWARD = blocks
                try:
                    sweep[f"{blocks}, {name}"] = figures(ours(-1, dropout), -1)
                except Exception as error:
                    sweep[f"{blocks}, {name}"] = str(error)[:300]
                work.note(blocks_now=kept, other_blocks=sweep)


def operators(work: Work) -> None:
    """Every operator's benchmark cases, in bf16, beside plain torch."""
    import torch

    from oarlock.ops import measure

    measure.ROUNDS, measure.SECONDS = 3, 0.01
    cases = measure.benchmark_cases(())
    table = []
    for name, case in cases[:2] if work.dry else cases:
        try:
            table += [figures._asdict() for figures in measure.measure_case(name, case, work.device, torch.bfloat16)]
        except Exception as error:
            table.append({"operator": name, "case": case.name, "error": str(error)[:300]})
        work.note(table=table)


def large_model(work: Work) -> Any:
    """BERT-large; in a dry run a BERT of two narrow layers."""
    from bench.peers.work import shape

    config = shape("bert-large")
    small = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128, "vocab_size": 500}
    return config.model_copy(update=small) if work.dry else config


@contextmanager
def no_host_waits(work: Work) -> Iterator[None]:
    """An operation for which the host waits for the GPU is an error."""
    import torch

    if work.device.type == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def interpreted(work: Work) -> Any:
    """In a dry run the CUDA forms, by Triton's interpreter, in place of the CPU's."""
    if not work.dry:
        return nullcontext()
    from oarlock.testing.triton import cuda_forms_on_cpu

    return cuda_forms_on_cpu()


PHASES: dict[str, Callable[..., None]] = {
    phase.__name__: phase for phase in (machine, check, steps, train, peers, attention, operators)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, so torch's imports are inside functions
    PHASES[options.phase](Work(options.to, options.dry), *options.arguments)


if __name__ == "__main__":
    main()
