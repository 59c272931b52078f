"""The encoder and its masked-LM head, made of parts that the architectures choose.

Suffixes: T tokens, S sequences, M targets, D hidden, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad

from oarlock import ops
from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model.layers import AddNorm, Linear

ROWS = 32


class Encoder(nn.Module):
    """Embeddings, layers and, where the layers leave it open, a last sum and LayerNorm."""

    def __init__(self, embeddings: nn.Module, layers: Sequence[nn.Module], final_norm: AddNorm | None) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states of all tokens, [T, D]."""
        x_TD: Tensor = self.embeddings(batch)
        update_TD: Tensor | None = None
        for layer in self.layers:
            x_TD, update_TD = layer(x_TD, update_TD, batch)
        if self.final_norm is not None:
            x_TD, _ = self.final_norm(update_TD, x_TD, batch)
        return x_TD


class Pooler(nn.Module):
    """A dense layer with tanh on each sequence's first token (BERT)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """Pooled states [S, D]."""
        out: Tensor = torch.tanh(self.dense(hidden_TD[batch.cu_seqlens_S1[:-1].long()]))
        return out


class MaskedLMHead(nn.Module):
    """Dense layer, GELU and LayerNorm; the output matrix is the word embeddings', with a bias of its own."""

    def __init__(self, config: ModelConfig, bias: bool) -> None:
        super().__init__()
        self.form = config.ops.get("bias_gelu", "auto")
        self.dense = Linear(config, config.hidden_size, config.hidden_size, bias)
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon, bias=bias)
        self.bias = nn.Parameter(torch.zeros(config.padded_vocab_size))

    def forward(self, hidden_MD: Tensor) -> Tensor:
        """What the output matrix multiplies, [M, D]."""
        dense_MD = self.dense.without_bias(hidden_MD)
        bent_MD = (
            gelu(dense_MD) if self.dense.bias is None else ops.bias_gelu(dense_MD, self.dense.bias, form=self.form)
        )
        out: Tensor = self.norm(bent_MD)
        return out


class MaskedLM(nn.Module):
    """An encoder with a masked-LM head that reads target positions only.

    Rows of the word embeddings from `vocab_size` on pad the matrix to an efficient shape: no loss reads them and no
    prediction names them.
    """

    def __init__(self, config: ModelConfig, encoder: Encoder, head: MaskedLMHead, pooler: Pooler | None) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.head, self.pooler = encoder, head, pooler
        if pooler is not None:
            pooler.requires_grad_(False)  # no loss reads it

    @property
    def output_weight(self) -> Tensor:
        """The word embeddings, tied to the output, [V, D]."""
        weight = self.encoder.get_parameter("embeddings.words.weight")
        return weight

    def forward(self, batch: Batch) -> Tensor:
        """Loss of a micro-batch: summed cross entropy over the targets of the *global* batch, a 0-d fp32 tensor.

        Summing it over the micro-batches and ranks of a global batch gives the loss, and its gradient the gradient,
        however the batch was split.
        """
        return ops.cross_entropy(
            self._target_states(batch),
            self.output_weight,
            self.head.bias,
            batch.target_ids_M,
            self.config.vocab_size,
            max(1, batch.num_targets),
            self.config.ops.get("cross_entropy", "auto"),
        )

    def loss_and_hits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed cross entropy (0-d fp32) and number of targets predicted right (0-d int64), for evaluation."""
        return ops.cross_entropy_and_hits(
            self._target_states(batch),
            self.output_weight,
            self.head.bias,
            batch.target_ids_M,
            self.config.vocab_size,
            self.config.ops.get("cross_entropy", "auto"),
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits over the real vocabulary at the target positions, [M, V]."""
        return linear(self._target_states(batch), self.output_weight, self.head.bias)[:, : self.config.vocab_size]

    def _target_states(self, batch: Batch) -> Tensor:
        # Rows up to a multiple, for products are built for each number of rows anew (`batches.pack.add_filler`).
        num_targets = batch.target_positions_M.shape[0]
        rows = pad(batch.target_positions_M, (0, -num_targets % ROWS))
        out: Tensor = self.head(self.encoder(batch)[rows])[:num_targets]
        return out
