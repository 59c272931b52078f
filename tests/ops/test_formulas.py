"""What operators compute, against formulas written another way, in fp64 where that can be."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import gelu, layer_norm

from oarlock import ops
from oarlock.ops.library import FORMS
from oarlock.ops.random_bits import keep_bits, keep_scale

FP32 = {"rtol": 1e-5, "atol": 1e-5}
every_form = pytest.mark.parametrize("form", FORMS)


def check(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Equal outputs, and equal gradients of every input, for a loss that weighs each output differently."""
    results = []
    for function, dtype in ((ours, torch.float32), (plain, torch.float64)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        out = function(*leaves)
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=dtype).view(out.shape)
        (out * weights).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, **FP32)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys(num_tokens: int) -> Tensor:
    return ops.row_keys(torch.tensor([1]), 2, torch.zeros(num_tokens, dtype=torch.int64), torch.arange(num_tokens))


@every_form
def test_rotary_is_a_complex_rotation(form: str) -> None:
    angles = normal(50, 4).double()
    positions = torch.arange(63) * 7 % 50

    def plain(qkv: Tensor) -> Tensor:
        turn = torch.polar(torch.ones_like(angles), angles)[positions][:, None, None]
        pairs = torch.complex(*qkv[:, :2].chunk(2, dim=-1)) * turn
        return torch.cat([torch.cat([pairs.real, pairs.imag], dim=-1), qkv[:, 2:]], dim=1)

    def ours(qkv: Tensor) -> Tensor:
        return ops.rotary(qkv, positions, angles.cos().float(), angles.sin().float(), form)

    check(ours, plain, normal(63, 3, 2, 8))


@every_form
def test_rotary_attends_by_distance_alone(form: str) -> None:
    """The product of a query and a key does not change when both positions move by as much (Su et al., section 3.2)."""
    angles = torch.arange(60)[:, None] * torch.tensor([1.0, 0.3, 0.05, 0.001])
    qkv = normal(2, 3, 1, 8)

    def score(first: int, second: int) -> float:
        turned = ops.rotary(qkv, torch.tensor([first, second]), angles.cos(), angles.sin(), form)
        return float(turned[0, 0, 0] @ turned[1, 1, 0])

    assert score(3, 8) == pytest.approx(score(40, 45), abs=1e-5)
    assert score(3, 8) != pytest.approx(score(40, 46), abs=1e-3)


@every_form
def test_geglu_and_bias_gelu(form: str) -> None:
    check(lambda x: ops.geglu(x, form), lambda x: gelu(x[:, :12]) * x[:, 12:], normal(63, 24) * 3)
    for tanh in (False, True):
        check(
            lambda x, bias, tanh=tanh: ops.bias_gelu(x, bias, tanh, form),
            lambda x, bias, tanh=tanh: gelu(x + bias, approximate="tanh" if tanh else "none"),
            normal(63, 24) * 3,
            normal(24, seed=1),
        )


