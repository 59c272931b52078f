"""Hugging Face folders out: what `transformers` makes of them, and what the exporter refuses."""

import importlib.util
import json
import logging
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from oarlock.batches import Batch, pack
from oarlock.config import ModelConfig
from oarlock.corpus import load_tokenizer, open_dataset
from oarlock.model import Exported, MaskedLM, build_model, export_huggingface, fill_mask, load_huggingface
from oarlock.model.huggingface import export
from oarlock.step import evaluate

VOCAB_SIZE = 137  # of the data set's tokenizer; padded to 192 inside
MODELS = {
    "bert": ModelConfig(kind="bert"),
    "bert-pooler": ModelConfig(kind="bert", pooler=True),
    "roberta": ModelConfig(kind="roberta", token_types=1, norm_epsilon=1e-5, pad_id=1),
    "roberta-pooler": ModelConfig(kind="roberta", token_types=1, norm_epsilon=1e-5, pad_id=1, pooler=True),
    "modernbert": ModelConfig(kind="modernbert", local_window=8, norm_epsilon=1e-5),
}
SHAPE = {"hidden_size": 32, "num_layers": 4, "num_heads": 4, "intermediate_size": 48, "max_length": 48}


def built(name: str) -> MaskedLM:
    """A model in which every parameter is random: norms, biases and the rows that pad the vocabulary too."""
    model = build_model(MODELS[name].model_copy(update={**SHAPE, "vocab_size": VOCAB_SIZE, "initializer_range": 0.2}))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@pytest.fixture
def tokenizer(data: Path) -> Path:
    return data / "tokenizer"


def exported(model: MaskedLM, tokenizer: Path, out: Path, **options: Any) -> Exported:
    special_ids = {"pad": model.config.pad_id, "start": 2, "end": 3}
    return export_huggingface(model, tokenizer, special_ids, out, {"Steps": "7 of 9"}, **options)


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(5, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (1, 48, 20)]


def everywhere(ids: list[list[int]]) -> Batch:
    """A batch in which every token is a target."""
    return pack(ids, targets=[list(range(len(one))) for one in ids])


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What `transformers` logs as a warning or worse; its logger does not propagate by itself."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    caplog.set_level(logging.WARNING, "transformers")
    return caplog


