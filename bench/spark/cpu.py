"""CPU seconds of processes, from ``/proc``: a session is a Python process, a JVM and its Python workers."""

from __future__ import annotations

import os

_TICK = os.sysconf("SC_CLK_TCK")


def _read(pid: int) -> tuple[int, float] | None:
    """A process's parent, and the seconds it and the children it waited for have used."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None  # it ended meanwhile
    return int(fields[1]), sum(map(int, fields[11:15])) / _TICK


def process_seconds(pid: int) -> float:
    """User and system time of one process; 0 when it is gone."""
    told = _read(pid)
    return 0.0 if told is None else told[1]


def tree_seconds(root: int) -> float:
    """User and system time of a process and everything below it."""
    known = {int(name): told for name in os.listdir("/proc") if name.isdigit() and (told := _read(int(name)))}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        if pid in known:
            total += known[pid][1]
        waiting += children.get(pid, [])
    return total