@every_form
@pytest.mark.parametrize("dropout", (0.0, 0.25))
def test_add_norm_is_layer_norm_of_a_sum_with_dropout(form: str, dropout: float) -> None:
    keep = (keep_bits(keys(63), 10, dropout) != 0).double() * keep_scale(dropout)

    def ours(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat(
            ops.add_norm(x, residual, weight, bias, 1e-5, dropout=dropout, keys_T=keys(63), form=form), dim=-1
        )

    def plain(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total = residual + x * keep
        return torch.cat([layer_norm(total, (10,), weight, bias, 1e-5), total], dim=-1)

    check(ours, plain, normal(63, 10), normal(63, 10, seed=1), normal(10, seed=2), normal(10, seed=3))


@every_form
def test_embed_norm_is_layer_norm_of_a_sum_of_rows(form: str) -> None:
    words, places = torch.arange(63) * 5 % 7, torch.arange(63) % 4
    keep = (keep_bits(keys(63), 10, 0.25) != 0).double() * keep_scale(0.25)

    def ours(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.embed_norm([a, b], [words, places], weight, bias, 1e-5, dropout=0.25, keys_T=keys(63), form=form)

    def plain(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(a[words] + b[places], (10,), weight, bias, 1e-5) * keep

    check(ours, plain, normal(7, 10), normal(4, 10, seed=1), normal(10, seed=2), normal(10, seed=3))


@every_form
def test_gradients_of_weights_are_summed_in_fp32(form: str) -> None:
    """Sums of ones in bf16 stop growing at 256."""
    weight = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    for parameter in (weight, bias):
        parameter.grad_dtype = torch.float32
    ops.linear(torch.ones(5003, 1, dtype=torch.bfloat16), weight, bias, form).backward(
        torch.ones(5003, 1, dtype=torch.bfloat16)
    )
    assert (weight.grad, bias.grad) == (torch.tensor([[5003.0]]), torch.tensor([5003.0]))


@every_form
def test_gradients_of_rows_are_summed_in_fp32(form: str) -> None:
    table = normal(1, 2).bfloat16().requires_grad_()
    weight = torch.ones(2, dtype=torch.bfloat16)
    table.grad_dtype = torch.float32
    rows = torch.zeros(5003, dtype=torch.int64)
    sent = torch.ones(5003, 2, dtype=torch.bfloat16)
    sent[1:, 1] = -1.0
    ops.embed_norm([table], [rows], weight, None, 1.0, form=form).backward(sent)
    many = table.grad
    table.grad = None
    ops.embed_norm([table], [rows[:1]], weight, None, 1.0, form=form).backward(sent[1:2])
    one = table.grad
    assert many is not None
    assert one is not None
    torch.testing.assert_close(many, 5002 * one, rtol=3e-4, atol=0.0)  # 5,002 roundings of fp32, all one way


@every_form
def test_cross_entropy_over_the_real_vocabulary(form: str) -> None:
    targets = torch.arange(63) * 5 % 13

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.cross_entropy(hidden, weight, bias, targets, 13, 8, form)

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch_cross_entropy((hidden @ weight.T + bias)[:, :13], targets, reduction="sum") / 8

    check(ours, plain, normal(63, 8), normal(16, 8, seed=1), normal(16, seed=2))


@every_form
def test_cross_entropy_in_several_chunks(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (normal(63, 8), normal(16, 8, seed=1), normal(16, seed=2), torch.arange(63) % 13, 13, 8, form)
    whole = ops.cross_entropy(*inputs)
    for module in ("reference", "cpu"):
        monkeypatch.setattr(sys.modules[f"oarlock.ops.cross_entropy.{module}"], "CHUNK_BYTES", 20 * 4 * 16)
    torch.testing.assert_close(ops.cross_entropy(*inputs), whole, **FP32)


@every_form
def test_hits_count_the_likeliest_real_id(form: str) -> None:
    hidden, weight = torch.eye(4), torch.eye(4)
    weight[3, 0] = 9.0  # an id beyond the vocabulary would win
    targets = torch.tensor([0, 1, 1])
    loss, hits = ops.cross_entropy_and_hits(hidden[:3], weight, torch.zeros(4), targets, 3, form)
    assert hits.item() == 2
    expected = torch_cross_entropy(torch.eye(3), targets, reduction="sum")
    assert loss.item() == pytest.approx(float(expected), rel=1e-6)


@every_form
def test_gradient_norm_is_that_of_one_vector(form: str) -> None:
    tensors = [normal(3, 5), normal(7, seed=1), normal(2, 2, 2, seed=2)]
    expected = torch.cat([x.flatten() for x in tensors]).double().norm()
    assert float(ops.gradient_norm(tensors, form)) == pytest.approx(float(expected), rel=1e-6)


def test_unknown_forms_and_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="attention, bias_gelu, cross_entropy"):
        ops.check_choices({"attenshun": "auto"}, ops.OPERATORS)
    with pytest.raises(ValueError, match="auto, reference"):
        ops.check_choices({"attention": "fastest"}, ops.OPERATORS)
