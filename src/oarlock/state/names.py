"""Parameter names as the plain model has them, whatever it was wrapped in."""

from collections.abc import Iterable

from torch import Tensor

# What torch.compile, DistributedDataParallel, FullyShardedDataParallel and activation checkpointing put into a name.
WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def plain_name(name: str) -> str:
    """`name` without the parts that wrappers add, at whatever depth."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def by_plain_name(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The same tensors by plain name. Raises ValueError where two of them share one."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in named:
        plain = plain_name(name)
        if plain in tensors:
            raise ValueError(f"two parameters are called {plain} once wrappers are taken off, the second one is {name}")
        tensors[plain] = tensor
    return tensors
