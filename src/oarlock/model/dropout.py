"""Dropout whose decisions follow from (seed, step, sample, place): the same for any split of a batch."""

from typing import TypedDict

from torch import Tensor, nn

from oarlock.batches import Batch
from oarlock.ops.random_bits import from_head, row_keys
from oarlock.parallel import Tokens


class Decisions(TypedDict):
    """What an operator that drops elements takes."""

    dropout: float
    """Probability."""
    keys_T: Tensor | None
    """The random key of every token, int64; None where nothing is dropped."""


class Dropout(nn.Module):
    """One place of a model where elements are dropped, by the operator there. `site` numbers it; no two share one."""

    def __init__(self, probability: float, site: int) -> None:
        super().__init__()
        self.probability, self.site = probability, site
        self.first_head = 0  # of the heads that a part of attention has
        self.tokens: Tokens | None = None  # where only some of the batch's are

    def forward(self, batch: Batch) -> Decisions:
        """What is to be dropped now: nothing in evaluation."""
        if not self.training or self.probability == 0.0:
            return {"dropout": 0.0, "keys_T": None}
        keys_T = row_keys(batch.dropout_key, self.site, batch.token_samples(), batch.positions_T)
        keys_T = from_head(keys_T, self.first_head) if self.first_head else keys_T
        keys_T = self.tokens.own(keys_T) if self.tokens else keys_T
        return {"dropout": self.probability, "keys_T": keys_T}
