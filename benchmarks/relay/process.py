"""What Linux knows about a process tree: time on a core, time waiting for one, memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Usage(NamedTuple):
    """Seconds, over all threads of all processes of a tree, since they began.

    From `schedstat`, which counts nanoseconds; user and kernel time are only sampled, at 100 Hz.

    Attributes:
        cpu_s: on a core.
        waited_s: ready to run, and waiting for a core: nearly none on a quiet machine.
    """

    cpu_s: float
    waited_s: float

    def since(self, before: Usage) -> Usage:
        """What was used after `before`."""
        return Usage(self.cpu_s - before.cpu_s, self.waited_s - before.waited_s)


def usage(pid: int) -> Usage:
    """What the process and all below it have used."""
    cpu_ns = waited_ns = 0
    for member in tree(pid):
        for task in (_PROC / str(member) / "task").iterdir():
            on_core, waiting, _ = (task / "schedstat").read_text().split()
            cpu_ns += int(on_core)
            waited_ns += int(waiting)
    return Usage(cpu_ns / 1e9, waited_ns / 1e9)


def rss_bytes(pid: int) -> int:
    """Resident memory of the tree; pages that processes share count in each."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(
        int((_PROC / str(member) / "statm").read_text().split()[1]) * page for member in tree(pid)
    )


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for member in found:  # grows while it is read
        for task in (_PROC / str(member) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Run on this core alone, and so does what is started meanwhile. None: wherever."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
