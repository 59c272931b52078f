"""Every form against dense masked attention in fp64, and what a pack must never do."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from oarlock.ops import attention, native, row_keys, serving_form
from oarlock.ops.attention import grouped
from oarlock.ops.attention.cases import CASES
from oarlock.ops.compare import excess_of
from oarlock.ops.random_bits import head_keys, keep_bits, keep_scale

FORMS = ("auto", "reference")
WINDOWS = (None, 3, 64)
LENGTHS = (1, 63, 512, 7, 130, 64, 65, 0, 200)
NUM_HEADS, HEAD_SIZE = 3, 16
SIZES = (16, 32, 64, 80, 128)
FP32 = {"rtol": 1e-5, "atol": 1e-5}
BF16 = CASES.tolerances[torch.bfloat16]
# What a test of "no bit differs" runs on: products of torch, and the compiled kernel where there is one.
TYPES_AND_SIZES = ((torch.float32, 16), (torch.bfloat16, 32), (torch.bfloat16, 64))


def bounds(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def token_keys(lengths: tuple[int, ...]) -> Tensor:
    samples = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    return row_keys(torch.tensor([11]), 5, samples, positions)


def random_qkv(num_tokens: int, seed: int = 0, size: int = HEAD_SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, 3, NUM_HEADS, size, generator=generator)


def forward_and_gradient(
    qkv: Tensor, lengths: tuple[int, ...], form: str, window: int | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    qkv = qkv.clone().requires_grad_()
    keys = token_keys(lengths)
    out = attention(qkv, bounds(lengths), max(lengths), window=window, dropout=dropout, keys_T=keys, form=form)
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
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
    p = ((q @ k.mT) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf")).softmax(-1)
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
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dropout", (0.0, 0.1))
def test_bf16_stays_near_dense_masked_attention(size: int, window: int | None, dropout: float) -> None:
    qkv = random_qkv(sum(LENGTHS), size=size).bfloat16()
    for ours, theirs in zip(
        forward_and_gradient(qkv, LENGTHS, "auto", window, dropout), dense(qkv, LENGTHS, window, dropout), strict=True
    ):
        # A few roundings of 2^-9 each, of elements that differ much in size.
        assert (ours - theirs).norm() < 1e-2 * theirs.norm()
        assert excess_of(ours, theirs, BF16) < 1


@pytest.mark.parametrize("window", WINDOWS)
def test_bf16_stays_near_the_reference(window: int | None) -> None:
    qkv = random_qkv(sum(LENGTHS)).bfloat16()
    ours = forward_and_gradient(qkv, LENGTHS, "auto", window)
    plain = forward_and_gradient(qkv.float(), LENGTHS, "reference", window)
    for a, b in zip(ours, plain, strict=True):
        assert excess_of(a, b, BF16) < 1


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("steepness", (4.0, 30.0))
def test_scores_may_be_larger_than_an_exponential(window: int | None, steepness: float) -> None:
    """Softmax is the same with a number added to every score of a row."""
    qkv = random_qkv(sum(LENGTHS), size=32)
    qkv[:, :2] *= steepness
    exact = dense(qkv, LENGTHS, window, 0.0)[0]
    torch.testing.assert_close(
        forward_and_gradient(qkv, LENGTHS, "auto", window)[0].double(), exact, rtol=1e-3, atol=1e-3
    )
    if native.multiplies_tiles():
        rounded = qkv.bfloat16()
        out = forward_and_gradient(rounded, LENGTHS, "auto", window)[0]
        assert excess_of(out, dense(rounded, LENGTHS, window, 0.0)[0], BF16) < 1


@pytest.mark.parametrize(("dtype", "size"), TYPES_AND_SIZES)
def test_logarithms_of_sums(dtype: torch.dtype, size: int) -> None:
    qkv = random_qkv(sum(LENGTHS), size=size).to(dtype)
    geometry = (bounds(LENGTHS), max(LENGTHS), 64, size**-0.5, token_keys(LENGTHS), 0.1)
    expected = torch.ops.oarlock_reference.attention_forward(qkv.float(), *geometry)[1]
    assert expected.shape == (NUM_HEADS, sum(LENGTHS))
    tolerance = FP32 if dtype == torch.float32 else {"rtol": 1e-3, "atol": 4e-3}
    found = torch.ops.oarlock.attention_forward(qkv, *geometry)[1]
    if dtype == torch.float32 or native.multiplies_tiles():
        torch.testing.assert_close(found, expected, **tolerance)


def test_dropout_decides_alike_in_every_form() -> None:
    """With values that are powers of 4, the output tells which of 8 keys were kept."""
    size, length = 32, 8
    qkv = torch.zeros(length, 3, NUM_HEADS, size)
    qkv[:, 2] = 4.0 ** torch.arange(length)[:, None, None]
    keys, scale = token_keys((length,)), keep_scale(0.5) / length
    bits = keep_bits(head_keys(keys, NUM_HEADS).flatten(), length, 0.5).view(length, NUM_HEADS, length) != 0
    expected = (bits * 4.0 ** torch.arange(length)).sum(-1) * scale
    for form in FORMS:
        for dtype in (torch.float32, torch.bfloat16):
            out = attention(qkv.to(dtype), bounds((length,)), length, dropout=0.5, keys_T=keys, form=form)
            torch.testing.assert_close(out[..., 0].float(), expected, rtol=4e-3, atol=0)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "size"), TYPES_AND_SIZES)
@pytest.mark.parametrize("window", WINDOWS)
def test_does_not_depend_on_the_number_of_threads(
    dtype: torch.dtype, size: int, window: int | None, threads: Callable[[int], None]
) -> None:
    qkv = random_qkv(sum(LENGTHS), size=size).to(dtype)
    found = []
    for count in (1, 2):
        threads(count)
        found.append(forward_and_gradient(qkv, LENGTHS, "auto", window, 0.1))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_what_the_kernel_does_not_take_goes_to_products_of_torch() -> None:
    qkv = random_qkv(sum(LENGTHS), size=136).bfloat16()
    geometry = (bounds(LENGTHS), max(LENGTHS), -1, 136**-0.5, torch.empty(0, dtype=torch.int64), 0.0)
    ours, expected = torch.ops.oarlock.attention_forward(qkv, *geometry), grouped.forward(qkv, *geometry)
    assert torch.equal(ours[0], expected[0])


def test_says_which_form_serves() -> None:
    compiled = native.multiplies_tiles()
    form = f"compiled ({native.level()})" if compiled else "grouped products"
    assert serving_form("attention", "auto", torch.device("cpu")) == form
    assert serving_form("attention", "reference", torch.device("cpu")) == "reference"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("dtype", "size"), TYPES_AND_SIZES)
def test_c30_a_sequence_never_reads_its_neighbour(form: str, window: int | None, dtype: torch.dtype, size: int) -> None:
    lengths = (70, 65, 70)
    qkv = random_qkv(sum(lengths), size=size).to(dtype)
    other = qkv.clone()
    other[70:135] = random_qkv(65, seed=9, size=size).to(dtype) * 50
    for before, after in zip(
        forward_and_gradient(qkv, lengths, form, window, 0.1),
        forward_and_gradient(other, lengths, form, window, 0.1),
        strict=True,
    ):
        assert torch.equal(before[:70], after[:70])
        assert torch.equal(before[135:], after[135:])
        assert not torch.equal(before[70:135], after[70:135])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "size"), TYPES_AND_SIZES)
def test_c30_nan_stays_in_its_sequence(form: str, dtype: torch.dtype, size: int) -> None:
    """On one thread the buffers that held NaN are the next sequence's too."""
    lengths = (70, 65, 7, 70)
    qkv = random_qkv(sum(lengths), size=size).to(dtype)
    broken = qkv.clone()
    broken[70:135] = float("nan")
    whole, partly = (forward_and_gradient(x, lengths, form, dropout=0.1) for x in (qkv, broken))
    for before, after in zip(whole, partly, strict=True):
        assert torch.equal(before[:70], after[:70])
        assert torch.equal(before[135:], after[135:])
        assert after[70:135].isnan().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "size"), TYPES_AND_SIZES)
