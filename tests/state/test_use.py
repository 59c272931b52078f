"""What a trained model is used for: evaluation, export, filling in masks."""

import json
import math
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from oarlock.batches import pack
from oarlock.corpus import PrepareConfig, load_tokenizer, open_dataset, prepare
from oarlock.model import likeliest
from oarlock.report import read_metrics
from oarlock.state import evaluate_trained, export_run, fill_mask_with, load_trained
from oarlock.testing.texts import write_text


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(str(trained), tmp_path_factory.mktemp("exported") / "model").folder


def test_evaluation_equals_the_runs_own(trained: Path, data: Path) -> None:
    """In fp32; the run cut it into other micro-batches."""
    last = read_metrics(trained / "metrics.jsonl")[1][-1]
    found = evaluate_trained(str(trained), str(data), max_sequences=20)
    assert found.eval_loss == pytest.approx(last["eval_loss"], rel=1e-6)
    assert found.eval_accuracy == last["eval_accuracy"]
    assert found.unigram_baseline == open_dataset(str(data)).manifest.unigram_baseline


def test_evaluation_of_the_whole_split_has_more_targets(trained: Path, data: Path) -> None:
    some, all_ = (evaluate_trained(str(trained), str(data), n) for n in (20, None))
    lengths = open_dataset(str(data)).validation.lengths
    expected = [sum(max(1, math.floor(0.3 * (int(n) - 2) + 0.5)) for n in part) for part in (lengths[:20], lengths)]
    assert [some.num_targets, all_.num_targets] == pytest.approx(expected, abs=len(lengths) / 2)
    assert some.num_targets < all_.num_targets


def test_evaluation_of_the_exported_folder(exported: Path, trained: Path, data: Path) -> None:
    """It knows nothing of the run's masking, so it takes the usual one; the loss is of the same size."""
    run, folder = (evaluate_trained(str(source), str(data), None) for source in (trained, exported))
    assert folder.num_targets < run.num_targets
    assert folder.eval_loss == pytest.approx(run.eval_loss, rel=0.05)


def test_evaluation_on_data_that_do_not_fit_is_refused_with_both_numbers(trained: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    for name, options in (
        ("vocabulary", {"train_tokenizer": "bpe"}),
        ("length", {"tokenizer": str(trained / "tokenizer")}),
    ):
        prepare(
            PrepareConfig(
                inputs=(str(text),),
                out=str(tmp_path / name),
                vocab_size=400,
                max_length=60,
                validation_share=0.2,
                **options,
            )
        )
    other = open_dataset(str(tmp_path / "vocabulary")).manifest.vocab_size
    with pytest.raises(
        ValueError, match=rf"knows 137 token ids, the data set .*vocabulary {other}; prepare .*--tokenizer"
    ):
        evaluate_trained(str(trained), str(tmp_path / "vocabulary"), None)
    with pytest.raises(ValueError, match=r"has 60 tokens, the model reads at most 48; prepare .* --max-length 48"):
        evaluate_trained(str(trained), str(tmp_path / "length"), None)


def test_export_of_a_run(exported: Path) -> None:
    settings = json.loads((exported / "config.json").read_text())
    assert (settings["pad_token_id"], settings["cls_token_id"], settings["sep_token_id"]) == (0, 2, 3)
    card = (exported / "README.md").read_text()
    assert "| Steps | 12 of 12 |" in card
    assert "| Vocabulary | 137 |" in card
    assert "| Longest sequence | 48 tokens |" in card


def test_export_of_an_older_step(trained: Path, tmp_path: Path) -> None:
    folder = export_run(str(trained), tmp_path / "model", step=10).folder
    assert "| Steps | 10 of 12 |" in (folder / "README.md").read_text()


def test_export_of_a_hugging_face_folder_is_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a Hugging Face folder already; give a run folder"):
        export_run(str(exported), tmp_path / "model")


def test_export_into_the_run_itself_is_refused(trained: Path) -> None:
    before = sorted(trained.rglob("*"))
    with pytest.raises(ValueError, match="holds no model that could be replaced"):
        export_run(str(trained), trained, overwrite=True)
    assert sorted(trained.rglob("*")) == before


def test_fill_mask_of_a_run_and_of_its_export(trained: Path, exported: Path) -> None:
    text = "the river runs [MASK] a mill where [MASK] boats wait"
    of_run, of_folder = (fill_mask_with(str(source), text, 4) for source in (trained, exported))
    assert [len(guesses) for guesses in of_run] == [4, 4]
    assert of_run == of_folder
    words = load_tokenizer(str(trained / "tokenizer")).tokenizer
    ids = words.encode(text).ids
    targets = [[i for i, token in enumerate(ids) if token == 4]]
    assert of_run == likeliest(load_trained(str(trained)).model, pack([ids], targets=targets), words, 4)


def test_fill_mask_ignores_the_padding_that_a_tokenizer_file_asks_for(exported: Path) -> None:
    """As published sentence encoders do: a padding token would be read as text."""
    expected = fill_mask_with(str(exported), "the [MASK] runs", 4)
    file = exported / "tokenizer.json"
    before = file.read_bytes()
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.enable_padding(length=32)
        tokenizer.enable_truncation(3)
        tokenizer.save(str(file))
        assert fill_mask_with(str(exported), "the [MASK] runs", 4) == expected
    finally:
        file.write_bytes(before)


def test_fill_mask_speaks_of_mask_whatever_the_tokenizer_calls_it(trained: Path, tmp_path: Path) -> None:
    """A RoBERTa's is <mask>."""
    folder = export_run(str(trained), tmp_path / "model").folder
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace("[MASK]", "<mask>"))
    expected = fill_mask_with(str(trained), "the [MASK] runs", 4)
    assert fill_mask_with(str(folder), "the [MASK] runs", 4) == expected
    assert fill_mask_with(str(folder), "the <mask> runs", 4) == expected
    with pytest.raises(ValueError, match="the text has no <mask>"):
        fill_mask_with(str(folder), "the river runs", 4)
