"""What is known of a run before its first step."""

from datetime import UTC, datetime
from importlib.metadata import version

import torch

from oarlock.config import RunConfig
from oarlock.corpus import Dataset
from oarlock.model import flops_per_token
from oarlock.ops import OPERATORS, gemm_rate, serving_form
from oarlock.parallel import DTYPES, Groups
from oarlock.report.facts import RunFacts


def run_facts(
    config: RunConfig,
    dataset: Dataset,
    num_parameters: int,
    device: torch.device,
    groups: Groups,
    before: RunFacts,
    step: int,
) -> RunFacts:
    """What `run.json` tells. All processes measure their GEMM rate at once, and the sum counts."""
    lengths = dataset.train.lengths[:1_000_000].astype(float)
    cpu = f"CPU, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    flops = flops_per_token(config.model, lengths.mean(), (lengths**2).mean(), config.masking.rate)
    return RunFacts(
        oarlock_version=version("oarlock"),
        torch_version=torch.__version__,
        device=f"{groups.world.size} x {name}" if groups.world.size > 1 else name,
        gemm_rate=groups.sum(gemm_rate(device, DTYPES[config.precision])),
        flops_per_token=flops,
        num_parameters=num_parameters,
        unigram_baseline=dataset.manifest.unigram_baseline,
        steps=config.steps,
        status="running",
        operators={name: serving_form(name, config.model.ops.get(name, "auto"), device) for name in OPERATORS},
        started=before.started or datetime.now(UTC).isoformat(timespec="seconds"),
        resumed_at=(*before.resumed_at, step) if 0 < step < config.steps else before.resumed_at,
    )


def outlook(config: RunConfig, dataset: Dataset, facts: RunFacts) -> str:
    """What is about to be done, in a line."""
    split = dataset.manifest.train
    tokens = config.steps * (config.batch.tokens or config.batch.sequences * split.tokens / split.sequences)
    return (
        f"{config.model.kind} of {facts.num_parameters:,} parameters on {facts.device} in {config.precision}: "
        f"{config.steps:,} steps, {tokens / split.tokens:.1f} epochs of {split.tokens:,} tokens"
    )
