"""A trained model from a run folder or a Hugging Face folder."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oarlock.batches import pack
from oarlock.config import read_run_config
from oarlock.state import CheckpointWarning, export_run, load_trained
from oarlock.state.checkpoint import checkpoint_path

SEQUENCE = pack([[2, 20, 4, 30, 3]], targets=[[2]])


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """The run, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("step, expected", ((None, 12), (12, 12), (10, 10)))
def test_the_weights_of_a_checkpoint(trained: Path, step: int | None, expected: int) -> None:
    found = load_trained(str(trained), step)
    saved = load_file(checkpoint_path(trained, expected) / "model.safetensors")
    assert saved.keys() == dict(found.model.named_parameters()).keys()
    assert all(torch.equal(parameter, saved[name]) for name, parameter in found.model.named_parameters())
    assert (found.step, found.tokenizer) == (expected, trained / "tokenizer")
    assert found.run == read_run_config(trained / "config.yaml")
    assert not found.model.training


def test_a_hugging_face_folder(trained: Path, tmp_path: Path) -> None:
    folder = export_run(str(trained), tmp_path / "model").folder
    found = load_trained(str(folder))
    assert (found.tokenizer, found.run, found.step) == (folder, None, None)
    assert not found.model.training
    with torch.no_grad():
        assert torch.equal(found.model.logits(SEQUENCE), load_trained(str(trained)).model.logits(SEQUENCE))
    with pytest.raises(ValueError, match="has no steps; leave --step away"):
        load_trained(str(folder), 10)


def test_a_folder_url(trained: Path) -> None:
    assert load_trained(f"file://{trained}").step == 12


def test_a_step_that_is_not_there_is_refused_with_those_that_are(trained: Path) -> None:
    with pytest.raises(ValueError, match=r"has no checkpoint of step 7; there are those of 10, 12"):
        load_trained(str(trained), 7)


def test_neither_one_nor_the_other(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=r"neither a run folder .* nor a Hugging Face folder \(no config\.json\)"):
            load_trained(str(folder))


def test_a_run_without_a_checkpoint(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ValueError, match="has no complete checkpoint yet; train it a little longer"):
        load_trained(str(copy))


def test_c44_a_damaged_newest_checkpoint_is_named_and_the_one_before_taken(copy: Path) -> None:
    file = checkpoint_path(copy, 12) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match=r"step-00000012/model\.safetensors"):
        assert load_trained(str(copy)).step == 10
    with pytest.raises(ValueError, match=r"step-00000012/model\.safetensors has .* bytes"):
        load_trained(str(copy), 12)


def test_a_configuration_changed_by_hand_is_refused_by_parameter(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    assert "intermediate_size: 64" in text
    (copy / "config.yaml").write_text(text.replace("intermediate_size: 64", "intermediate_size: 65"))
    with pytest.raises(
        ValueError, match=r"do not fit the model: .*mlp\.up\.weight has shape \(64, 32\), not \(65, 32\)"
    ):
        load_trained(str(copy))
