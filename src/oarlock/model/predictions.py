"""What a masked LM puts at its targets.

Suffixes: M targets, V vocabulary, K guesses.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from oarlock.batches import Batch, pack
from oarlock.model.encoder import MaskedLM


class Guess(NamedTuple):
    """A token and its probability."""

    token: str
    probability: float


@torch.no_grad()
def likeliest(model: MaskedLM, batch: Batch, tokenizer: Tokenizer, count: int) -> list[list[Guess]]:
    """The `count` likeliest tokens for each target of a batch, best first."""
    was_training = model.training
    model.eval()
    logits_MV = model.logits(batch.to(model.output_weight.device)).float()
    model.train(was_training)
    probabilities_MK, ids_MK = logits_MV.softmax(dim=-1).topk(min(count, logits_MV.shape[1]))
    return [
        [Guess(_token(tokenizer, token_id), probability) for token_id, probability in zip(ids, row, strict=True)]
        for ids, row in zip(ids_MK.tolist(), probabilities_MK.tolist(), strict=True)
    ]


def fill_mask(model: MaskedLM, tokenizer: Tokenizer, text: str, mask_token: str, count: int) -> list[list[Guess]]:
    """Guesses for each mask token in `text`.

    Raises:
        ValueError: there is no mask token in the text, or the text is too long.
    """
    ids = tokenizer.encode(text).ids
    mask_id = tokenizer.token_to_id(mask_token)
    targets = [i for i, token in enumerate(ids) if token == mask_id]
    if not targets:
        raise ValueError(f"the text has no {mask_token}; put one where a word should be filled in: {text!r}")
    if len(ids) > model.config.max_length:
        raise ValueError(f"the text has {len(ids)} tokens; the model reads at most {model.config.max_length}")
    return likeliest(model, pack([ids], targets=[targets]), tokenizer, count)


def sample_predictions(
    model: MaskedLM, batches: Sequence[Batch], tokenizer: Tokenizer, mask_id: int, num_samples: int, longest: int = 80
) -> list[dict[str, Any]]:
    """Predictions for the first `num_samples` sequences of `batches` with at most `longest` tokens, all of their
    targets masked, as the report shows them (`samples.json`)."""
    masked: list[list[int]] = []
    targets: list[list[int]] = []
    truths: list[list[int]] = []
    for batch in batches:
        positions_M, bounds = batch.target_positions_M, batch.cu_seqlens_S1.tolist()
        ids_T = batch.ids_T.index_fill(0, positions_M, mask_id)
        for start, end in pairwise(bounds):
            inside_M = (positions_M >= start) & (positions_M < end)
            if len(masked) < num_samples and end - start <= longest and inside_M.any():
                masked.append(ids_T[start:end].tolist())
                targets.append((positions_M[inside_M] - start).tolist())
                truths.append(batch.target_ids_M[inside_M].tolist())
    if not masked:
        return []
    guesses = iter(likeliest(model, pack(masked, targets=targets), tokenizer, 3))
    return [
        {
            "text": tokenizer.decode(ids[1:-1], skip_special_tokens=False),
            "targets": [
                {"truth": _token(tokenizer, true_id), "predictions": [guess._asdict() for guess in next(guesses)]}
                for true_id in true_ids
            ],
        }
        for ids, true_ids in zip(masked, truths, strict=True)
    ]


def _token(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; by its own name where that is white space, by its number where the vocabulary has a hole."""
    text: str = tokenizer.decode([token_id], skip_special_tokens=False).strip()
    return text or tokenizer.id_to_token(token_id) or str(token_id)
