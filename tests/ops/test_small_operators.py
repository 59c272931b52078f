"""Rotary positions, GeGLU, dropout, embedding and cross entropy against plain torch, with gradients."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import gelu

from oarlock import ops
from oarlock.ops.random_bits import keep_bits, keep_scale

FORMS = ("auto", "reference")
FP32 = {"rtol": 1e-5, "atol": 1e-5}


def check(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Equal outputs, and equal gradients of every input, for a loss that weighs each output differently."""
    results = []
    for function, dtype in ((ours, torch.float32), (plain, torch.float64)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        out = function(*leaves)
        weights = torch.linspace(0.5, 1.5, max(1, out.numel()), dtype=dtype)[: out.numel()].view(out.shape)
        (out * weights).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, **FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_tokens", (0, 1, 63))
def test_rotary_is_a_complex_rotation(form: str, num_tokens: int) -> None:
    angles = torch.randn(num_tokens, 4, dtype=torch.float64)

    def plain(qkv: Tensor) -> Tensor:
        pairs = (
            torch.complex(*qkv[:, :2].chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)[:, None, None]
        )
        return torch.cat([torch.cat([pairs.real, pairs.imag], dim=-1), qkv[:, 2:]], dim=1)

    def ours(qkv: Tensor) -> Tensor:
        return ops.rotary(qkv, angles.cos().float(), angles.sin().float(), form)

    check(ours, plain, torch.randn(num_tokens, 3, 2, 8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_tokens", (0, 1, 63))
def test_geglu(form: str, num_tokens: int) -> None:
    def plain(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return gelu(a) * b

    check(lambda x: ops.geglu(x, form), plain, torch.randn(num_tokens, 24) * 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_tokens", (0, 1, 63))
def test_dropout_add(form: str, num_tokens: int) -> None:
    keys = ops.row_keys(1, 2, torch.zeros(num_tokens, dtype=torch.int64), torch.arange(num_tokens))
    keep = (keep_bits(keys, 10, 0.25) != 0).double() * keep_scale(0.25)
    check(
        lambda x, residual: ops.dropout_add(x, residual, keys, 0.25, form),
        lambda x, residual: residual + x * keep,
        torch.randn(num_tokens, 10),
        torch.randn(num_tokens, 10),
    )


@pytest.mark.parametrize("form", FORMS)
def test_embedding(form: str) -> None:
    ids = torch.randint(7, (63,))
    check(lambda weight: ops.embedding(weight, ids, form), lambda weight: weight[ids], torch.randn(7, 5))


def test_embedding_sums_its_gradient_in_fp32() -> None:
    weight = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    ops.embedding(weight, torch.zeros(5000, dtype=torch.int64)).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == torch.tensor(5000.0).bfloat16().item()  # bf16 sums stop growing at 256


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_targets", (0, 1, 63))
def test_cross_entropy_over_the_real_vocabulary(form: str, num_targets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["oarlock.ops.cross_entropy.reference"], "_CHUNK_BYTES", 20 * 4 * 16
    )  # several chunks
    targets = torch.randint(13, (num_targets,))

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.cross_entropy(hidden, weight, bias, targets, 13, 0.125, form)

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = (hidden @ weight.T + bias)[:, :13]
        return torch_cross_entropy(logits, targets, reduction="sum") * 0.125

    check(ours, plain, torch.randn(num_targets, 8), torch.randn(16, 8), torch.randn(16))


def test_hits_count_the_likeliest_real_id() -> None:
    hidden, weight = torch.eye(4), torch.eye(4)
    weight[3, 0] = 9.0  # an id beyond the vocabulary would win
    loss, hits = ops.cross_entropy_and_hits(hidden[:3], weight, torch.zeros(4), torch.tensor([0, 1, 1]), 3)
    assert hits.item() == 2
    assert loss.item() == pytest.approx(
        float(torch_cross_entropy(torch.eye(3), torch.tensor([0, 1, 1]), reduction="sum")), rel=1e-6
    )


@pytest.mark.parametrize("namespace", ("oarlock", "oarlock_reference"))
def test_registration(namespace: str) -> None:
    library = getattr(torch.ops, namespace)
    x = torch.randn(6, 8)
    ids = torch.tensor([0, 2, 2, 1, 5, 5])
    calls = {
        "geglu_forward": (x,),
        "geglu_backward": (torch.randn(6, 4), x),
        "dropout_add_forward": (x, x, (x > 0).short().neg(), 1.25),
        "dropout_add_backward": (x, (x > 0).short().neg(), 1.25),
        "embedding_forward": (x, ids),
        "embedding_backward": (x, ids, 9),
        "rotary_forward": (torch.randn(6, 3, 2, 8), torch.randn(6, 4), torch.randn(6, 4)),
        "cross_entropy_forward": (x, torch.randn(16, 8), torch.randn(16), ids, 13, 0.5, True),
    }
    for name, arguments in calls.items():
        torch.library.opcheck(getattr(library, name).default, arguments)


def test_unknown_forms_and_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="attention, cross_entropy"):
        ops.check_choices({"attenshun": "auto"}, ops.OPERATORS)
    with pytest.raises(ValueError, match="auto, reference"):
        ops.check_choices({"attention": "fastest"}, ops.OPERATORS)
