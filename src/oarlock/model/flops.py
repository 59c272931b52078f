"""How much arithmetic a token costs."""

from oarlock.config import ModelConfig
from oarlock.model.modernbert import is_global


def flops_per_token(config: ModelConfig, mean_length: float, mean_square_length: float, target_share: float) -> float:
    """Floating-point operations that training spends on one useful token, on average.

    Counted are matrix products, forward and twice as much backward; nothing for padding, for recomputation or for the
    output matrix on tokens that are no targets.

    Args:
        config: shape of the model.
        mean_length: mean length of the sequences, in tokens.
        mean_square_length: mean of the squared lengths; a token of a random sequence attends to their quotient.
        target_share: targets as a share of the tokens.
    """
    width, inner = config.hidden_size, config.intermediate_size
    up = 2 if config.kind == "modernbert" else 1
    weights = config.num_layers * (4 * width * width + (up + 1) * width * inner)
    head = target_share * (width * width + width * config.padded_vocab_size)
    seen = mean_square_length / mean_length
    attention = sum(2 * width * _reach(config, layer, seen) for layer in range(config.num_layers))
    return 3 * 2 * (weights + head + attention)


def _reach(config: ModelConfig, layer: int, seen: float) -> float:
    """How many keys a token of a layer reads."""
    if config.kind == "modernbert" and not is_global(config, layer):
        return min(seen, config.local_window + 1)
    return seen
