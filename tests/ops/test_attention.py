"""Every form against dense masked attention in fp64, and what a pack must never do."""

import pytest
import torch
from torch import Tensor

from oarlock.ops import attention, row_keys
from oarlock.ops.random_bits import head_keys, keep_bits, keep_scale

FORMS = ("auto", "reference")
WINDOWS = (None, 3, 64)
LENGTHS = (1, 63, 512, 7, 130, 64, 65, 0, 200)
NUM_HEADS, HEAD_SIZE = 3, 16
FP32 = {"rtol": 1e-5, "atol": 1e-5}
BF16 = {"rtol": 2e-2, "atol": 2e-2}


def bounds(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def token_keys(lengths: tuple[int, ...]) -> Tensor:
    samples = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    return row_keys(11, 5, samples, positions)


def random_qkv(num_tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, 3, NUM_HEADS, HEAD_SIZE, generator=generator)


def forward_and_gradient(
    qkv: Tensor, lengths: tuple[int, ...], form: str, window: int | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    qkv = qkv.clone().requires_grad_()
    keys = token_keys(lengths)
    out = attention(qkv, bounds(lengths), max(lengths), window=window, dropout=dropout, keys_T=keys, form=form)
    weights = torch.linspace(-1, 1, HEAD_SIZE, dtype=out.dtype)
    (out * out * weights + out).sum().backward()
    assert qkv.grad is not None
    return out.detach(), qkv.grad


def dense(qkv: Tensor, lengths: tuple[int, ...], window: int | None, dropout: float) -> tuple[Tensor, Tensor]:
    """One T x T score matrix with everything between sequences masked, in fp64, by autograd."""
    qkv = qkv.double().requires_grad_()
    q, k, v = qkv.permute(1, 2, 0, 3)
    sequence = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    seen = sequence[:, None] == sequence[None, :]
    if window is not None:
        index = torch.arange(len(sequence))
        seen &= (index[:, None] - index[None, :]).abs() <= window
    p = ((q @ k.mT) / HEAD_SIZE**0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    if dropout:
        keep = torch.zeros_like(p)
        start = 0
        keys = head_keys(token_keys(lengths), NUM_HEADS)
        for n in lengths:
            rows = keys[start : start + n].T.flatten()
            keep[:, start : start + n, start : start + n] = (keep_bits(rows, n, dropout) != 0).view(NUM_HEADS, n, n)
            start += n
        p = p * keep * keep_scale(dropout)
    out = (p @ v).transpose(0, 1)
    weights = torch.linspace(-1, 1, HEAD_SIZE, dtype=out.dtype)
    (out * out * weights + out).sum().backward()
    assert qkv.grad is not None
    return out.detach(), qkv.grad


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dropout", (0.0, 0.1))
def test_equals_dense_masked_attention(form: str, window: int | None, dropout: float) -> None:
    qkv = random_qkv(sum(LENGTHS))
    for ours, theirs in zip(
        forward_and_gradient(qkv, LENGTHS, form, window, dropout), dense(qkv, LENGTHS, window, dropout), strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs, **FP32)


@pytest.mark.parametrize("window", WINDOWS)
def test_bf16_stays_near_the_reference(window: int | None) -> None:
    qkv = random_qkv(sum(LENGTHS)).bfloat16()
    ours = forward_and_gradient(qkv, LENGTHS, "auto", window)
    plain = forward_and_gradient(qkv.float(), LENGTHS, "reference", window)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.float(), b, **BF16)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_c30_a_sequence_never_reads_its_neighbour(form: str, window: int | None, dtype: torch.dtype) -> None:
    lengths = (70, 65, 70)
    qkv = random_qkv(sum(lengths)).to(dtype)
    other = qkv.clone()
    other[70:135] = random_qkv(65, seed=9).to(dtype) * 50
    for before, after in zip(
        forward_and_gradient(qkv, lengths, form, window, 0.1),
        forward_and_gradient(other, lengths, form, window, 0.1),
        strict=True,
    ):
        assert torch.equal(before[:70], after[:70])
        assert torch.equal(before[135:], after[135:])
        assert not torch.equal(before[70:135], after[70:135])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_c30_a_sequence_does_not_depend_on_its_company(form: str, dtype: torch.dtype) -> None:
    qkv = random_qkv(300).to(dtype)
    alone = forward_and_gradient(qkv[:70], (70,), form, dropout=0.1)
    packed = forward_and_gradient(qkv, (70, 72, 150, 8), form, dropout=0.1)
    for a, b in zip(alone, packed, strict=True):
        assert torch.equal(a, b[:70])


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_pack(form: str) -> None:
    out, gradient = forward_and_gradient(random_qkv(0), (0,), form)
    assert out.shape == (0, NUM_HEADS, HEAD_SIZE)
    assert gradient.shape == (0, 3, NUM_HEADS, HEAD_SIZE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", WINDOWS)
def test_reads_no_uninitialised_memory(form: str, window: int | None) -> None:
    """Deterministic mode fills fresh memory with NaN."""
    clean = forward_and_gradient(random_qkv(sum(LENGTHS)), LENGTHS, form, window, 0.1)
    torch.use_deterministic_algorithms(True)
    try:
        poisoned = forward_and_gradient(random_qkv(sum(LENGTHS)), LENGTHS, form, window, 0.1)
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(clean, poisoned, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_takes_a_view(form: str) -> None:
    wide = torch.randn(100, 3, NUM_HEADS, 2 * HEAD_SIZE)
    view = wide[..., ::2]
    for a, b in zip(
        forward_and_gradient(view, (40, 60), form),
        forward_and_gradient(view.contiguous(), (40, 60), form),
        strict=True,
    ):
        torch.testing.assert_close(a, b, **FP32)


@pytest.mark.parametrize("namespace", ("oarlock", "oarlock_reference"))
def test_registration(namespace: str) -> None:
    operator = getattr(torch.ops, namespace).attention_forward.default
    arguments = (random_qkv(50), bounds((20, 30)), 30, -1, 0.25, torch.empty(0, dtype=torch.int64), 0.0)
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("form", FORMS)
def test_is_captured_whole(form: str) -> None:
    lengths = (20, 30)
    compiled = torch.compile(forward_only, fullgraph=True, backend="aot_eager")
    qkv = random_qkv(50)
    assert torch.equal(compiled(qkv, bounds(lengths), form), forward_only(qkv, bounds(lengths), form))


def forward_only(qkv: Tensor, cu_seqlens: Tensor, form: str) -> Tensor:
    return attention(qkv, cu_seqlens, 30, window=4, form=form)
