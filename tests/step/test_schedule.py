"""C06: the learning rate is a function of the optimizer step only, and no step is wasted at 0."""

import math
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.config import ScheduleConfig
from oarlock.step.schedule import learning_rate_share, num_warmup_steps

KINDS = get_args(ScheduleConfig.model_fields["kind"].annotation)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, ScheduleConfig]:
    steps = draw(st.one_of(st.integers(1, 60), st.integers(1, 10**7)))
    config = ScheduleConfig(
        kind=draw(st.sampled_from(KINDS)),
        warmup_steps=draw(st.one_of(st.none(), st.integers(0, steps - 1))),
        warmup_share=draw(st.floats(0.0, 0.999)),
        power=draw(st.floats(0.1, 8.0)),
        decay_share=draw(st.floats(0.001, 1.0)),
        final_share=draw(st.one_of(st.just(0.0), st.floats(0.0, 1.0))),
    )
    return steps, config


def steps_to_look_at(steps: int, warmup: int) -> list[int]:
    """All of a short run; both ends, the end of the warm-up and a sample of a long one."""
    if steps <= 200:
        return list(range(1, steps + 1))
    ends = {1, 2, warmup - 1, warmup, warmup + 1, warmup + 2, steps - 2, steps - 1, steps}
    return sorted(step for step in ends | set(range(1, steps, steps // 100)) if 1 <= step <= steps)


@settings(derandomize=True, deadline=None)
@given(runs())
def test_c06_shares_of_any_schedule(run: tuple[int, ScheduleConfig]) -> None:
    steps, config = run
    warmup = num_warmup_steps(steps, config)
    assert 0 <= warmup < steps

    looked_at = steps_to_look_at(steps, warmup)
    shares = {step: learning_rate_share(step, steps, config) for step in looked_at}
    assert all(0.0 < share <= 1.0 for share in shares.values())
    assert learning_rate_share(max(warmup, 1), steps, config) == 1.0
    for before, after in pairwise(looked_at):
        if after <= warmup:
            assert shares[before] < shares[after]
        elif before >= warmup:
            assert shares[before] >= shares[after] >= config.final_share


@pytest.mark.parametrize("kind", KINDS)
def test_c06_first_last_warmup_and_last_step(kind: str) -> None:
    """Steps 1, 10 (the end of the warm-up) and 110: the decay has 100 steps, the 101st of which would be at 0."""
    config = ScheduleConfig(kind=kind, warmup_steps=10, power=2.0, decay_share=0.5)  # type: ignore[arg-type]
    last = {
        "linear": 1 / 101,
        "cosine": 0.5 * (1 + math.cos(math.pi * 100 / 101)),
        "polynomial": (1 / 101) ** 2,
        "wsd": 1 / 56,  # round(0.5 * 110) = 55 steps of decay
        "constant": 1.0,
    }
    assert learning_rate_share(1, 110, config) == 0.1
    assert learning_rate_share(10, 110, config) == 1.0
    assert learning_rate_share(110, 110, config) == pytest.approx(last[kind], rel=1e-9)


def test_c06_without_warmup_the_first_step_is_the_peak() -> None:
    config = ScheduleConfig(kind="linear", warmup_steps=0)
    assert [learning_rate_share(step, 4, config) for step in (1, 2, 3, 4)] == [1.0, 0.75, 0.5, 0.25]


def test_wsd_stays_then_falls() -> None:
    config = ScheduleConfig(kind="wsd", warmup_steps=2, decay_share=0.3)
    shares = [learning_rate_share(step, 10, config) for step in range(1, 11)]
    assert shares == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("kind", ["linear", "cosine", "polynomial", "wsd"])
def test_decays_towards_the_final_share(kind: str) -> None:
    config = ScheduleConfig(kind=kind, final_share=0.1)  # type: ignore[arg-type]
    assert 0.1 < learning_rate_share(1000, 1000, config) < 0.11


def test_halfway_values() -> None:
    """Halfway down 9 steps of warm-up-free decay from step 1: x = 1/2 at step 6 of 10."""
    half = {"linear": 0.5, "cosine": 0.5, "polynomial": 0.5**3, "constant": 1.0}
    for kind, expected in half.items():
        config = ScheduleConfig(kind=kind, warmup_steps=0, power=3.0)  # type: ignore[arg-type]
        assert learning_rate_share(6, 10, config) == pytest.approx(expected, rel=1e-12)


def test_warmup_share_is_rounded_and_leaves_a_step() -> None:
    assert num_warmup_steps(2000, ScheduleConfig()) == 120
    assert num_warmup_steps(1, ScheduleConfig(warmup_share=0.9)) == 0
    assert num_warmup_steps(3, ScheduleConfig(warmup_share=0.9)) == 2
    assert num_warmup_steps(100, ScheduleConfig(warmup_steps=7)) == 7
