"""The parts of a Transformer layer.

Suffixes: T tokens, D hidden, H heads, d head size, I intermediate.
"""

from collections.abc import Callable

from torch import Tensor, nn

from oarlock import ops
from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.model.embeddings import RotaryTable
from oarlock.parallel import Cut, Tokens


class Linear(nn.Linear):
    """A linear layer on packed tokens. `put_off` may be set to put the gradients of its weights off (`ops.linear`)."""

    put_off: Callable[[Callable[[], None]], None] | None = None

    def __init__(self, config: ModelConfig, num_inputs: int, num_outputs: int, bias: bool) -> None:
        super().__init__(num_inputs, num_outputs, bias=bias)
        self.form = config.ops.get("linear", "auto")

    def forward(self, x_TD: Tensor) -> Tensor:
        """`x W^T + b`."""
        return ops.linear(x_TD, self.weight, self.bias, self.form, self.put_off)

    def without_bias(self, x_TD: Tensor) -> Tensor:
        """`x W^T`, where the operator that follows adds the bias."""
        return ops.linear(x_TD, self.weight, None, self.form, self.put_off)


class AddNorm(nn.LayerNorm):
    """Adds what a sub-layer computed, after dropout, to the residual stream, and normalises the sum."""

    def __init__(self, config: ModelConfig, dropout: Dropout, bias: bool) -> None:
        super().__init__(config.hidden_size, config.norm_epsilon, bias=bias)
        self.dropout = dropout
        self.form = config.ops.get("add_norm", "auto")

    def share_tokens(self, tokens: Tokens) -> list[str]:
        """Work on some of the tokens."""
        self.dropout.tokens = tokens
        return [name for name, _ in self.named_parameters()]

    def forward(  # type: ignore[override]
        self, update_TD: Tensor, residual_TD: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The normalised sum and the sum, both [T, D]."""
        return ops.add_norm(
            update_TD, residual_TD, self.weight, self.bias, self.eps, **self.dropout(batch), form=self.form
        )


class SelfAttention(nn.Module):
    """Multi-head self-attention inside each sequence of the pack.

    `window` is how many tokens to each side a token sees (None: all); `rotary` turns queries and keys by position.
    """

    def __init__(
        self, config: ModelConfig, *, bias: bool, window: int | None, rotary: RotaryTable | None, dropout: Dropout
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_heads, config.hidden_size // config.num_heads
        self.window, self.rotary, self.dropout = window, rotary, dropout
        self.form = config.ops.get("attention", "auto")
        self.rotary_form = config.ops.get("rotary", "auto")
        self.qkv = Linear(config, config.hidden_size, 3 * config.hidden_size, bias)
        self.out = Linear(config, config.hidden_size, config.hidden_size, bias)

    def split(self, index: int, count: int) -> dict[str, Cut]:
        """Become one of several parts: some of the heads."""
        self.num_heads //= count
        self.dropout.first_head = index * self.num_heads
        return {"qkv": Cut(0, groups=3), "out": Cut(1)}

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """Attention output before the residual sum, [T, D]."""
        qkv_T3Hd = self.qkv(x_TD).unflatten(1, (3, self.num_heads, self.head_size))
        if self.rotary is not None:
            qkv_T3Hd = ops.rotary(qkv_T3Hd, batch.positions_T, self.rotary.cos, self.rotary.sin, self.rotary_form)
        mixed_THd = ops.attention(
            qkv_T3Hd,
            batch.cu_seqlens_S1,
            batch.max_seqlen,
            window=self.window,
            **self.dropout(batch),
            form=self.form,
        )
        out: Tensor = self.out(mixed_THd.flatten(1))
        return out


class GeluMLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def split(self, index: int, count: int) -> dict[str, Cut]:
        """Become one of several parts: some of the intermediate features."""
        return {"up": Cut(0), "down": Cut(1)}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.form = config.ops.get("bias_gelu", "auto")
        self.up = Linear(config, config.hidden_size, config.intermediate_size, bias=True)
        self.down = Linear(config, config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D]."""
        out: Tensor = self.down(ops.bias_gelu(self.up.without_bias(x_TD), self.up.bias, form=self.form))
        return out


class GegluMLP(nn.Module):
    """A gated linear unit with GELU, without biases."""

    def split(self, index: int, count: int) -> dict[str, Cut]:
        """Become one of several parts: some of the intermediate features."""
        return {"up": Cut(0, groups=2), "down": Cut(1)}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.form = config.ops.get("geglu", "auto")
        self.up = Linear(config, config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = Linear(config, config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D]."""
        out: Tensor = self.down(ops.geglu(self.up(x_TD), self.form))
        return out


class PostNormLayer(nn.Module):
    """Sub-layer, residual sum, then LayerNorm: the order of the original Transformer (BERT, RoBERTa)."""

    def __init__(self, attention: SelfAttention, attention_norm: AddNorm, mlp: nn.Module, mlp_norm: AddNorm) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, attention_norm
        self.mlp, self.mlp_norm = mlp, mlp_norm

    def forward(self, x_TD: Tensor, update_TD: Tensor | None, batch: Batch) -> tuple[Tensor, None]:
        """Hidden states [T, D], to which nothing is left to be added."""
        assert update_TD is None
        x_TD, _ = self.attention_norm(self.attention(x_TD, batch), x_TD, batch)
        x_TD, _ = self.mlp_norm(self.mlp(x_TD), x_TD, batch)
        return x_TD, None


class PreNormLayer(nn.Module):
    """LayerNorm, sub-layer, then residual sum (ModernBERT).

    What the last sub-layer computed is handed on beside the residual stream, for the next norm to add. The first layer
    has no norm of its own (`attention_norm` None): it reads what the embeddings have normalised already.
    """

    def __init__(
        self, attention_norm: AddNorm | None, attention: SelfAttention, mlp_norm: AddNorm, mlp: nn.Module
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(self, x_TD: Tensor, update_TD: Tensor | None, batch: Batch) -> tuple[Tensor, Tensor]:
        """The residual stream and what is to be added to it, both [T, D]."""
        normed_TD = x_TD
        if self.attention_norm is not None:
            normed_TD, x_TD = self.attention_norm(update_TD, x_TD, batch)
        normed_TD, x_TD = self.mlp_norm(self.attention(normed_TD, batch), x_TD, batch)
        return x_TD, self.mlp(normed_TD)
