"""Which settings may change between a stop and a resume without a word."""

import pytest

from oarlock.config import RunConfig
from oarlock.state import trajectory_digest


def config(**changes: object) -> RunConfig:
    value: dict[str, object] = {"data": "DATA", "out": "RUN", "steps": 100, "model": {}, "batch": {"sequences": 8}}
    for name, change in changes.items():
        section, _, field = name.partition("__")
        value[section] = {**value.get(section, {}), field: change} if field else change  # type: ignore[dict-item]
    return RunConfig.model_validate(value)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "ELSEWHERE"},
        {"out": "ELSEWHERE"},
        {"device": "cpu"},
        {"log_every": 3},
        {"checkpoint__every": 7},
        {"evaluation__every": 7},
        {"batch__workers": 3},
        {"batch__max_tokens_per_microbatch": 1024},
    ],
)
def test_what_changes_nothing_that_is_learned(changes: dict[str, object]) -> None:
    assert trajectory_digest(config(**changes), "f") == trajectory_digest(config(), "f")


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 200},
        {"seed": 1},
        {"precision": "fp32"},
        {"model__num_layers": 3},
        {"batch__sequences": 9},
        {"masking__rate": 0.3},
        {"optimizer__learning_rate": 1e-4},
        {"schedule__kind": "cosine"},
    ],
)
def test_what_the_weights_depend_on(changes: dict[str, object]) -> None:
    assert trajectory_digest(config(**changes), "f") != trajectory_digest(config(), "f")


def test_the_data_count_by_content() -> None:
    assert trajectory_digest(config(), "f") != trajectory_digest(config(), "g")
