"""The processes of a run, and the groups that a plan makes of them."""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import pad

from oarlock.config import Plan

# Their names from torch 2.13 on, and before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


class Place(NamedTuple):
    """Which process this is, as `torchrun` tells it."""

    rank: int
    world_size: int
    local_rank: int


def place() -> Place:
    """From the environment; alone where there is nothing in it."""
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES.items())
    return Place(rank, size, local)


_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@dataclass(frozen=True)
class Group:
    """Processes that exchange tensors, and the bytes that this one has sent to the others.

    Sums come out the same, bit for bit, on every process.
    """

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None
    sent: Counter[str] = field(default_factory=Counter)
    """By collective: `all_gather`, `reduce_scatter`, `all_reduce`, and `send`."""
    waited: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds that this process has waited for the others, by collective; on GPUs it is the device that waits."""

    def all_gather(self, whole: Tensor, share: Tensor) -> Callable[[], None]:
        """Begin to fill `whole` [size * n] with everybody's `share` [n]; call what comes back to wait for it."""
        if self.size == 1:
            if share.data_ptr() != whole.data_ptr():
                whole.copy_(share)
            return _nothing
        self.sent["all_gather"] += share.nbytes * (self.size - 1)
        # As bytes: gloo does not know every type.
        work = _all_gather(whole.view(torch.uint8), share.view(torch.uint8), group=self.handle, async_op=True)
        return partial(self._wait, "all_gather", work)

    def reduce_scatter(self, whole: Tensor) -> Callable[[], Tensor]:
        """Begin to add up everybody's `whole` [size * n]; what comes back returns this process's n of the sums."""
        if self.size == 1:
            return lambda: whole
        rows = whole.view(self.size, whole.numel() // self.size)
        self.sent["reduce_scatter"] += rows[0].nbytes * (self.size - 1)
        if whole.is_cuda:
            total = torch.empty_like(rows[0])
            work = _reduce_scatter(total, whole, group=self.handle, async_op=True)
            return partial(self._after, work, lambda: total)
        # gloo's own moves twice as much.
        parts = torch.empty_like(rows)
        work = dist.all_to_all_single(parts, rows, group=self.handle, async_op=True)
        return partial(self._after, work, lambda: parts.sum(dim=0))

    def all_reduce(self, values: Tensor) -> Callable[[], None]:
        """Begin to add up everybody's `values` in place; call what comes back to wait for them."""
        if self.size == 1:
            return _nothing
        if values.dtype == torch.bfloat16 and not values.is_cuda:
            return self._all_reduce_bf16(values)
        self.sent["all_reduce"] += 2 * values.nbytes * (self.size - 1) // self.size
        work = dist.all_reduce(values, group=self.handle, async_op=True)
        return partial(self._wait, "all_reduce", work)

    def _all_reduce_bf16(self, values: Tensor) -> Callable[[], None]:
        """What gloo does not have: each process adds up its part of everybody's values, in fp32, and hands it out."""
        length = -(-values.numel() // self.size)
        rows = pad(values.flatten(), (0, length * self.size - values.numel())).view(self.size, length)
        self.sent["all_reduce"] += 2 * rows[0].nbytes * (self.size - 1)
        parts = torch.empty_like(rows)
        work = dist.all_to_all_single(parts.view(torch.uint8), rows.view(torch.uint8), group=self.handle, async_op=True)

        def finish() -> None:
            self._wait("all_reduce", work)
            total = parts.float().sum(dim=0).to(values.dtype)
            share, whole = total.view(torch.uint8), rows.view(-1).view(torch.uint8)
            self._wait("all_reduce", _all_gather(whole, share, group=self.handle, async_op=True))
            values.copy_(rows.view(-1)[: values.numel()].view(values.shape))

        return finish

    def send(self, values: Tensor, to: int, tag: int) -> Callable[[], None]:
        """Begin to send to the process of that rank in the group; call what comes back before `values` may go."""
        if values.numel() == 0:
            return _nothing
        self.sent["send"] += values.nbytes
        work = dist.isend(values.contiguous().view(torch.uint8), group_dst=to, group=self.handle, tag=tag)
        return partial(self._wait, "send", work)

    def receive(self, values: Tensor, origin: int, tag: int) -> Callable[[], None]:
        """Begin to fill `values` with what the process of that rank sends; call what comes back to wait for it."""
        if values.numel() == 0:
            return _nothing
        work = dist.irecv(values.view(torch.uint8), group_src=origin, group=self.handle, tag=tag)
        return partial(self._wait, "receive", work)

    def _wait(self, collective: str, work: dist.Work | None) -> None:
        assert work is not None
        start = time.perf_counter()
        work.wait()
        self.waited[collective] += time.perf_counter() - start

    def _after(self, work: dist.Work | None, result: Callable[[], Tensor]) -> Tensor:
        self._wait("reduce_scatter", work)
        return result()


class Groups(NamedTuple):
    """The groups of a plan that this process is in."""

    replicate: Group
    """Processes that hold the same as this one."""
    shard: Group
    """Processes that share one state out among them."""
    data: Group
    """Those of the two above together: they train on sequences of their own, with the same part of the layers."""
    tensor: Group
    """Processes that each compute a part of every layer, for the same sequences."""
    pipe: Group
    """Processes that each have some of the layers, for the same sequences."""
    upwards: Group
    """The same, where what one sends to another must not wait for what comes from there."""
    ends: Group
    """The first and the last of those, which both hold the word embeddings; others are alone."""
    world: Group
    """All."""

    def share_of_batches(self, plan: Plan) -> dict[str, int]:
        """What of the batches is this process's, and how they are cut; as arguments of `training_batches`."""
        return {
            "rank": self.data.rank,
            "world_size": self.data.size,
            "num_microbatches": plan.num_microbatches,
            "divisor": plan.tensor if plan.sequence_parallel else 1,
        }

    def sum(self, number: float) -> float:
        """The sum of everybody's number; they wait for each other, and for no device."""
        total = torch.tensor(number, dtype=torch.float64)
        self.world.all_reduce(total)()
        return total.item()

    def anybody(self, flag: bool) -> bool:
        """Whether any of them says so."""
        return self.sum(flag) > 0

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Everybody's numbers, by rank."""
        table = torch.zeros(self.world.size, len(numbers), dtype=torch.float64)
        table[self.world.rank] = torch.tensor(numbers, dtype=torch.float64)
        self.world.all_reduce(table)()
        rows: list[list[float]] = table.tolist()
        return rows

    def wait(self) -> None:
        """Return when all have come here."""
        self.sum(0)

    @classmethod
    def alone(cls) -> "Groups":
        """Of a process that has no others."""
        return cls(*(Group() for _ in cls._fields))


def connect(plan: Plan, device: torch.device) -> Groups:
    """Meet the other processes of a resolved plan; all must call it. Alone, there is nobody to meet."""
    assert plan.replicate is not None
    if place().world_size == 1:
        return Groups.alone()
    if not dist.is_initialized():
        dist.init_process_group(BACKENDS[device.type], timeout=timedelta(seconds=2 * plan.patience))
    shape = {"pipe": plan.pipe, "replicate": plan.replicate, "shard": plan.shard, "tensor": plan.tensor}
    mesh = init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    pipe, replicate, shard, tensor = (
        Group(mesh.get_local_rank(axis), size, mesh.get_group(axis)) for axis, size in shape.items()
    )
    ranks = mesh.mesh
    data = _grouped(ranks.flatten(1, 2).transpose(1, 2).flatten(0, 1), replicate.rank * shard.size + shard.rank)
    columns = ranks.flatten(1).T  # the processes of each pipeline
    upwards = _grouped(columns, pipe.rank)
    ends = _grouped(columns[:, [0, -1]], min(pipe.rank, 1)) if plan.pipe > 1 else Group()
    world = Group(dist.get_rank(), dist.get_world_size(), dist.group.WORLD)
    return Groups(replicate, shard, data, tensor, pipe, upwards, ends, world)


def _grouped(rows: Tensor, rank: int) -> Group:
    """The group of the row that this process is in, if it is in any; `rank` is its place in it."""
    handle, _ = dist.new_subgroups_by_enumeration(rows.tolist())
    return Group() if handle is None else Group(rank, rows.shape[1], handle)


def disconnect() -> None:
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _nothing() -> None:
    pass
