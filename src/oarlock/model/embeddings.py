"""How token ids become the first hidden states.

Suffixes: T tokens, D hidden, L positions, h half a head.
"""

import torch
from torch import Tensor, nn

from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.ops import embed_norm
from oarlock.parallel import Cut, Tokens, Vocabulary


class Embeddings(nn.Module):
    """What all embeddings share: words, and LayerNorm and dropout after them."""

    def __init__(self, config: ModelConfig, dropout: Dropout, bias: bool) -> None:
        super().__init__()
        self.form = config.ops.get("embed_norm", "auto")
        self.num_words = config.padded_vocab_size
        self.words = nn.Embedding(self.num_words, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon, bias=bias)
        self.dropout = dropout
        self.tokens: Tokens | None = None
        self.vocabulary: Vocabulary | None = None

    def share_tokens(self, tokens: Tokens) -> list[str]:
        """Work on some of the tokens."""
        self.tokens = self.dropout.tokens = tokens
        return [name for name, _ in self.named_parameters()]

    def share_vocabulary(self, vocabulary: Vocabulary) -> dict[str, Cut]:
        """Work with a part of the words."""
        self.vocabulary = vocabulary
        return {"words.weight": Cut(0)}

    def _sum(self, batch: Batch, tables: list[Tensor], rows: list[Tensor]) -> Tensor:
        """Normalised sums of words and rows of other tables, [T, D]."""
        words, ids_T = self.words.weight, batch.ids_T
        rows = [self.tokens.own(rows_T) for rows_T in rows] if self.tokens else rows
        if self.vocabulary:
            words = self.vocabulary.look_up(words, ids_T)
            ids_T = torch.arange(words.shape[0], device=words.device)
        elif self.tokens:
            ids_T = self.tokens.own(ids_T)
        return embed_norm(
            [words, *tables],
            [ids_T, *rows],
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
            **self.dropout(batch),
            form=self.form,
        )


class LearnedEmbeddings(Embeddings):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout (BERT, RoBERTa).

    `first_position` is the row of the position table that a sequence's first token takes: 0 in BERT, after the padding
    index in RoBERTa.
    """

    def __init__(self, config: ModelConfig, first_position: int, dropout: Dropout) -> None:
        super().__init__(config, dropout, bias=True)
        self.first_position = first_position
        self.positions = nn.Embedding(config.max_length + first_position, config.hidden_size)
        self.segments = nn.Embedding(config.token_types, config.hidden_size)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states [T, D]."""
        rows_T = batch.positions_T + self.first_position if self.first_position else batch.positions_T
        return self._sum(batch, [self.positions.weight, self.segments.weight], [rows_T, batch.segments_T])


class WordEmbeddings(Embeddings):
    """Word embeddings, then LayerNorm and dropout; positions are left to attention (ModernBERT)."""

    def __init__(self, config: ModelConfig, dropout: Dropout) -> None:
        super().__init__(config, dropout, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states [T, D]."""
        return self._sum(batch, [], [])


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
