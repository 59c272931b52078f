"""A vocabulary that is shared out: each of n processes has V / n rows of the word embeddings, which are the output
matrix too (Shoeybi et al., 2019, arXiv:1909.08053, section 3).

Rows are looked up by whoever has them and added up. Of the cross entropy each process computes the logits of its rows;
what it tells the others are two numbers a target: the logarithm of the sum of their exponentials, and the logit of the
true id, if it has it.

Suffixes: T tokens, M targets, D hidden, V vocabulary, v of it, this process's part; n processes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock import ops
from oarlock.parallel.exchange import gathered, scattered, sum_gradients, sum_parts_of
from oarlock.parallel.groups import Group


class Vocabulary(NamedTuple):
    """Where this process has a part of the vocabulary only."""

    group: Group
    tokens: bool
    """Whether it has a share of the tokens only, between layers."""

    def look_up(self, table_vD: Tensor, ids_T: Tensor) -> Tensor:
        """Word embeddings of all tokens, [T, D], or of this process's."""
        out: Tensor = _LookUp.apply(table_vD, ids_T, self.group, self.tokens)  # type: ignore[no-untyped-call]
        return out

    def cross_entropy(
        self,
        hidden_MD: Tensor,
        weight_vD: Tensor,
        bias_v: Tensor,
        targets_M: Tensor,
        vocab_size: int,
        denominator: int,
        form: str,
    ) -> Tensor:
        """As `ops.cross_entropy`, the same on every process; `form` is that of the product."""
        logits_Mv = ops.linear(sum_gradients(hidden_MD, self.group), weight_vD, bias_v, form)
        loss: Tensor = _CrossEntropy.apply(logits_Mv, targets_M, vocab_size, denominator, self.group)  # type: ignore[no-untyped-call]
        return loss

    def cross_entropy_and_hits(
        self, hidden_MD: Tensor, weight_vD: Tensor, bias_v: Tensor, targets_M: Tensor, vocab_size: int, form: str
    ) -> tuple[Tensor, Tensor]:
        """As `ops.cross_entropy_and_hits`, the same on every process."""
        logits_Mv = _wide(ops.linear(hidden_MD, weight_vD, bias_v, form), vocab_size, self.group)
        sums_M, picked_M = _normaliser(logits_Mv, targets_M, self.group)
        best_M, columns_M = logits_Mv.max(dim=1)
        ids_M = columns_M + self.group.rank * logits_Mv.shape[1]
        table_n2M = gathered(torch.stack((best_M, ids_M.to(best_M.dtype)))[None], self.group)
        winners_M = table_n2M[:, 0].argmax(dim=0)
        likeliest_M = table_n2M[:, 1].gather(0, winners_M[None])[0].long()
        return (sums_M - picked_M).sum(), (likeliest_M == targets_M).sum()


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, group: Group, tokens: bool) -> Tensor:
        size = table.shape[0]
        rows = ids - group.rank * size
        rows = torch.where((rows >= 0) & (rows < size), rows, size)
        ctx.save_for_backward(rows)
        ctx.size, ctx.group, ctx.tokens = size, group, tokens
        found = table[rows.clamp(max=size - 1)] * (rows < size)[:, None]
        return scattered(found, group) if tokens else sum_parts_of(found, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = gathered(grads[0], ctx.group) if ctx.tokens else grads[0]
        (rows,) = ctx.saved_tensors
        # One row more, for the tokens that others have.
        table = torch.ops.aten.embedding_dense_backward(grad.float(), rows, ctx.size + 1, -1, False)
        return table[:-1], None, None, None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocab_size: int, denominator: int, group: Group) -> Tensor:
        wide = _wide(logits, vocab_size, group)
        sums_M, picked_M = _normaliser(wide, targets, group)
        ctx.save_for_backward(logits, targets, sums_M)
        ctx.vocab_size, ctx.scale, ctx.group = vocab_size, 1.0 / denominator, group
        loss: Tensor = (sums_M - picked_M).sum() * ctx.scale
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, sums_M = ctx.saved_tensors
        probabilities = _wide(logits, ctx.vocab_size, ctx.group).sub_(sums_M[:, None]).exp_()
        columns, mine = _columns(targets, logits.shape[1], ctx.group)
        probabilities.scatter_add_(1, columns, -mine.to(probabilities.dtype))
        return probabilities.mul_(grads[0] * ctx.scale).to(logits.dtype), None, None, None, None


def _wide(logits_Mv: Tensor, vocab_size: int, group: Group) -> Tensor:
    """A copy in fp32, with minus infinity in the columns that pad the vocabulary."""
    real = max(0, vocab_size - group.rank * logits_Mv.shape[1])
    wide = logits_Mv.to(torch.promote_types(logits_Mv.dtype, torch.float32), copy=True)
    wide[:, real:] = -torch.inf
    return wide


def _normaliser(logits_Mv: Tensor, targets_M: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of the exponentials of everybody's logits, and the targets' logits, both [M]."""
    columns, mine = _columns(targets_M, logits_Mv.shape[1], group)
    picked = torch.where(mine, logits_Mv.gather(1, columns), 0.0)[:, 0]
    table_n2M = gathered(torch.stack((logits_Mv.logsumexp(dim=1), picked))[None], group)
    return table_n2M[:, 0].logsumexp(dim=0), table_n2M[:, 1].sum(dim=0)


def _columns(targets_M: Tensor, size: int, group: Group) -> tuple[Tensor, Tensor]:
    """The targets' columns here, and whether they are here, both [M, 1]."""
    columns = targets_M[:, None] - group.rank * size
    mine = (columns >= 0) & (columns < size)
    return columns.clamp(0, size - 1), mine