def test_c30_a_sequence_does_not_depend_on_its_company(form: str, dtype: torch.dtype, size: int) -> None:
    qkv = random_qkv(300, size=size).to(dtype)
    alone = forward_and_gradient(qkv[:70], (70,), form, dropout=0.1)
    packed = forward_and_gradient(qkv, (70, 72, 150, 8), form, dropout=0.1)
    for a, b in zip(alone, packed, strict=True):
        assert torch.equal(a, b[:70])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_an_empty_pack(form: str, dtype: torch.dtype) -> None:
    out, gradient = forward_and_gradient(random_qkv(0).to(dtype), (0,), form)
    assert out.shape == (0, NUM_HEADS, HEAD_SIZE)
    assert gradient.shape == (0, 3, NUM_HEADS, HEAD_SIZE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("dtype", "size"), TYPES_AND_SIZES)
def test_reads_no_uninitialised_memory(form: str, window: int | None, dtype: torch.dtype, size: int) -> None:
    """Deterministic mode fills fresh memory with NaN."""
    qkv = random_qkv(sum(LENGTHS), size=size).to(dtype)
    clean = forward_and_gradient(qkv, LENGTHS, form, window, 0.1)
    torch.use_deterministic_algorithms(True)
    try:
        poisoned = forward_and_gradient(qkv, LENGTHS, form, window, 0.1)
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(clean, poisoned, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_takes_a_view(form: str, dtype: torch.dtype) -> None:
    wide = torch.randn(100, 3, NUM_HEADS, 2 * HEAD_SIZE).to(dtype)
    view = wide[..., ::2]
    for a, b in zip(
        forward_and_gradient(view, (40, 60), form),
        forward_and_gradient(view.contiguous(), (40, 60), form),
        strict=True,
    ):
        torch.testing.assert_close(a, b, **FP32)


@pytest.mark.parametrize("namespace", ("oarlock", "oarlock_reference"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_registration(namespace: str, dtype: torch.dtype) -> None:
    operator = getattr(torch.ops, namespace).attention_forward.default
    arguments = (random_qkv(50).to(dtype), bounds((20, 30)), 30, -1, 0.25, torch.empty(0, dtype=torch.int64), 0.0)
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_is_captured_whole(form: str, dtype: torch.dtype) -> None:
    lengths = (20, 30)
    compiled = torch.compile(forward_only, fullgraph=True, backend="aot_eager")
    qkv = random_qkv(50).to(dtype)
    assert torch.equal(compiled(qkv, bounds(lengths), form), forward_only(qkv, bounds(lengths), form))


def forward_only(qkv: Tensor, cu_seqlens: Tensor, form: str) -> Tensor:
    return attention(qkv, cu_seqlens, 30, window=4, form=form)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("lies", ((0, 4, 400), (0, 6, 4, 8), (0, 4), (-4, 8), (8,), ()))
def test_boundaries_that_are_not_those_of_the_tokens_are_refused(lies: tuple[int, ...], dtype: torch.dtype) -> None:
    qkv = random_qkv(8, size=16).to(dtype)
    with pytest.raises(ValueError, match="cu_seqlens must ascend from 0 to the 8 tokens"):
        attention(qkv, torch.tensor(lies, dtype=torch.int32), 8)


def test_what_is_no_attention_is_refused() -> None:
    qkv, whole = random_qkv(8, size=16), torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"not \(8, 3, 3\) and None"):
        attention(qkv[:, :, :, 0], whole, 8)
    with pytest.raises(ValueError, match="and -3"):
        attention(qkv, whole, 8, window=-3)
    with pytest.raises(ValueError, match="a key of each of the 8 tokens"):
        attention(qkv, whole, 8, dropout=0.5, keys_T=torch.zeros(3, dtype=torch.int64))
