"""What each process of a run did, for the report."""

import resource

import torch

from oarlock.parallel import Groups
from oarlock.report.facts import ProcessFacts

KILOBYTE = 1024  # of `ru_maxrss` on Linux


def process_facts(groups: Groups, device: torch.device, seconds: float) -> tuple[ProcessFacts, ...]:
    """Of every process, by rank, after so many seconds of training; none where there is one alone. All must call it."""
    if groups.world.size == 1:
        return ()
    waited = sum(sum(group.waited.values()) for group in groups)
    sent = sum(sum(group.sent.values()) for group in groups)
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device)
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE
    rows = groups.gather([seconds - waited, seconds, sent, memory])
    return tuple(
        ProcessFacts(busy_seconds=busy, seconds=all_, bytes_sent=int(bytes_), peak_memory=int(peak))
        for busy, all_, bytes_, peak in rows
    )
