"""One run by several processes, on one machine or many: torchrun's agent starts them anew when one of them dies."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from oarlock.config.folders import LOGS, fetch, is_url

THIS_MACHINE = "127.0.0.1:0"


def run_job(
    command: Sequence[str], run: str, *, processes: int, nodes: str, rendezvous: str | None, restarts: int
) -> None:
    """Run `oarlock COMMAND` in so many processes on each machine, and return when all have ended well.

    The first shows its progress; what the others say is in the folder `logs` of the run (of a URL, in a temporary one).
    All are started anew, up to `restarts` times, when one dies or, where `nodes` is MIN:MAX, when a machine goes or
    comes. Machines meet at `rendezvous`. A first Ctrl-C or SIGTERM has all of them save and stop; a second ends them.

    Raises RuntimeError that names the process which failed.
    """
    # torch costs seconds, and a launcher that is only asked for help should not.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logs = Path(tempfile.mkdtemp(prefix="oarlock-")) if is_url(run) else fetch(run) / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    # Attempts that share a store find each other's old addresses in it, and cannot connect.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    quiet = ",".join(f"{rank}:3" for rank in range(1, processes)) or "0"
    try:
        torchrun(
            [
                f"--nnodes={nodes}",
                f"--nproc-per-node={processes}",
                "--rdzv-backend=c10d",
                "--rdzv-id=run",
                f"--rdzv-endpoint={rendezvous or THIS_MACHINE}",
                f"--max-restarts={restarts}",
                f"--log-dir={logs}",
                f"--redirects={quiet}",
                "-m",
                "oarlock",
                *command,
            ]
        )
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        raise RuntimeError(f"process {rank} ended with {how}; what the processes said is in {logs}") from error
    except SignalException as error:  # the processes were told, have saved, and have said so
        if isinstance(error.__context__, SignalException):
            raise KeyboardInterrupt from error
