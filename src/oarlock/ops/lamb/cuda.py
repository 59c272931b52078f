"""LAMB on a GPU: three launches for all tensors.

Tensors are cut into pieces of a fixed number of elements, a program each; a table on the device holds the tensors'
addresses. The first launch updates the moments and sums the squares of weights and updates of each piece; a small
one adds these up in the order of the pieces, for the trust ratio. The last computes the update again rather than read
one that the first would have to store. `grad_scale` and `found_inf` are read by the kernels alone.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.ops.lamb import reference

PIECE = 16384  # elements of a program
COLUMNS = 1024


def measure_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    grad_scale: Tensor,
    found_inf: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> Tensor:
    """Move the moments on, and return the squared norms of weights and updates, fp64 [2, tensors]."""
    settings = beta1, beta2, epsilon, weight_decay
    gradients = [gradient.contiguous() for gradient in gradients]
    if not _serves([*weights, *first, *second], gradients):
        return reference.measure_(weights, gradients, first, second, steps, grad_scale, found_inf, *settings)
    device = weights[0].device
    torch._foreach_add_(steps, (found_inf == 0).float())
    addresses = _addresses(weights, gradients, first, second)
    sizes, owners, first_pieces = _pieces(tuple(weight.numel() for weight in weights), device)
    num_tensors, num_pieces = len(weights), owners.numel()
    sums = torch.zeros(2, num_pieces, dtype=torch.float32, device=device)
    squares = torch.zeros(2, num_tensors, dtype=torch.float32, device=device)
    if num_pieces:
        _advance[(num_pieces,)](
            addresses, sizes, owners, first_pieces, _corrections(steps, beta1, beta2), sums, grad_scale, found_inf,
            num_tensors, num_pieces, epsilon, weight_decay, beta1, beta2, 1 - beta1, 1 - beta2,
            PIECE=PIECE, COLUMNS=COLUMNS,
        )  # fmt: skip
        _total[(num_tensors,)](sums, first_pieces, squares, num_tensors, num_pieces, COLUMNS=COLUMNS)
    return squares.double()


def apply_(
    weights: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    squares: Tensor,
    found_inf: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    trust: bool,
) -> None:
    """Move the weights by the moments as they are now, or none where `found_inf` is 1."""
    if not _serves([*weights, *first, *second], []):
        reference.apply_(
            weights, first, second, steps, squares, found_inf, lr, beta1, beta2, epsilon, weight_decay, trust
        )  # fmt: skip
        return
    sizes, owners, first_pieces = _pieces(tuple(weight.numel() for weight in weights), weights[0].device)
    if owners.numel() == 0:
        return
    norms = squares.sqrt()
    ratios = torch.where((norms > 0).all(dim=0), norms[0] / norms[1], 1.0) if trust else torch.ones_like(norms[0])
    _apply[(owners.numel(),)](
        _addresses(weights, first, second), sizes, owners, first_pieces, _corrections(steps, beta1, beta2),
        (lr * ratios).float(), found_inf, len(weights), epsilon, weight_decay, PIECE=PIECE, COLUMNS=COLUMNS,
    )  # fmt: skip


def _serves(state: list[Tensor], gradients: list[Tensor]) -> bool:
    if not state:
        return False
    return all(x.dtype == torch.float32 for x in (*state, *gradients)) and all(x.is_contiguous() for x in state)


def _addresses(*lists: list[Tensor]) -> Tensor:
    return _on_device([[x.data_ptr() for x in tensors] for tensors in lists], lists[0][0].device)


def _corrections(steps: list[Tensor], beta1: float, beta2: float) -> Tensor:
    counts = torch.stack(steps)
    return torch.stack([1 - beta1**counts, 1 - beta2**counts])


@functools.lru_cache(maxsize=16)
def _pieces(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes of the tensors, the tensor of each piece, and each tensor's first piece (at the end, the number of all)."""
    counts = torch.tensor([-(-size // PIECE) for size in sizes])
    owners = torch.arange(len(sizes)).repeat_interleave(counts)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return _on_device(list(sizes), device), _on_device(owners, device), _on_device(starts, device)


def _on_device(values: list[int] | list[list[int]] | Tensor, device: torch.device) -> Tensor:
    """Copied from page-locked memory, so that the host need not wait."""
    return torch.as_tensor(values).pin_memory().to(device, non_blocking=True)


@triton.jit
def _address(addresses, row, tensor, num_tensors):
    return tl.load(addresses + row * num_tensors + tensor).to(tl.pointer_type(tl.float32))


@triton.jit
def _update(w, m, v, corrections, tensor, num_tensors, epsilon, weight_decay):
    m = m / tl.load(corrections + tensor)
    v = v / tl.load(corrections + num_tensors + tensor)
    return m / (tl.sqrt(v) + epsilon) + weight_decay * w


@triton.jit
def _advance(
    addresses, sizes, owners, first_pieces, corrections, sums, grad_scale, found_inf, num_tensors, num_pieces,
    epsilon, weight_decay, beta1, beta2, rest1, rest2, PIECE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Move the moments on, and sum the squares of a piece's weights and of its update."""
    if tl.load(found_inf) == 0:
        piece = tl.program_id(0)
        tensor = tl.load(owners + piece)
        size = tl.load(sizes + tensor)
        weights = _address(addresses, 0, tensor, num_tensors)
        gradients = _address(addresses, 1, tensor, num_tensors)
        firsts = _address(addresses, 2, tensor, num_tensors)
        seconds = _address(addresses, 3, tensor, num_tensors)
        scale = tl.load(grad_scale)
        begin = (piece - tl.load(first_pieces + tensor)) * PIECE
        weight_squares = tl.zeros((COLUMNS,), tl.float32)
        update_squares = tl.zeros((COLUMNS,), tl.float32)
        for offset in range(0, PIECE, COLUMNS):
            at = begin + offset + tl.arange(0, COLUMNS)
            inside = at < size
            w = tl.load(weights + at, mask=inside, other=0.0)
            g = tl.load(gradients + at, mask=inside, other=0.0) / scale
            m = beta1 * tl.load(firsts + at, mask=inside, other=0.0) + rest1 * g
            v = beta2 * tl.load(seconds + at, mask=inside, other=0.0) + rest2 * g * g
            tl.store(firsts + at, m, mask=inside)
            tl.store(seconds + at, v, mask=inside)
            u = _update(w, m, v, corrections, tensor, num_tensors, epsilon, weight_decay)
            weight_squares += w * w
            update_squares += tl.where(inside, u * u, 0.0)
        tl.store(sums + piece, tl.sum(weight_squares, axis=0))
        tl.store(sums + num_pieces + piece, tl.sum(update_squares, axis=0))


@triton.jit
def _total(sums, first_pieces, squares, num_tensors, num_pieces, COLUMNS: tl.constexpr):
    """Add up the sums of a tensor's pieces, in their order."""
    tensor = tl.program_id(0)
    first_piece, last_piece = tl.load(first_pieces + tensor), tl.load(first_pieces + tensor + 1)
    for row in range(2):
        total = tl.zeros((COLUMNS,), tl.float32)
        for some in range(first_piece, last_piece, COLUMNS):
            pieces = some + tl.arange(0, COLUMNS)
            total += tl.load(sums + row * num_pieces + pieces, mask=pieces < last_piece, other=0.0)
        tl.store(squares + row * num_tensors + tensor, tl.sum(total, axis=0))


@triton.jit
def _apply(
    addresses, sizes, owners, first_pieces, corrections, rates, found_inf, num_tensors, epsilon, weight_decay,
    PIECE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Move the weights of a piece."""
    if tl.load(found_inf) == 0:
        piece = tl.program_id(0)
        tensor = tl.load(owners + piece)
        size = tl.load(sizes + tensor)
        weights = _address(addresses, 0, tensor, num_tensors)
        firsts = _address(addresses, 1, tensor, num_tensors)
        seconds = _address(addresses, 2, tensor, num_tensors)
        rate = tl.load(rates + tensor)
        begin = (piece - tl.load(first_pieces + tensor)) * PIECE
        for offset in range(0, PIECE, COLUMNS):
            at = begin + offset + tl.arange(0, COLUMNS)
            inside = at < size
            w = tl.load(weights + at, mask=inside, other=0.0)
            m = tl.load(firsts + at, mask=inside, other=0.0)
            v = tl.load(seconds + at, mask=inside, other=0.0)
            u = _update(w, m, v, corrections, tensor, num_tensors, epsilon, weight_decay)
            tl.store(weights + at, w - rate * u, mask=inside)
