"""Several processes on this machine that run the same function, as `torchrun` would start them."""

import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing


def run_distributed(function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = 600) -> list[Any]:
    """What `function(*arguments)` returns in each of so many processes, by rank; it must be importable.

    Raises RuntimeError with the traceback of the first that failed, or where one has not answered in `timeout` seconds.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_run, args=(pipe[1], rank, world_size, port, function, arguments), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        results = []
        for rank, (answers, _) in enumerate(pipes):
            if not answers.poll(timeout):
                raise RuntimeError(f"rank {rank} of {world_size} has not answered in {timeout:g} s")
            result, error = answers.recv()
            if error:
                # What failed first may be another one: those that waited for it fail too.
                others = "".join(pipe.recv()[1] for pipe, _ in pipes[rank + 1 :] if pipe.poll(1))
                raise RuntimeError(f"rank {rank} of {world_size}: {error}{others}")
            results.append(result)
        return results
    finally:
        for process in processes:
            process.join(10 if len(results) == world_size else 0)
            process.kill()


def _run(
    answers: Connection, rank: int, world_size: int, port: int, function: Callable[..., Any], arguments: Any
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        answers.send((function(*arguments), ""))
    except BaseException:
        answers.send((None, traceback.format_exc()))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
