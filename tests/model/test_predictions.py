"""What is shown of a model: guesses for masks, and sample predictions of a run."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from oarlock.batches import Batch, evaluation_batches, pack
from oarlock.batches.pack import FILLER
from oarlock.config import MaskingConfig, ModelConfig
from oarlock.corpus import open_dataset
from oarlock.model import MaskedLM, build_model, fill_mask, likeliest, sample_predictions

VOCAB_SIZE, MASK = 137, 4
SHAPE = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48, "max_length": 48}


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Tokenizer:
    return Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))


@pytest.fixture(scope="module")
def model() -> MaskedLM:
    return build_model(ModelConfig(vocab_size=VOCAB_SIZE, initializer_range=0.3, **SHAPE))


def test_likeliest_are_the_largest_logits_best_first(model: MaskedLM, tokenizer: Tokenizer) -> None:
    batch = pack([[2, 20, MASK, 22, 3], [2, MASK, 40, 3]], targets=[[2], [1]])
    guesses = likeliest(model, batch, tokenizer, 4)
    model.eval()
    probabilities = model.logits(batch).detach().double().exp()
    model.train()
    probabilities /= probabilities.sum(dim=1, keepdim=True)
    for row, found in zip(probabilities, guesses, strict=True):
        best = row.argsort(descending=True)[:4].tolist()
        assert [guess.token for guess in found] == [tokenizer.id_to_token(i) for i in best]
        assert [guess.probability for guess in found] == pytest.approx(row[best].tolist(), rel=1e-4)
        assert all(a.probability >= b.probability for a, b in pairwise(found))


def test_likeliest_is_without_dropout_and_leaves_the_model_in_training(model: MaskedLM, tokenizer: Tokenizer) -> None:
    batch = pack([[2, 20, MASK, 22, 3]], targets=[[2]])
    model.train()
    first = likeliest(model, batch, tokenizer, 3)
    assert model.training
    model.eval()
    assert likeliest(model, batch, tokenizer, 3) == first
    assert not model.training


def test_more_guesses_than_there_are_tokens(model: MaskedLM, tokenizer: Tokenizer) -> None:
    [guesses] = likeliest(model, pack([[2, MASK, 3]], targets=[[1]]), tokenizer, 10**6)
    assert len(guesses) == VOCAB_SIZE


def test_a_token_that_decodes_to_nothing_is_still_named(model: MaskedLM, tokenizer: Tokenizer) -> None:
    """Ids without a token, as in a vocabulary with a hole."""
    wider = build_model(model.config.model_copy(update={"vocab_size": VOCAB_SIZE + 2}))
    [guesses] = likeliest(wider, pack([[2, MASK, 3]], targets=[[1]]), tokenizer, 10**6)
    assert {"137", "138"} <= {guess.token for guess in guesses}
    assert all(guess.token for guess in guesses)


def test_fill_mask_has_a_list_for_each_mask_in_order(model: MaskedLM, tokenizer: Tokenizer) -> None:
    first, second = fill_mask(model, tokenizer, "the [MASK] runs past a [MASK] .", "[MASK]", 3)
    ids = tokenizer.encode("the [MASK] runs past a [MASK] .").ids
    positions = [i for i, token in enumerate(ids) if token == MASK]
    assert [first, second] == likeliest(model, pack([ids], targets=[positions]), tokenizer, 3)
    assert first != second


def test_fill_mask_tells_what_is_wrong_with_a_text(model: MaskedLM, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"the text has no \[MASK\]; put one .*'no mask here'"):
        fill_mask(model, tokenizer, "no mask here", "[MASK]", 3)
    with pytest.raises(ValueError, match="the text has 53 tokens; the model reads at most 48"):
        fill_mask(model, tokenizer, "[MASK] " + "river " * 50, "[MASK]", 3)


@pytest.fixture(scope="module")
def held_out(data: Path) -> list[Batch]:
    return evaluation_batches(
        open_dataset(str(data)), MaskingConfig(), seed=3, max_tokens_per_microbatch=100, max_sequences=None
    )


def real_samples(batches: list[Batch]) -> list[int]:
    return [int(sample) for batch in batches for sample in batch.sample_ids_S if sample != FILLER]


def test_sample_predictions_mask_every_target(model: MaskedLM, tokenizer: Tokenizer, held_out: list[Batch]) -> None:
    """Targets that the evaluation leaves as they are, or replaces, would give themselves away."""
    samples = sample_predictions(model, held_out, tokenizer, MASK, 10**6, longest=10**6)
    assert len(samples) == len(real_samples(held_out))
    assert sum(len(sample["targets"]) for sample in samples) == held_out[0].num_targets
    for sample in samples:
        assert sample["text"].count("[MASK]") == len(sample["targets"])
        assert "[CLS]" not in sample["text"]
        assert "[SEP]" not in sample["text"]


def test_sample_predictions_are_those_of_the_masked_sequence(
    model: MaskedLM, tokenizer: Tokenizer, data: Path, held_out: list[Batch]
) -> None:
    """By the words of the data set itself: what stands at the masks is the truth, and the guesses are `likeliest`'s."""
    split = open_dataset(str(data)).validation
    shown = sample_predictions(model, held_out, tokenizer, MASK, 10**6, longest=10**6)
    for sample, prediction in zip(real_samples(held_out), shown, strict=True):
        ids = split.ids[split.offsets[sample] : split.offsets[sample + 1]].astype(int).tolist()
        masked = tokenizer.encode(prediction["text"]).ids
        positions = [i for i, token in enumerate(masked) if token == MASK]
        assert [target["truth"] for target in prediction["targets"]] == [
            tokenizer.id_to_token(ids[i]) for i in positions
        ]
        assert [token for i, token in enumerate(ids) if i not in positions] == [t for t in masked if t != MASK]
        guesses = likeliest(model, pack([masked], targets=[positions]), tokenizer, 3)
        for target, expected in zip(prediction["targets"], guesses, strict=True):
            assert [found["token"] for found in target["predictions"]] == [guess.token for guess in expected]


def test_sample_predictions_are_few_and_short(model: MaskedLM, tokenizer: Tokenizer, held_out: list[Batch]) -> None:
    samples = sample_predictions(model, held_out, tokenizer, MASK, 3, longest=30)
    assert len(samples) == 3
    assert all(len(tokenizer.encode(sample["text"]).ids) <= 30 for sample in samples)
    assert sample_predictions(model, held_out, tokenizer, MASK, 3, longest=1) == []


def test_predictions_of_a_model_in_bf16(model: MaskedLM, tokenizer: Tokenizer) -> None:
    half = build_model(model.config).to(torch.bfloat16)
    [guesses] = likeliest(half, pack([[2, MASK, 3]], targets=[[1]]), tokenizer, VOCAB_SIZE)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1.0, abs=1e-3)
