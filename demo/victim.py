"""The process that the demonstration kills: it appends, and prints after each batch what was acknowledged.

A line on stdout is an acknowledgement: it is written only after `append_many` has returned. The parent kills
this process with SIGKILL, so nothing is cleaned up; acknowledged records must survive.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import stratalog
from demo.events import Events

BATCH = 500
AHEAD = 40


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What had been acknowledged to the killed process."""

    events: int
    """So many events from the first on."""
    ends: dict[int, int]
    """The offset behind the last acknowledged record, by partition."""
    exit_status: int


def append_until_killed(path: str, topic: str, events: Events) -> None:
    """Append batch after batch, without end."""
    with stratalog.open(path) as store:
        orders = store.topic(topic)
        for start in count(0, BATCH * AHEAD):
            # Made ahead, so that this process spends its life appending when it is killed.
            ready = [events.batch(start + at * BATCH, BATCH, sys.maxsize) for at in range(AHEAD)]
            for at, records in enumerate(ready, 1):
                ranges = orders.append_many(records)
                ends = " ".join(f"{each.partition}:{each.offset + each.count}" for each in ranges)
                os.write(1, f"{start + at * BATCH} {ends}\n".encode())


def kill_one(path: str, topic: str, events: Events, after_events: int) -> Acknowledged:
    """Start a process that appends, and kill it as soon as ``after_events`` are acknowledged."""
    command = [sys.executable, "-m", "demo.victim", path, topic]
    command += [str(events.count), str(events.end_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        # If the child hangs, the demonstration ends with a failed check.
        timer = threading.Timer(60, child.kill)
        timer.start()
        acknowledged, ends, killed = 0, dict[int, int](), False
        try:
            for line in _whole_lines(child.stdout):
                first, *rest = line.split()
                acknowledged = int(first)
                for part in rest:
                    partition, end = part.split(":")
                    ends[int(partition)] = int(end)
                if acknowledged >= after_events and not killed:
                    # At any moment of its next batches. Its output is then read to the end.
                    time.sleep(random.random() / 100)
                    child.send_signal(signal.SIGKILL)
                    killed = True
        finally:
            timer.cancel()
            child.kill()
        return Acknowledged(acknowledged, ends, child.wait())


def _whole_lines(stream: Iterator[bytes]) -> Iterator[str]:
    for line in stream:
        if line.endswith(b"\n"):
            yield line.decode()


if __name__ == "__main__":
    append_until_killed(sys.argv[1], sys.argv[2], Events(int(sys.argv[3]), int(sys.argv[4])))
