"""Opening a store whose writer was killed: how fast everything past the synced end is checked.

The files are in the page cache. One partition is one thread, so gigabytes a second are per core. Each run
opens a fresh copy in which the log files are hard links (recovery of a whole log does not write to them).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import stratalog
from bench.harness import Bar, Case, MismatchError, Sample, Section, stopwatch, take_turns
from bench.plan import Plan
from bench.sizes import BATCH
from bench.systems.ours import TOPIC

COLUMNS = (
    ("gb_per_s", "GB/s", ".2f"),
    ("gb_per_cpu_s", "GB per CPU second", ".2f"),
    ("seconds", "seconds", ".3f"),
    ("size_mb", "log, MB", ",.0f"),
)
NEEDED_GB_PER_S = 1.0


def run(plan: Plan) -> list[Section]:
    section = Section("recovery", "Open after a crash, nothing synced, from page cache", COLUMNS)
    plan.say(section.title)
    with plan.scratch() as path:
        cases = []
        for name, size_bytes, per_batch in (
            (f"batches of {BATCH:,}", plan.sizes.crash_bytes, BATCH),
            ("one-record batches", plan.sizes.crash_single_bytes, 1),
        ):
            crashed = path / name.replace(" ", "-")
            end = _make(crashed, size_bytes, per_batch)
            cases.append(Case(name, partial(_open, plan, crashed, end)))
        section.rows = take_turns(cases, plan.repeat)
    section.equal.append("every appended record is in the reopened log, and every byte of it was checked")
    for case in cases:
        speed = section.figure(case.system, "gb_per_s")
        text = f"{case.system}: at least 1 GB/s per core"
        met = None if speed is None else speed >= NEEDED_GB_PER_S
        section.bars.append(Bar(text, "–" if speed is None else f"{speed:.2f} GB/s", met))
    return [section]


def _make(path: Path, size_bytes: int, per_batch: int) -> int:
    """A store left by a killed process; returns the offset behind its last record."""
    command = [sys.executable, "-m", "bench.crashed", str(path), str(size_bytes), str(per_batch)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, cwd=_root(), env=_environment()
    )
    if done.returncode != -9:
        raise MismatchError(f"the process that should have been killed ended with {done.returncode}")
    return int(done.stdout)


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _environment() -> dict[str, str]:
    """The child finds the same stratalog as we did."""
    source = Path(stratalog.__file__).resolve().parents[1]
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{_root()}"}


def _open(plan: Plan, crashed: Path, end: int) -> Sample:
    with plan.scratch() as path:
        copy = path / "store"
        sockets = shutil.ignore_patterns("*.sock")
        shutil.copytree(crashed, copy, ignore=sockets, copy_function=_link_logs)
        logs = sorted(copy.glob("*/*.log"))
        size = sum(log.stat().st_size for log in logs)
        for log in logs:
            _warm(log)
        with stopwatch() as watch:
            store = stratalog.open(copy)
        try:
            scanned = sum(report.scanned_bytes for report in store.recovery)
            found = store.topic(TOPIC).log_end_offset()
        finally:
            store.close()
    if scanned != size or found != end:
        raise MismatchError(f"recovery checked {scanned} of {size} bytes and found {found} of {end} records")
    return {
        "gb_per_s": size / watch.wall_s / 1e9,
        "gb_per_cpu_s": size / max(watch.cpu_s, 1e-9) / 1e9,
        "seconds": watch.wall_s,
        "size_mb": size / 1e6,
    }


def _link_logs(source: str, target: str) -> None:
    if source.endswith(".log"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _warm(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 22):
            pass
