"""Dropout whose decisions follow from (seed, step, sample, place): the same for any split of a batch."""

from torch import Tensor, nn

from oarlock.batches import Batch
from oarlock.ops import dropout_add, row_keys


class Dropout(nn.Module):
    """Dropout with an optional residual sum. `site` is its number in the model; no two dropouts share one."""

    def __init__(self, probability: float, site: int, form: str) -> None:
        super().__init__()
        self.probability, self.site, self.form = probability, site, form

    @property
    def active(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.probability > 0.0

    def keys(self, batch: Batch) -> Tensor:
        """The random key of every token at this site, int64 [T]."""
        return row_keys(batch.dropout_key, self.site, batch.token_samples(), batch.positions_T)

    def forward(self, x_TD: Tensor, residual_TD: Tensor | None, batch: Batch) -> Tensor:
        """`residual + dropout(x)`, or `dropout(x)` where there is no residual, [T, D]."""
        if not self.active:
            return x_TD if residual_TD is None else residual_TD + x_TD
        if residual_TD is None:
            residual_TD = x_TD.new_zeros(()).expand_as(x_TD)
        return dropout_add(x_TD, residual_TD, self.keys(batch), self.probability, self.form)
