"""Self-attention over a pack of sequences of unequal length: no padding, no sequence sees another.

For each sequence and head, `softmax(scale * q k^T) v` (Vaswani et al., 2017), over the whole sequence or over a sliding
window of `window` tokens to each side (Beltagy et al., 2020; ModernBERT alternates both). Dropout acts on the
probabilities, with decisions that follow from each token's key. One autograd function serves the whole pack: slicing
q, k and v per sequence in autograd would zero-fill and add a full-size gradient for each sequence. The backward pass
computes the probabilities anew from the logarithm of each row's sum (Dao et al., 2022, arXiv:2205.14135), so memory
grows with T, not with the squares of the lengths.

Suffixes: T tokens, S1 sequences + 1, H heads, d head size.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.ops import library
from oarlock.ops.attention import cpu, reference

_GEOMETRY = "Tensor cu_seqlens, SymInt max_seqlen, SymInt window, float scale, Tensor keys, float dropout"
library.define("attention_forward", f"(Tensor qkv, {_GEOMETRY}) -> (Tensor, Tensor)", reference.forward)
library.define(
    "attention_backward",
    f"(Tensor grad, Tensor qkv, Tensor out, Tensor logsumexp, {_GEOMETRY}) -> Tensor",
    reference.backward,
)
library.register_form(
    "attention", "cpu", cpu.FORM, {"attention_forward": cpu.forward, "attention_backward": cpu.backward}
)
library.register_cuda("attention", "triton", {"attention_forward": "forward", "attention_backward": "backward"})


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cu_seqlens: Tensor, keys: Tensor, form: str, *geometry: Any) -> Tensor:
        max_seqlen, window, scale, dropout = geometry
        out: Tensor
        out, logsumexp = library.namespace(form).attention_forward(
            qkv, cu_seqlens, max_seqlen, window, scale, keys, dropout
        )
        ctx.save_for_backward(qkv, out, logsumexp, cu_seqlens, keys)
        ctx.form, ctx.geometry = form, geometry
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, logsumexp, cu_seqlens, keys = ctx.saved_tensors
        max_seqlen, window, scale, dropout = ctx.geometry
        grad_qkv = library.namespace(ctx.form).attention_backward(
            grads[0].contiguous(), qkv, out, logsumexp, cu_seqlens, max_seqlen, window, scale, keys, dropout
        )
        return grad_qkv, None, None, None, None, None, None, None


def attention(
    qkv_T3Hd: Tensor,
    cu_seqlens_S1: Tensor,
    max_seqlen: int,
    *,
    window: int | None = None,
    dropout: float = 0.0,
    keys_T: Tensor | None = None,
    form: str = "auto",
) -> Tensor:
    """Attention output, [T, H, d].

    Args:
        qkv_T3Hd: queries, keys and values of all tokens, as one projection leaves them.
        cu_seqlens_S1: start of each sequence, and T at the end, int32.
        max_seqlen: length of the longest sequence.
        window: how many tokens to each side a token sees; None is all.
        dropout: probability with which a probability is dropped; needs `keys_T`.
        keys_T: row keys of the tokens (`random_bits.row_keys`), int64.
        form: `auto` or `reference`.

    Raises ValueError for a shape or a window that is none, and on a CPU for boundaries that do not fit the tokens.
    """
    if qkv_T3Hd.ndim != 4 or qkv_T3Hd.shape[1] != 3 or (window is not None and window < 0):
        raise ValueError(f"qkv must be [T, 3, H, d] and a window 0 or more, not {tuple(qkv_T3Hd.shape)} and {window}")
    scale = qkv_T3Hd.shape[-1] ** -0.5
    if keys_T is None:
        keys_T = cu_seqlens_S1.new_empty(0, dtype=torch.int64)
    # An operator's schema has no optional integer that also captures symbolically; -1 stands for "all".
    geometry = (max_seqlen, -1 if window is None else window, scale, dropout)
    out: Tensor = library.apply(_Attention, qkv_T3Hd, cu_seqlens_S1, keys_T, form, *geometry)
    return out
