"""Output projection and cross entropy in plain torch, a chunk of rows at a time."""

import torch
from torch import Tensor
from torch.nn.functional import linear

_CHUNK_BYTES = 64 << 20  # of fp32 logits


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, vocab_size: int, scale: float, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scaled summed loss; then, without gradients, the number of hits; else gradients of hidden, weight and bias."""
    loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
    hits = torch.zeros((), dtype=torch.int64, device=hidden.device)
    grads = [torch.zeros_like(x) if with_gradients else x.new_empty(0) for x in (hidden, weight, bias)]
    grad_hidden, grad_weight, grad_bias = grads
    rows = max(1, _CHUNK_BYTES // (4 * weight.shape[0]))
    for start in range(0, hidden.shape[0], rows):
        chunk, target = hidden[start : start + rows], targets[start : start + rows, None]
        logits = linear(chunk, weight, bias)[:, :vocab_size].float()
        log_probabilities = logits.log_softmax(dim=-1)
        loss -= log_probabilities.gather(1, target).sum()
        if not with_gradients:
            hits += (logits.argmax(dim=-1, keepdim=True) == target).sum()
        else:
            grad_logits = torch.zeros(chunk.shape[0], weight.shape[0], dtype=hidden.dtype, device=hidden.device)
            probabilities = log_probabilities.exp_()
            probabilities.scatter_add_(1, target, torch.full_like(target, -1, dtype=torch.float32))
            grad_logits[:, :vocab_size] = probabilities.mul_(scale)
            grad_hidden[start : start + rows] = grad_logits @ weight
            grad_weight.addmm_(grad_logits.T, chunk)
            grad_bias += grad_logits.sum(dim=0)
    return loss * scale, hits, grad_hidden, grad_weight, grad_bias
