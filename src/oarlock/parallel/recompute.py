"""Layers that are computed again in the backward pass instead of keeping what they computed (Chen et al., 2016,
arXiv:1604.06174).
"""

from collections.abc import Iterable
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(layers: Iterable[nn.Module]) -> None:
    """Have each layer keep its inputs only. Dropout decides alike both times, for it follows from keys."""
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
