"""What of a log an output holds already, as rectangles: offsets of a partition by times of its records.

A run without times covers [start, end) at all times; one with ``since`` and ``until`` covers only those.
What is left to do is the difference, so runs of either kind may follow each other in any order and no
record is written twice. A topic that was made anew under its old name has another id, and nothing of it is
covered. Pure values; touches no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

ALWAYS = (-(2**63), 2**63 - 1)
"""All times, in milliseconds, the end not included."""


@dataclass(frozen=True, order=True, slots=True)
class Extent:
    """Offsets [start, end) of one partition at times [since_ms, until_ms)."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    since_ms: int = ALWAYS[0]
    until_ms: int = ALWAYS[1]

    @property
    def log(self) -> tuple[str, str, int]:
        """Which log: a topic that was made anew is another one."""
        return self.topic, self.topic_id, self.partition

    @property
    def always(self) -> bool:
        return (self.since_ms, self.until_ms) == ALWAYS

    def __bool__(self) -> bool:
        return self.start < self.end and self.since_ms < self.until_ms

    def overlaps(self, other: Extent) -> bool:
        return (
            self.log == other.log
            and self.start < other.end
            and other.start < self.end
            and self.since_ms < other.until_ms
            and other.since_ms < self.until_ms
        )

    def to_json(self) -> list[object]:
        """Times None where there is no bound."""
        since, until = (
            None if mine == bound else mine
            for mine, bound in zip((self.since_ms, self.until_ms), ALWAYS, strict=True)
        )
        return [self.topic, self.topic_id, self.partition, self.start, self.end, since, until]

    @classmethod
    def from_json(cls, said: object) -> Extent:
        """ValueError when it is not what `to_json` makes."""
        match said:
            case [str(topic), str(topic_id), int(partition), int(start), int(end), since, until]:
                pass
            case _:
                raise ValueError(f"{said!r} is no extent")
        match since, until:
            case (int() | None, int() | None):
                since_ms = ALWAYS[0] if since is None else since
                until_ms = ALWAYS[1] if until is None else until
                return cls(topic, topic_id, partition, start, end, since_ms, until_ms)
        raise ValueError(f"{said!r} has no times")


def missing(wanted: Extent, covered: Iterable[Extent]) -> list[Extent]:
    """The parts of ``wanted`` that nothing covers, none overlapping another, in the order of offsets."""
    left = [wanted] if wanted else []
    for each in covered:
        if each.overlaps(wanted):
            left = [part for piece in left for part in _without(piece, each)]
    return joined(left)


def joined(extents: Iterable[Extent]) -> list[Extent]:
    """The same area in fewer extents: neighbours in offsets, then neighbours in time, made one."""
    found = [each for each in extents if each]
    while True:
        before = len(found)
        found.sort(key=lambda each: (each.log, each.since_ms, each.until_ms, each.start))
        found = _fold(found, _next_offsets)
        found.sort()
        found = _fold(found, _next_times)
        if len(found) == before:
            return found


def end_of(covered: Iterable[Extent], log: tuple[str, str, int]) -> int | None:
    """Up to which offset everything was taken at some time; None when nothing ever was."""
    return max((each.end for each in covered if each.log == log and each.always), default=None)


def _without(piece: Extent, hole: Extent) -> list[Extent]:
    if not piece.overlaps(hole):
        return [piece]
    start, end = max(piece.start, hole.start), min(piece.end, hole.end)
    parts = (
        replace(piece, end=start),
        replace(piece, start=start, end=end, until_ms=max(hole.since_ms, piece.since_ms)),
        replace(piece, start=start, end=end, since_ms=min(hole.until_ms, piece.until_ms)),
        replace(piece, start=end),
    )
    return [part for part in parts if part]


def _next_offsets(one: Extent, two: Extent) -> Extent | None:
    same = one.log == two.log and (one.since_ms, one.until_ms) == (two.since_ms, two.until_ms)
    return replace(one, end=max(one.end, two.end)) if same and two.start <= one.end else None


def _next_times(one: Extent, two: Extent) -> Extent | None:
    same = one.log == two.log and (one.start, one.end) == (two.start, two.end)
    return (
        replace(one, until_ms=max(one.until_ms, two.until_ms))
        if same and two.since_ms <= one.until_ms
        else None
    )


def _fold(extents: list[Extent], join: Callable[[Extent, Extent], Extent | None]) -> list[Extent]:
    made: list[Extent] = []
    for each in extents:
        both = join(made[-1], each) if made else None
        if both is None:
            made.append(each)
        else:
            made[-1] = both
    return made
