"""torch's own attention over packed sequences on a GPU: the kernels behind `torch.nn.attention.varlen`.

Its dropout draws its numbers from the generator, not from the tokens' keys, so it serves only what has none. Unless
torch is asked for deterministic algorithms, its gradients of queries are added up in another order each time.
"""

import torch
from torch import Tensor

LONGEST_HEAD = 256


def serves(qkv: Tensor, dropout: float) -> bool:
    """Whether torch's kernels can compute this."""
    head_size = qkv.shape[-1]
    half = qkv.dtype in (torch.bfloat16, torch.float16)
    return half and dropout == 0.0 and head_size <= LONGEST_HEAD and head_size % 8 == 0 and qkv.shape[0] > 0


def forward(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, scale: float) -> tuple[Tensor, Tensor]:
    """Output [T, H, d], and the logarithm of each row's sum of exponentials [H, T], fp32."""
    q, k, v = qkv.unbind(dim=1)
    out, logsumexp, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, False, False,
        scale=scale, window_size_left=window, window_size_right=window,
    )  # fmt: skip
    return out, logsumexp


def backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    window: int,
    scale: float,
) -> Tensor:
    """Gradient of qkv [T, 3, H, d]."""
    q, k, v = qkv.unbind(dim=1)
    no_random_state = torch.zeros(2, dtype=torch.uint64, device=qkv.device)
    grads = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, logsumexp, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, False,
        no_random_state, qkv.new_empty(0), scale=scale, window_size_left=window, window_size_right=window,
    )  # fmt: skip
    return torch.stack(grads, dim=1)
