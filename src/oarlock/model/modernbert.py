"""ModernBERT (Warner et al., 2024, arXiv:2412.13663): rotary positions, pre-norm, GeGLU, no biases, and global
attention in every n-th layer with local attention between.
"""

from collections.abc import Callable

from oarlock.config import ModelConfig
from oarlock.model.dropout import Dropout
from oarlock.model.embeddings import RotaryTable, WordEmbeddings
from oarlock.model.encoder import Encoder, MaskedLM, MaskedLMHead
from oarlock.model.layers import AddNorm, GegluMLP, PreNormLayer, SelfAttention


def build(config: ModelConfig, dropout: Callable[[float], Dropout]) -> MaskedLM:
    """A ModernBERT of the given shape."""
    embeddings = WordEmbeddings(config, dropout(config.dropout))
    everywhere = RotaryTable(config.head_size, config.max_length, config.global_rope_theta)
    nearby = RotaryTable(config.head_size, config.max_length, config.local_rope_theta)
    layers = [
        PreNormLayer(
            AddNorm(config, dropout(config.dropout), bias=False) if i > 0 else None,
            SelfAttention(
                config,
                bias=False,
                window=None if is_global(config, i) else config.local_window // 2,
                rotary=everywhere if is_global(config, i) else nearby,
                dropout=dropout(config.attention_dropout),
            ),
            AddNorm(config, dropout(config.dropout), bias=False),
            GegluMLP(config),
        )
        for i in range(config.num_layers)
    ]
    encoder = Encoder(embeddings, layers, AddNorm(config, dropout(config.dropout), bias=False))
    return MaskedLM(config, encoder, MaskedLMHead(config, bias=False), None)


def is_global(config: ModelConfig, layer: int) -> bool:
    """Whether a layer attends to the whole sequence."""
    return layer % config.global_every == 0
