"""A process that compacts one topic and says how it went: ``python -m bench.compacting DIRECTORY TOPIC``.

By itself, so that its peak memory is compaction's and nobody else's. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time

import stratalog


def main(path: str, topic: str) -> None:
    with stratalog.open(path, background=False) as store:
        end = store.topic(topic).log_end_offset()
        reset_peak("self")
        cpu, wall = time.process_time(), time.perf_counter()
        report = store.compact(topic, force=True)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        if report.notes or len(report.compactions) != 1:
            raise SystemExit(f"nothing was compacted: {report.notes}")
        done = report.compactions[0]
        if done["stopped"] or done["quarantined"] or done["next_dirty_offset"] != end:
            raise SystemExit(f"not all was compacted: {done}")
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak_bytes("self")}))


def peak_bytes(pid: int | str) -> int:
    """The most memory a process held since it began, or since its peak was reset."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


def reset_peak(pid: int | str) -> None:
    """Count the peak from here on, where the system allows it."""
    try:
        with open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
