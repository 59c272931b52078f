"""The encoder and its masked-LM head, made of parts that the architectures choose.

Suffixes: T tokens, S sequences, M targets, D hidden, V vocabulary.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad

from oarlock import ops
from oarlock.batches import Batch
from oarlock.config import ModelConfig
from oarlock.model.layers import AddNorm, Linear
from oarlock.parallel import Cut, Staged, Tokens, Vocabulary

ROWS = 32
States = tuple[Tensor, ...]
TIED = "embeddings.words.weight"


class Encoder(nn.Module):
    """Embeddings, layers and, where the layers leave it open, a last sum and LayerNorm."""

    def __init__(self, embeddings: nn.Module, layers: Sequence[nn.Module], final_norm: AddNorm | None) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states of all tokens, [T, D]."""
        return self.finish(batch, self.run(batch, None, range(len(self.layers))))

    def run(self, batch: Batch, states: States | None, layers: range) -> States:
        """Through some layers, from the embeddings where `states` is None.

        States are the residual stream and, where the layers leave it open, what is to be added to it, each [T, D].
        """
        x_TD, *updates = states or (self.embeddings(batch),)
        update_TD = updates[0] if updates else None
        for number in layers:
            x_TD, update_TD = self.layers[number](x_TD, update_TD, batch)
        return (x_TD,) if update_TD is None else (x_TD, update_TD)

    def finish(self, batch: Batch, states: States) -> Tensor:
        """Hidden states [T, D], from what the last layer has left."""
        if self.final_norm is None:
            return states[0]
        x_TD, update_TD = states
        hidden_TD, _ = self.final_norm(update_TD, x_TD, batch)
        return hidden_TD  # type: ignore[no-any-return]


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


class MaskedLM(Staged):
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
        self.num_words = config.padded_vocab_size
        self.tokens: Tokens | None = None
        self.vocabulary: Vocabulary | None = None

    @property
    def output_weight(self) -> Tensor:
        """The word embeddings, tied to the output, [V, D]."""
        weight = self.encoder.get_parameter(TIED)
        return weight

    @property
    def layers(self) -> nn.ModuleList:
        """Of the encoder."""
        return self.encoder.layers

    def forward(self, batch: Batch) -> Tensor:
        """Loss of a micro-batch: summed cross entropy over the targets of the *global* batch, a 0-d fp32 tensor.

        Summing it over the micro-batches and ranks of a global batch gives the loss, and its gradient the gradient,
        however the batch was split.
        """
        return self.loss(batch, self.run(batch, None, range(len(self.layers))))

    def run(self, batch: Batch, states: States | None, layers: range) -> States:
        """Through some layers, as the encoder does."""
        return self.encoder.run(batch, states, layers)

    def loss(self, batch: Batch, states: States) -> Tensor:
        """What the last layer's states come to."""
        return (self.vocabulary or ops).cross_entropy(
            self._target_states(batch, states),
            self.output_weight,
            self.head.bias,
            batch.target_ids_M,
            self.config.vocab_size,
            max(1, batch.num_targets),
            self.config.ops.get("cross_entropy", "auto"),
        )

    def loss_and_hits(self, batch: Batch, states: States) -> tuple[Tensor, Tensor]:
        """Summed cross entropy (0-d fp32) and number of targets predicted right (0-d int64), for evaluation."""
        return (self.vocabulary or ops).cross_entropy_and_hits(
            self._target_states(batch, states),
            self.output_weight,
            self.head.bias,
            batch.target_ids_M,
            self.config.vocab_size,
            self.config.ops.get("cross_entropy", "auto"),
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits over the real vocabulary at the target positions, [M, V]."""
        states_MD = self._target_states(batch, self.run(batch, None, range(len(self.layers))))
        return linear(states_MD, self.output_weight, self.head.bias)[:, : self.config.vocab_size]

    def state_shapes(self, batch: Batch) -> list[tuple[int, int]]:
        """Of what one run of layers hands to the next."""
        num_tokens = batch.num_tokens // (self.tokens.group.size if self.tokens else 1)
        shape = num_tokens, self.config.hidden_size
        return [shape] if self.config.kind != "modernbert" else [shape, shape]

    def keep(self, layers: Iterable[int], first: bool, last: bool) -> tuple[str]:
        """Drop all but some layers and, in the `first` and the `last` stage of a pipeline, what comes before and after
        them; returns the name of the parameter that both have.
        """
        encoder, kept = self.encoder, set(layers)
        for number in range(len(encoder.layers)):
            if number not in kept:
                encoder.layers[number] = None  # type: ignore[assignment]
        if not first:
            for name, _ in list(encoder.embeddings.named_children()):
                if not (last and name == "words"):
                    setattr(encoder.embeddings, name, None)
        if not last:
            self.head, self.pooler, encoder.final_norm = None, None, None  # type: ignore[assignment]
        return (f"encoder.{TIED}",)

    def share_tokens(self, tokens: Tokens) -> list[str]:
        """Expect some of the tokens from the last layer."""
        self.tokens = tokens
        return []

    def share_vocabulary(self, vocabulary: Vocabulary) -> dict[str, Cut]:
        """Work with a part of the words."""
        self.vocabulary = vocabulary
        return {"head.bias": Cut(0)}

    def _target_states(self, batch: Batch, states: States) -> Tensor:
        # Rows up to a multiple, for products are built for each number of rows anew (`batches.pack.add_filler`).
        num_targets = batch.target_positions_M.shape[0]
        rows = pad(batch.target_positions_M, (0, -num_targets % ROWS))
        hidden_TD = self.encoder.finish(batch, states)
        hidden_TD = self.tokens.gather(hidden_TD) if self.tokens else hidden_TD
        out: Tensor = self.head(hidden_TD[rows])[:num_targets]
        return out
