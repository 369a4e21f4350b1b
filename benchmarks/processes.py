"""CPU time and memory of processes, from the kernel's accounting (proc(5)).

Rule: a target is a process with all its descendants. Its values are read before and after a round, but not
during it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def tree(pid: int) -> list[int]:
    """Returns the ids of a process and its descendants, such as keyfence's workers."""
    found = [pid]
    for process in found:
        for thread in Path(f"/proc/{process}/task").glob("*/children"):
            found.extend(map(int, thread.read_text().split()))
    return found


def nanoseconds(pids: Iterable[int]) -> int:
    """Returns the time that all threads of these processes have run, which /proc/PID/stat rounds to 10 ms."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(thread.read_text().split()[0]) for thread in threads)


def resident_kib(pids: list[int]) -> int:
    """Returns the resident memory of these processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total


def machine() -> str:
    """Describes the machine in one line: processor, cores, memory, kernel, load average."""
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    system = os.uname()
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, {pages * size / 2**30:.0f} GiB, "
        f"{system.sysname} {system.release}; load average {load} at the start"
    )
