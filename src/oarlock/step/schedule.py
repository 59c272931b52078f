"""The learning rate as a pure function of the optimizer step."""

import math
from collections.abc import Callable

from oarlock.config import ScheduleConfig

# What is left of the way from the peak to final_share, as a function of the share of the decay still ahead, in (0, 1].
SHAPES: dict[str, Callable[[float, ScheduleConfig], float]] = {
    "linear": lambda ahead, config: ahead,
    "cosine": lambda ahead, config: math.sin(math.pi / 2 * ahead) ** 2,
    "polynomial": lambda ahead, config: ahead**config.power,
    "wsd": lambda ahead, config: ahead,
    "constant": lambda ahead, config: 1.0,
}


def learning_rate_share(step: int, steps: int, config: ScheduleConfig) -> float:
    """Learning rate at optimizer step `step` (from 1) of a run of `steps`, as a share of the peak.

    With w = `num_warmup_steps`, the share

    - rises linearly through the warm-up: 1/w at step 1 and exactly 1 at step w (with w = 0, exactly 1 at step 1);
    - then falls so that it *would* reach `final_share` at step `steps` + 1. The last step therefore still has a
      learning rate above `final_share`, and none is wasted at 0. For `linear` and `final_share` 0 it is
      1 / (steps - max(w, 1) + 1);
    - `wsd` stays at 1 until the last round(`decay_share` * steps) steps, and falls linearly through those.
    """
    assert 1 <= step <= steps
    warmup = num_warmup_steps(steps, config)
    if step <= warmup:
        return step / warmup
    start = max(warmup, 1)
    if config.kind == "wsd":
        start = max(start, steps - round(config.decay_share * steps))
    ahead = min(1.0, (steps + 1 - step) / (steps + 1 - start))
    return config.final_share + (1.0 - config.final_share) * SHAPES[config.kind](ahead, config)


def num_warmup_steps(steps: int, config: ScheduleConfig) -> int:
    """Steps of linear warm-up in a run of `steps`: always fewer than all of them."""
    if config.warmup_steps is not None:
        return config.warmup_steps
    return min(round(config.warmup_share * steps), steps - 1)
