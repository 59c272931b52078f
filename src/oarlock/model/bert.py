"""BERT (Devlin et al., 2019): learned positions, post-norm, GELU."""

from collections.abc import Callable

from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.model.embeddings import LearnedEmbeddings
from oarlock.model.encoder import Encoder, MaskedLM, MaskedLMHead, Pooler
from oarlock.model.layers import AddNorm, GeluMLP, PostNormLayer, SelfAttention


def build(config: ModelConfig, dropout: Callable[[float], Dropout], first_position: int = 0) -> MaskedLM:
    """A BERT of the given shape; `dropout` makes a dropout at the next site."""
    embeddings = LearnedEmbeddings(config, first_position, dropout(config.dropout))
    layers = [
        PostNormLayer(
            SelfAttention(config, bias=True, window=None, rotary=None, dropout=dropout(config.attention_dropout)),
            AddNorm(config, dropout(config.dropout), bias=True),
            GeluMLP(config),
            AddNorm(config, dropout(config.dropout), bias=True),
        )
        for _ in range(config.num_layers)
    ]
    # Post-norm layers end in a norm, so none is left for the encoder.
    encoder = Encoder(embeddings, layers, None)
    return MaskedLM(config, encoder, MaskedLMHead(config, bias=True), Pooler(config) if config.pooler else None)
