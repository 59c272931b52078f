"""BERT (Devlin et al., 2019): learned positions, post-norm, GELU."""

from collections.abc import Callable

from torch import nn

from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.model.embeddings import LearnedEmbeddings
from oarlock.model.encoder import Encoder, MaskedLM, MaskedLMHead, Pooler
from oarlock.model.layers import GeluMLP, PostNormLayer, SelfAttention


def build(config: ModelConfig, dropout: Callable[[float], Dropout], first_position: int = 0) -> MaskedLM:
    """A BERT of the given shape; `dropout` makes a dropout at the next site."""
    embeddings = LearnedEmbeddings(config, first_position, dropout(config.dropout))
    layers = [
        PostNormLayer(
            config,
            SelfAttention(config, bias=True, window=None, rotary=None, dropout=dropout(config.attention_dropout)),
            GeluMLP(config),
            (dropout(config.dropout), dropout(config.dropout)),
        )
        for _ in range(config.num_layers)
    ]
    # Post-norm layers end in a norm, so none is left for the encoder.
    encoder = Encoder(embeddings, layers, nn.Identity())
    return MaskedLM(config, encoder, MaskedLMHead(config, bias=True), Pooler(config) if config.pooler else None)