@pytest.mark.parametrize("name", MODELS)
def test_c50_transformers_loads_it_without_a_word_and_gives_the_same_logits(
    name: str, tokenizer: Path, tmp_path: Path, complaints: pytest.LogCaptureFixture
) -> None:
    model = built(name)
    result = exported(model, tokenizer, tmp_path / "out")
    assert (result.folder, result.checked_with) == (tmp_path / "out", "transformers")
    assert result.largest_difference < 1e-5
    theirs, loading = transformers.AutoModelForMaskedLM.from_pretrained(result.folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert [record.message for record in complaints.records] == []
    ids = sequences()
    with torch.no_grad():
        expected = torch.cat([theirs.eval()(torch.tensor([one])).logits[0] for one in ids])
        torch.testing.assert_close(model.logits(everywhere(ids)), expected, rtol=0, atol=1e-5)
    decoder = theirs.get_output_embeddings()
    assert decoder.weight is theirs.get_input_embeddings().weight
    assert torch.equal(decoder.bias, model.head.bias[:VOCAB_SIZE])
    assert float(decoder.bias.detach().abs().min()) > 0.0


def test_c50_the_capture_would_see_a_warning(
    tokenizer: Path, tmp_path: Path, complaints: pytest.LogCaptureFixture
) -> None:
    folder = exported(built("bert"), tokenizer, tmp_path / "out").folder
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "unheard.of": torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert any("unheard.of" in record.message for record in complaints.records)


@pytest.mark.parametrize("name", MODELS)
def test_what_was_exported_comes_back(name: str, tokenizer: Path, tmp_path: Path) -> None:
    model = built(name)
    again, notes = load_huggingface(exported(model, tokenizer, tmp_path / "out").folder)
    assert notes == []
    assert again.config == model.config.model_copy(update={"pooler": False})
    batch = everywhere(sequences())
    with torch.no_grad():
        assert torch.equal(again.eval().logits(batch), model.logits(batch))


@pytest.mark.parametrize("name", ("bert", "roberta", "modernbert"))
def test_c51_the_padding_of_the_vocabulary_is_trimmed(name: str, tokenizer: Path, tmp_path: Path) -> None:
    model = built(name)
    assert model.output_weight.shape[0] == model.head.bias.shape[0] == 192
    folder = exported(model, tokenizer, tmp_path / "out").folder
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == VOCAB_SIZE
    shapes = {tensor.shape[0] for tensor in load_file(folder / "model.safetensors").values()}
    assert VOCAB_SIZE in shapes
    assert 192 not in shapes


@pytest.mark.parametrize("form", ("auto", "reference"))
def test_c51_ids_beyond_the_vocabulary_are_never_predicted(form: str, tokenizer: Path) -> None:
    model = built("bert")
    model = build_model(model.config.model_copy(update={"ops": {"cross_entropy": form}}))
    batch = everywhere(sequences())
    expected, before = model.logits(batch), evaluate(model, [batch])
    with torch.no_grad():
        model.output_weight[VOCAB_SIZE:] = 1e3
        model.head.bias[VOCAB_SIZE:] = 1e6
    logits = model.logits(batch)
    assert logits.shape[1] == VOCAB_SIZE
    assert torch.equal(logits, expected)
    after = evaluate(model, [batch])
    assert torch.equal(after.loss, before.loss)
    assert torch.equal(after.accuracy, before.accuracy)
    words = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    [guesses] = fill_mask(model, words, "the [MASK] river", "[MASK]", 10**6)
    assert len(guesses) == VOCAB_SIZE
    assert sum(guess.probability for guess in guesses) == pytest.approx(1.0)


def halve_a_weight(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    name = "bert.encoder.layer.2.attention.self.key.weight"
    return {**weights, name: weights[name] / 2}


def make_a_weight_nan(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**weights, "cls.predictions.bias": weights["cls.predictions.bias"] * float("nan")}


def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "transformers" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize("damage", (halve_a_weight, make_a_weight_nan))
@pytest.mark.parametrize("judge", ("transformers", "oarlock"))
def test_c52_a_folder_that_computes_something_else_is_not_exported(
    judge: str, damage: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if judge == "oarlock":
        without_transformers(monkeypatch)
    to_folder = export.to_folder
    monkeypatch.setattr(export, "to_folder", lambda model: damage(to_folder(model)))
    with pytest.raises(RuntimeError, match=rf"run by {judge}, gives logits that differ by .*nothing was exported"):
        exported(built("bert"), tokenizer, tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


def test_c52_a_failed_export_leaves_what_it_was_to_replace(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(built("bert"), tokenizer, tmp_path / "out").folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    to_folder = export.to_folder
    monkeypatch.setattr(export, "to_folder", lambda model: halve_a_weight(to_folder(model)))
    with pytest.raises(RuntimeError):
        exported(built("bert"), tokenizer, folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", MODELS)
def test_c52_without_transformers_the_own_loader_judges(
    name: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_transformers(monkeypatch)
    result = exported(built(name), tokenizer, tmp_path / "out")
    assert (result.checked_with, result.largest_difference) == ("oarlock", 0.0)


def test_the_comparison_shows_no_progress_bar(
    tokenizer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exported(built("bert"), tokenizer, tmp_path / "out")
    assert capfd.readouterr().err == ""
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_an_export_leaves_the_model_in_training(tokenizer: Path, tmp_path: Path) -> None:
    model = built("bert").train()
    exported(model, tokenizer, tmp_path / "out")
    assert model.training


@pytest.mark.parametrize("name", ("bert", "bert-pooler", "modernbert"))
def test_c53_the_card_says_that_there_is_no_pooler(name: str, tokenizer: Path, tmp_path: Path) -> None:
    folder = exported(built(name), tokenizer, tmp_path / "out").folder
    card = (folder / "README.md").read_text()
    assert "A pooler is not" in card
    assert "| Steps | 7 of 9 |" in card
    assert not any("pooler" in name for name in load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("name", ("bert", "roberta", "modernbert"))
def test_c53_the_tokenizer_comes_along(name: str, tokenizer: Path, tmp_path: Path) -> None:
    folder = exported(built(name), tokenizer, tmp_path / "out").folder
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(str(tokenizer))
    text = "the river runs past an unheard-of mill"
    assert theirs(text)["input_ids"] == ours.tokenizer.encode(text).ids
    assert (theirs.mask_token_id, theirs.pad_token_id, len(theirs)) == (4, 0, VOCAB_SIZE)
    assert theirs.model_max_length == 48
    fill = transformers.pipeline("fill-mask", model=str(folder))
    assert len(fill("the river [MASK] past a mill")) == 5


def test_c53_a_tokenizer_folder_that_holds_a_model_gives_its_tokenizer_only(tokenizer: Path, tmp_path: Path) -> None:
    other = exported(built("roberta"), tokenizer, tmp_path / "other").folder
    (other / "pytorch_model.bin").write_bytes(b"")
    folder = exported(built("bert"), other, tmp_path / "out").folder
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", "config.json", "model.safetensors"),
        *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
    }
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"


def test_c53_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no tokenizer"):
        exported(built("bert"), tmp_path / "empty", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_an_empty_folder_is_taken(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    exported(built("bert"), tokenizer, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").exists()


def test_a_folder_with_content_is_refused_and_an_export_replaced_on_request(tokenizer: Path, tmp_path: Path) -> None:
    folder = exported(built("bert"), tokenizer, tmp_path / "out").folder
    (folder / "older.txt").write_text("of the older export")
    with pytest.raises(ValueError, match=r"out is not empty; choose another folder or give --overwrite"):
        exported(built("roberta"), tokenizer, folder)
    exported(built("roberta"), tokenizer, folder, overwrite=True)
    assert not (folder / "older.txt").exists()
    assert json.loads((folder / "config.json").read_text())["model_type"] == "roberta"


@pytest.mark.parametrize("inside", ("thesis.tex", "config.yaml"))
def test_overwrite_replaces_models_only(inside: str, tokenizer: Path, tmp_path: Path) -> None:
    """A slip such as `--out ~ --overwrite`, or the run folder itself, must not cost its content."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / inside).write_text("years of work")
    with pytest.raises(ValueError, match="holds no model that could be replaced"):
        exported(built("bert"), tokenizer, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / inside).read_text() == "years of work"


def test_overwrite_does_not_replace_a_file(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ValueError, match="holds no model that could be replaced"):
        exported(built("bert"), tokenizer, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_text() == "a file"


def test_damaged_folders_are_named(tokenizer: Path, tmp_path: Path) -> None:
    folder = exported(built("bert"), tokenizer, tmp_path / "out").folder
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_huggingface(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        load_huggingface(folder)


@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
def test_the_tokenizer_gives_only_inputs_that_the_model_takes(kind: str, tmp_path: Path, data: Path) -> None:
    """Two texts at once, where only BERT has an embedding for the second."""
    manifest = open_dataset(str(data)).manifest
    small = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    model = build_model(
        ModelConfig(kind=kind, vocab_size=manifest.vocab_size, token_types=2 if kind == "bert" else 1, **small)  # type: ignore[arg-type]
    )
    special = {"pad": manifest.special.pad, "start": manifest.special.start, "end": manifest.special.end}
    out = export_huggingface(model, data / "tokenizer", special, tmp_path / "model", {}).folder
    inputs = transformers.AutoTokenizer.from_pretrained(out)("the river", "past a mill", return_tensors="pt")
    assert ("token_type_ids" in inputs) == (kind == "bert")
    transformers.AutoModel.from_pretrained(out)(**inputs)
