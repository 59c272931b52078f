"""How token ids become the first hidden states.

Suffixes: T tokens, D hidden, L positions, h half a head.
"""

import torch
from torch import Tensor, nn

from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.ops import embed_norm


class LearnedEmbeddings(nn.Module):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout (BERT, RoBERTa).

    `first_position` is the row of the position table that a sequence's first token takes: 0 in BERT, after the padding
    index in RoBERTa.
    """

    def __init__(self, config: ModelConfig, first_position: int, dropout: Dropout) -> None:
        super().__init__()
        self.first_position = first_position
        self.form = config.ops.get("embed_norm", "auto")
        self.words = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_length + first_position, config.hidden_size)
        self.segments = nn.Embedding(config.token_types, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon)
        self.dropout = dropout

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states [T, D]."""
        rows_T = batch.positions_T + self.first_position if self.first_position else batch.positions_T
        return embed_norm(
            [self.words.weight, self.positions.weight, self.segments.weight],
            [batch.ids_T, rows_T, batch.segments_T],
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
            **self.dropout(batch),
            form=self.form,
        )


class WordEmbeddings(nn.Module):
    """Word embeddings, then LayerNorm and dropout; positions are left to attention (ModernBERT)."""

    def __init__(self, config: ModelConfig, dropout: Dropout) -> None:
        super().__init__()
        self.form = config.ops.get("embed_norm", "auto")
        self.words = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon, bias=False)
        self.dropout = dropout

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states [T, D]."""
        return embed_norm(
            [self.words.weight],
            [batch.ids_T],
            self.norm.weight,
            None,
            self.norm.eps,
            **self.dropout(batch),
            form=self.form,
        )


class RotaryTable(nn.Module):
    """Cosines and sines of rotary positions (Su et al., 2021), each [L, h], computed once in fp32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, max_length: int, theta: float) -> None:
        super().__init__()
        # On the CPU whatever the default device: the model around this table may be built on `meta`.
        steps = torch.arange(0, head_size, 2, dtype=torch.float64, device="cpu")
        angles = torch.arange(max_length, dtype=torch.float64, device="cpu")[:, None] * theta ** -(steps / head_size)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
