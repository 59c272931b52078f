"""The state of a run at one step, as a value in host memory."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.parallel import Block, Layout, Part
from oarlock.state.names import by_plain_name
from oarlock.state.optimizers import OptimizerState, load_optimizer_state, optimizer_state, tensor_differences

WHOLE = Part()


class Piece(NamedTuple):
    """What a tensor is of a parameter: a flat part, unless it is all, of a block, unless that is all."""

    start: int
    """First element, of the flattened block."""
    shape: torch.Size
    """Of the block."""
    block: Block | None


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that is needed to go on after `step`: the batches of later steps follow from the seed alone."""

    step: int
    """Optimizer steps done."""
    weights: dict[str, Tensor]
    """Master weights by the plain model's parameter names, in host memory."""
    optimizer: OptimizerState
    """Optimizer state by parameter name and state key, in host memory."""
    progress: dict[str, float]
    """Totals since step 0, such as `useful_tokens` and `seconds`."""
    seed: int
    """Seed of the run."""
    config_digest: str
    """`trajectory_digest` of the run's configuration."""
    part: Part = WHOLE
    """Which part of the state this is."""
    pieces: dict[str, Piece] = field(default_factory=dict)
    """What the weights are of their parameters, where they are not all of them."""
    wait: Callable[[], None] = _nothing
    """Returns once the tensors hold their values: copies from a GPU are still under way when a snapshot is taken."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for state in (self.weights, *self.optimizer.values()) for t in state.values())


def take_snapshot(
    step: int,
    named_parameters: Iterable[tuple[str, Tensor]],
    optimizers: Iterable[Optimizer],
    *,
    progress: Mapping[str, float],
    seed: int,
    config_digest: str,
    layout: Layout | None = None,
) -> Snapshot:
    """Copy the state of a run to host memory, so that training may go on changing it at once; where it is laid over
    processes, this one's part of it.

    Names lose what wrappers put into them. Copies from a GPU are asynchronous, into pinned memory; the host does not
    wait. Raises ValueError for optimizer state that has no name or is no tensor.
    """
    parameters = by_plain_name(named_parameters)
    state = optimizer_state(optimizers, parameters)
    copies = layout.copies if layout else ()
    return Snapshot(
        step=step,
        weights={name: _copy(parameter) for name, parameter in parameters.items() if name not in copies},
        optimizer={n: {key: _copy(value) for key, value in of.items()} for n, of in state.items() if n not in copies},
        progress=dict(progress),
        seed=seed,
        config_digest=config_digest,
        part=layout.part if layout else WHOLE,
        pieces=_pieces(layout) if layout else {},
        wait=_copies_done(parameters.values()),
    )


def cut(snapshot: Snapshot, layout: Layout) -> Snapshot:
    """Of a whole state, what the masters of a layout are parts of; what does not fit stays as it is, for `restore` to
    tell of.
    """
    elsewhere = layout.shapes.keys() - layout.masters.keys()

    def piece(name: str, tensor: Tensor) -> Tensor:
        block, shape = layout.blocks.get(name), layout.shapes[name]
        if tensor.ndim and block and tensor.shape[block.dim] == shape[block.dim] * block.parts:
            tensor = block.of(tensor)
        if name not in layout.starts or tensor.shape != shape:
            return tensor
        start = layout.starts[name]
        return tensor.flatten()[start : start + layout.masters[name].numel()]

    known = layout.shapes.keys()
    weights = {n: piece(n, w) if n in known else w for n, w in snapshot.weights.items() if n not in elsewhere}
    optimizer = {
        name: {key: piece(name, value) if name in known else value for key, value in state.items()}
        for name, state in snapshot.optimizer.items()
        if name not in elsewhere
    }
    return replace(snapshot, weights=weights, optimizer=optimizer)


def restore(
    snapshot: Snapshot, named_parameters: Iterable[tuple[str, Tensor]], optimizers: Iterable[Optimizer]
) -> None:
    """Put weights and optimizer state back, by plain parameter name and bit for bit.

    Raises ValueError that names every parameter or state that is missing, unexpected or of another shape or type; no
    weight is changed then.
    """
    parameters = by_plain_name(named_parameters)
    snapshot.wait()
    problems = [f"{name} is missing" for name in parameters.keys() - snapshot.weights.keys()]
    problems += [f"{name} is unexpected" for name in snapshot.weights.keys() - parameters.keys()]
    for name in parameters.keys() & snapshot.weights.keys():
        problems += tensor_differences(name, parameters[name], snapshot.weights[name])
    if problems:
        raise ValueError("the saved weights do not fit the model: " + "; ".join(sorted(problems)))
    load_optimizer_state(optimizers, parameters, snapshot.optimizer)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(snapshot.weights[name])


def _pieces(layout: Layout) -> dict[str, Piece]:
    return {
        name: Piece(layout.starts.get(name, 0), layout.shapes[name], layout.blocks.get(name))
        for name in layout.masters
        if name in layout.starts or name in layout.blocks
    }


def _copy(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to("cpu", non_blocking=tensor.is_cuda, copy=True, memory_format=torch.contiguous_format)


def _copies_done(tensors: Iterable[Tensor]) -> Callable[[], None]:
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return _nothing
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
