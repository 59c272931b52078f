"""Tensor parallelism (Shoeybi et al., 2019, arXiv:1909.08053): processes that each compute a part of every layer.

A module that can be cut says how (`Splittable`): its first linear layer by outputs, its last by inputs, so that what
lies between needs no exchange. What it is given is the same on every process; the parts of what it returns are added
up, and so are those of the gradient of what it was given: two all-reduces of [T, D] each way in a Transformer layer.
The vocabulary is shared out too (`vocabulary.py`). All else is computed by every process alike.

With sequence parallelism (Korthikanti et al., 2022, arXiv:2205.05198) each process has T / n of the tokens between
those modules, and an all-reduce becomes a reduce-scatter there and an all-gather here, of as many bytes together.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from oarlock.parallel import exchange
from oarlock.parallel.groups import Group
from oarlock.parallel.layout import Block, Cut
from oarlock.parallel.vocabulary import Vocabulary


@runtime_checkable
class Splittable(Protocol):
    """A module that can become one of several equal parts of itself. Its first input and its output are [T, D]."""

    def split(self, index: int, count: int) -> Mapping[str, Cut]:
        """Become part `index`; returns how its linear layers are cut, by their names in the module."""


class Tokens(NamedTuple):
    """Where this process has its share of the tokens only, t of T."""

    group: Group

    def own(self, x_T: Tensor) -> Tensor:
        """Of all tokens, these."""
        return exchange.own(x_T, self.group)

    def gather(self, x_tD: Tensor) -> Tensor:
        """Of these tokens, all, from which every process computes alike."""
        return exchange.gather_alike(x_tD, self.group)


@runtime_checkable
class SharesTokens(Protocol):
    """A module that can work on a share of the tokens."""

    def share_tokens(self, tokens: Tokens) -> Iterable[str]:
        """Do so; returns the parameters, by their names in the module, whose gradients then come from those alone."""


@runtime_checkable
class SharesVocabulary(Protocol):
    """A module that can work with a part of the vocabulary, of equal size on each process."""

    num_words: int

    def share_vocabulary(self, vocabulary: Vocabulary) -> Mapping[str, Cut]:
        """Do so; returns how its parameters are cut, by their names in the module."""


class Split(NamedTuple):
    """What became of a model's parameters."""

    blocks: dict[str, Block]
    """What this process has of those that were cut."""
    alike: set[str]
    """Those that it has whole, and whose gradients come from its tokens only."""


def split(model: nn.Module, group: Group, tokens: bool) -> Split:
    """Leave of a model what this process computes with. A bias that is added to a sum of parts stays with the first
    process alone. A vocabulary that the processes do not divide stays whole.
    """
    done = Split({}, set())
    enter, leave = (
        (exchange.gather_tokens, exchange.scatter_sums) if tokens else (exchange.sum_gradients, exchange.sum_parts)
    )
    for path, module in model.named_modules() if group.size > 1 else ():
        cuts: dict[str, Cut] = {}
        if isinstance(module, SharesTokens) and tokens:
            done.alike.update(_join(path, name) for name in module.share_tokens(Tokens(group)))
        if isinstance(module, SharesVocabulary) and module.num_words % group.size == 0:
            cuts |= module.share_vocabulary(Vocabulary(group, tokens))
        if isinstance(module, Splittable):
            for name, cut in module.split(group.rank, group.size).items():
                cuts |= {f"{name}.{leaf}": cut for leaf in ("weight", "bias")}
            _around(model.get_submodule(path), partial(enter, group=group), partial(leave, group=group))
        for name, cut in cuts.items():
            block = _cut(module, name, cut, group)
            done.blocks.update({_join(path, name): block} if block else {})
    done.alike.difference_update(done.blocks)
    return done


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _cut(module: nn.Module, name: str, cut: Cut, group: Group) -> Block | None:
    """Leave this process's block of a parameter; or all of it, or none, where it has not the dimension."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    parameter = getattr(owner, leaf)
    if parameter is None:
        return None
    if parameter.ndim <= cut.dim:
        setattr(owner, leaf, parameter if group.rank == 0 else None)
        return None
    block = Block(*cut, group.rank, group.size)
    setattr(owner, leaf, nn.Parameter(block.of(parameter.detach()).clone(), parameter.requires_grad))
    return block


def _around(module: nn.Module, enter: Callable[[Tensor], Tensor], leave: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_pre_hook(lambda _, arguments: (enter(arguments[0]), *arguments[1:]))
    module.register_forward_hook(lambda _, arguments, output: leave(output))
