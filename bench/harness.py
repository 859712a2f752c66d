"""Measuring: runs of different systems take turns, and the median of each counts.

A shared machine is slow for seconds at a time. Runs in turn spread that over all systems; the order also
rotates, so that nobody always comes first. Garbage collection waits outside the timed part, for
everybody.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """One system in one measurement: ``run`` does it once and gives its figures."""

    system: str
    run: Callable[[], Sample]


@dataclass(slots=True)
class Stopwatch:
    """Wall time and this process's CPU time of a ``with stopwatch() as watch`` block."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    watch = Stopwatch()
    gc.collect()
    gc.disable()
    try:
        cpu, wall = time.process_time(), time.perf_counter()
        yield watch
        watch.wall_s = time.perf_counter() - wall
        watch.cpu_s = time.process_time() - cpu
    finally:
        gc.enable()


def rates(count: int, watch: Stopwatch) -> Sample:
    """Records a second of wall time and of CPU time."""
    return {"rate": count / max(watch.wall_s, 1e-9), "cpu_rate": count / max(watch.cpu_s, 1e-9)}


@dataclass(slots=True)
class Row:
    """The figures of one system: every run's, by name."""

    system: str
    raw: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""

    def median(self, name: str) -> float | None:
        values = self.raw.get(name)
        return median(values) if values else None


@dataclass(slots=True)
class Bar:
    """Something that must hold. ``met`` is None when it could not be measured; a goal may be missed."""

    text: str
    figure: str
    met: bool | None
    goal: bool = False

    @property
    def verdict(self) -> str:
        if self.met is None:
            return "not measured"
        if self.goal:
            return "reached" if self.met else "not reached"
        return "met" if self.met else "MISSED"


@dataclass(slots=True)
class Section:
    """One table of the report. ``columns`` are (figure, heading, format)."""

    name: str
    title: str
    columns: Sequence[tuple[str, str, str]]
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    """What was compared and found equal."""

    def row(self, system: str) -> Row | None:
        return next((row for row in self.rows if row.system == system), None)

    def figure(self, system: str, name: str) -> float | None:
        row = self.row(system)
        return None if row is None else row.median(name)


class MismatchError(Exception):
    """A system did not give back what was put in: its speed means nothing."""


def take_turns(cases: Sequence[Case], repeat: int) -> list[Row]:
    """Run every case ``repeat`` times, round by round."""
    table = {case.system: Row(case.system) for case in cases}
    for turn in range(repeat):
        shift = turn % len(cases)
        for case in (*cases[shift:], *cases[:shift]):
            for name, value in case.run().items():
                table[case.system].raw.setdefault(name, []).append(value)
    return list(table.values())


def times_bar(section: Section, figure: str, ours: str, peer: str, most: float, what: str) -> Bar:
    """The bar "``ours`` takes at most ``most`` times as long as ``peer``", judged on medians."""
    mine, theirs = section.figure(ours, figure), section.figure(peer, figure)
    text = f"{what}: at most {most:g}× as long"
    if mine is None or theirs is None:
        return Bar(text, "–", None)
    return Bar(text, f"{mine / theirs:.2f}× {peer}", mine <= most * theirs)


def ratio_bar(
    section: Section,
    figure: str,
    ours: str,
    peers: Sequence[str],
    needed: float,
    what: str,
    *,
    goal: bool = False,
) -> Bar:
    """The bar "``ours`` is at least ``needed`` times the best of ``peers``", judged on medians."""
    mine = section.figure(ours, figure)
    others = [(value, peer) for peer in peers if (value := section.figure(peer, figure)) is not None]
    text = f"{what}: at least {needed:g}×" if needed != 1 else f"{what}: at least as fast"
    if mine is None or not others:
        return Bar(text, "–", None, goal)
    best, peer = max(others)
    return Bar(text, f"{mine / best:.2f}× {peer}", mine / best >= needed, goal)
