"""A configuration meets its data set: what is taken from it, and what is refused at the start."""

import json
from pathlib import Path
from typing import Any

import pytest

from oarlock.config import RunConfig
from oarlock.corpus import Dataset
from oarlock.recipes import recipe
from oarlock.recipes.fit import fit_to_data
from oarlock.testing.datasets import toy_dataset

SHAPE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 100}


def run(name: str = "bert-tiny", model: dict[str, Any] | None = None, **fields: Any) -> RunConfig:
    config = recipe(name, data="DATA", out="RUN", steps=10)
    sections = config.model_dump() | fields
    return RunConfig(**sections | {"model": {**sections["model"], **(model or {})}})


def padding_with(pad: int, dataset: Dataset) -> Dataset:
    special = dataset.manifest.special.model_copy(update={"pad": pad})
    manifest = dataset.manifest.model_copy(update={"special": special})
    return Dataset(dataset.folder, manifest, dataset.train, dataset.validation)


def weights(folder: Path, **settings: Any) -> Path:
    """A Hugging Face folder, as far as fitting reads it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 64, **SHAPE, **settings}))
    return folder


def test_the_data_set_gives_vocabulary_and_padding() -> None:
    fitted = fit_to_data(run("roberta-tiny"), padding_with(1, toy_dataset(20, vocab_size=64)))
    assert (fitted.model.vocab_size, fitted.model.pad_id) == (64, 1)
    assert fitted == run("roberta-tiny", {"vocab_size": 64, "pad_id": 1})


def test_fitting_twice_changes_nothing_more() -> None:
    dataset = toy_dataset(20)
    once = fit_to_data(run(), dataset)
    assert fit_to_data(once, dataset) == once


@pytest.mark.parametrize("split", ("train", "validation"))
def test_c32_a_sequence_longer_than_the_model_reads_is_refused_with_both_numbers(split: str) -> None:
    dataset = toy_dataset(200, longest=60)
    counts = getattr(dataset.manifest, split).model_copy(update={"longest": 513})
    manifest = dataset.manifest.model_copy(update={split: counts})
    longer = Dataset(dataset.folder, manifest, dataset.train, dataset.validation)
    with pytest.raises(
        ValueError,
        match=r"longest sequence of DATA has 513 tokens, but model.max_length is 512; raise model.max_length, "
        r"or prepare the data with --max-length 512",
    ):
        fit_to_data(run(), longer)
    assert fit_to_data(run(model={"max_length": 513}), longer).model.max_length == 513


def test_c32_also_for_a_model_that_gives_the_weights(tmp_path: Path) -> None:
    folder = weights(tmp_path, max_position_embeddings=59)
    with pytest.raises(ValueError, match=r"has 60 tokens, but model.max_length is 59"):
        fit_to_data(run(init_from=str(folder)), toy_dataset(200, longest=60))


def test_another_vocabulary_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"model.vocab_size is 30522, but the tokenizer of DATA has 64 ids; leave it at 0"
    ):
        fit_to_data(run(model={"vocab_size": 30522}), toy_dataset(20, vocab_size=64))


def test_initial_weights_give_the_shape_and_the_run_keeps_its_dropout(tmp_path: Path) -> None:
    folder = weights(tmp_path, hidden_dropout_prob=0.4, max_position_embeddings=77)
    mine = {"dropout": 0.25, "attention_dropout": 0.0, "pooler": True, "ops": {"attention": "reference"}}
    model = fit_to_data(run(model=mine, init_from=str(folder)), toy_dataset(20)).model
    assert (model.hidden_size, model.num_layers, model.num_heads, model.intermediate_size) == (48, 2, 3, 100)
    assert model.max_length == 77
    assert {name: getattr(model, name) for name in mine} == mine


def test_initial_weights_of_another_vocabulary_are_refused_with_both_numbers(tmp_path: Path) -> None:
    folder = weights(tmp_path, vocab_size=30522)
    with pytest.raises(ValueError, match=rf"know 30522 token ids, the data set 64; .*--tokenizer {folder}"):
        fit_to_data(run(init_from=str(folder)), toy_dataset(20, vocab_size=64))


def test_a_roberta_that_counts_from_another_padding_index_is_refused(tmp_path: Path) -> None:
    settings = {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 514}
    folder = weights(tmp_path, **settings)
    config = run("roberta-tiny", init_from=str(folder))
    with pytest.raises(ValueError, match=r"from padding index 1, but the data set's tokenizer pads with 0"):
        fit_to_data(config, toy_dataset(20))
    model = fit_to_data(config, padding_with(1, toy_dataset(20))).model
    assert (model.pad_id, model.max_length) == (1, 512)


def test_a_bert_does_not_mind_the_padding_index(tmp_path: Path) -> None:
    folder = weights(tmp_path, pad_token_id=7)
    assert fit_to_data(run(init_from=str(folder)), toy_dataset(20)).model.pad_id == 0


def test_a_shape_that_does_not_fit_the_batch_is_refused_before_it_is_written_down(tmp_path: Path) -> None:
    """Else the run would start, and its config.yaml be refused when it is to go on."""
    folder = weights(tmp_path, max_position_embeddings=16384)
    with pytest.raises(ValueError, match=r"max_tokens_per_microbatch 8192 cannot hold .* model.max_length 16384"):
        fit_to_data(run(init_from=str(folder)), toy_dataset(20))


def test_initial_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere is no Hugging Face model folder: it has no config\.json"):
        fit_to_data(run(init_from=str(tmp_path / "nowhere")), toy_dataset(20))
