"""What the trajectory of a run depends on, as one short string."""

from typing import Any

import xxhash

from oarlock.config import RunConfig

# Where a run is kept, how often it is looked at, how its batches are cut, and what computes them: none of it changes
# what is learned.
IRRELEVANT: dict[str, Any] = {
    "data": True,
    "out": True,
    "device": True,
    "log_every": True,
    "checkpoint": True,
    "evaluation": True,
    "batch": {"workers", "max_tokens_per_microbatch"},
    "plan": True,
}


def trajectory_digest(config: RunConfig, data_fingerprint: str) -> str:
    """xxh3 of the part of `config` that the weights depend on, and of the data set's contents (not its place)."""
    relevant = config.model_dump_json(exclude=IRRELEVANT)
    return xxhash.xxh3_128_hexdigest(f"{relevant}\n{data_fingerprint}".encode())
