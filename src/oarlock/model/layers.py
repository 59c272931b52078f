"""The parts of a Transformer layer.

Suffixes: T tokens, D hidden, H heads, d head size, I intermediate.
"""

from torch import Tensor, nn
from torch.nn.functional import gelu

from oarlock import ops
from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.model.embeddings import RotaryTable


class SelfAttention(nn.Module):
    """Multi-head self-attention inside each sequence of the pack.

    `window` is how many tokens to each side a token sees (None: all); `rotary` turns queries and keys by position.
    """

    def __init__(
        self, config: ModelConfig, *, bias: bool, window: int | None, rotary: RotaryTable | None, dropout: Dropout
    ) -> None:
        super().__init__()
        self.num_heads, self.window, self.rotary, self.dropout = config.num_heads, window, rotary, dropout
        self.form = config.ops.get("attention", "auto")
        self.rotary_form = config.ops.get("rotary", "auto")
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=bias)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """Attention output before the residual sum, [T, D]."""
        qkv_T3Hd = self.qkv(x_TD).view(x_TD.shape[0], 3, self.num_heads, -1)
        if self.rotary is not None:
            cos_Th, sin_Th = self.rotary(batch.positions_T)
            qkv_T3Hd = ops.rotary(qkv_T3Hd, cos_Th.to(x_TD.dtype), sin_Th.to(x_TD.dtype), self.rotary_form)
        active = self.dropout.active
        mixed_THd = ops.attention(
            qkv_T3Hd,
            batch.cu_seqlens_S1,
            batch.max_seqlen,
            window=self.window,
            dropout=self.dropout.probability if active else 0.0,
            keys_T=self.dropout.keys(batch) if active else None,
            form=self.form,
        )
        out: Tensor = self.out(mixed_THd.flatten(1))
        return out


class GeluMLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D]."""
        out: Tensor = self.down(gelu(self.up(x_TD)))
        return out


class GegluMLP(nn.Module):
    """A gated linear unit with GELU, without biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.form = config.ops.get("geglu", "auto")
        self.up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D]."""
        out: Tensor = self.down(ops.geglu(self.up(x_TD), self.form))
        return out


class PostNormLayer(nn.Module):
    """Sub-layer, residual sum, then LayerNorm: the order of the original Transformer (BERT, RoBERTa)."""

    def __init__(self, config: ModelConfig, attention: nn.Module, mlp: nn.Module, dropouts: tuple[Dropout, Dropout]):
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.attention_norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon)
        self.attention_dropout, self.mlp_dropout = dropouts

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """[T, D]."""
        x_TD = self.attention_norm(self.attention_dropout(self.attention(x_TD, batch), x_TD, batch))
        out: Tensor = self.mlp_norm(self.mlp_dropout(self.mlp(x_TD), x_TD, batch))
        return out


class PreNormLayer(nn.Module):
    """LayerNorm, sub-layer, then residual sum (ModernBERT).

    The first layer reads what the embeddings have normalised already (`normalise_input=False`).
    """

    def __init__(
        self,
        config: ModelConfig,
        attention: nn.Module,
        mlp: nn.Module,
        dropouts: tuple[Dropout, Dropout],
        normalise_input: bool,
    ):
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.attention_norm = (
            nn.LayerNorm(config.hidden_size, config.norm_epsilon, bias=False) if normalise_input else nn.Identity()
        )
        self.mlp_norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon, bias=False)
        self.attention_dropout, self.mlp_dropout = dropouts

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """[T, D]."""
        x_TD = self.attention_dropout(self.attention(self.attention_norm(x_TD), batch), x_TD, batch)
        out: Tensor = self.mlp_dropout(self.mlp(self.mlp_norm(x_TD)), x_TD, batch)
        return out
