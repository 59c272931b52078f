"""RoBERTa (Liu et al., 2019): BERT whose positions start after the padding index."""

from collections.abc import Callable

from oarlock.config import ModelConfig
from oarlock.model import bert
from oarlock.model.dropout import Dropout
from oarlock.model.encoder import MaskedLM


def build(config: ModelConfig, dropout: Callable[[float], Dropout]) -> MaskedLM:
    """A RoBERTa of the given shape."""
    return bert.build(config, dropout, first_position=config.pad_id + 1)
