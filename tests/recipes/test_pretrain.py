"""Recipes: whole runs by name."""

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from oarlock.config import BatchConfig, RunConfig
from oarlock.model import build_model
from oarlock.recipes import RECIPES, recipe

VOCABULARIES = {"bert": 30522, "roberta": 50265, "modernbert": 50368}
# In millions: Turc et al. (2019), table 1; Devlin et al. (2019); Liu et al. (2019); Warner et al. (2024).
PUBLISHED = {
    "bert-tiny": (4.4, 4.4),
    "bert-mini": (11.3, 11.3),
    "bert-small": (29.1, 29.1),
    "bert-base": (110, 110),
    "bert-large": (335, 340),
    "roberta-base": (125, 125),
    "roberta-large": (355, 355),
    "modernbert-base": (149, 149),
    "modernbert-large": (395, 395),
}


def test_there_are_five_sizes_of_three_architectures() -> None:
    assert len(RECIPES) == len(set(RECIPES)) == 15
    assert {name.split("-")[0] for name in RECIPES} == VOCABULARIES.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_run(name: str) -> None:
    config = recipe(name, data="DATA", out="RUN", steps=100)
    assert RunConfig.model_validate(config.model_dump()) == config
    assert (config.data, config.out, config.steps) == ("DATA", "RUN", 100)
    assert config.model.kind == name.split("-")[0]
    assert config.model.vocab_size == 0  # taken from the data


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_the_published_number_of_parameters(name: str) -> None:
    model = recipe(name, data="", out="", steps=1).model
    with FakeTensorMode():  # nothing is allocated
        built = build_model(model.model_copy(update={"vocab_size": VOCABULARIES[model.kind]}))
    millions = sum(parameter.numel() for parameter in built.parameters()) / 1e6
    low, high = PUBLISHED[name]
    assert 0.98 * low <= millions <= 1.02 * high


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_larger_models_are_wider_and_learn_more_slowly(kind: str) -> None:
    runs = [recipe(f"{kind}-{size}", data="", out="", steps=1) for size in ("tiny", "mini", "small", "base", "large")]
    widths = [run.model.hidden_size for run in runs]
    rates = [run.optimizer.learning_rate for run in runs]
    assert widths == sorted(set(widths))
    assert rates == sorted(set(rates), reverse=True)


def test_other_fields_take_the_place_of_the_recipes() -> None:
    config = recipe("bert-mini", data="", out="", steps=9, seed=7, batch=BatchConfig(tokens=4096))
    assert (config.seed, config.batch.tokens) == (7, 4096)
    assert config.optimizer == recipe("bert-mini", data="", out="", steps=9).optimizer


def test_an_unknown_recipe_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'bert-huge'; there are bert-tiny, .*modernbert-large"):
        recipe("bert-huge", data="", out="", steps=9)
