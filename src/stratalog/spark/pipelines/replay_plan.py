"""What a replay takes: offsets of partitions, pinned once, in as many parts as it has commits.

Pure values. A plan is kept in the ledger with the first part, so that a run that goes on takes the very same
records, whatever was appended meanwhile.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stratalog.config.units import parse_time
from stratalog.errors import ConfigError, CorruptionError, InvalidArgumentError

Moment = str | int | dt.datetime | None
"""``2026-01-01T12:00:00Z``, ``-10m``, epoch milliseconds, or a datetime; without a zone it is UTC."""
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def moment_ms(given: Moment, what: str, now_ms: int) -> int | None:
    """A moment in epoch milliseconds; ConfigError names the argument that is none."""
    if isinstance(given, dt.datetime):
        zoned = given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)
        return (zoned - _UTC_EPOCH) // dt.timedelta(milliseconds=1)
    if given is None:
        return None
    try:
        return parse_time(str(given), now_ms)
    except InvalidArgumentError as error:
        raise ConfigError(f"{what}: {error}") from None


class Extent(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def part(self, number: int, parts: int) -> Extent:
        """One of so many parts, which together are the whole."""
        length = self.end - self.start
        first, last = self.start + length * number // parts, self.start + length * (number + 1) // parts
        return self._replace(start=first, end=last)


@dataclass(frozen=True)
class Plan:
    """All of a replay."""

    extents: tuple[Extent, ...]
    since_ms: int | None = None
    until_ms: int | None = None
    parts: int = 1
    generation: int = 0
    """How often the same was replayed anew before."""

    def part(self, number: int) -> list[Extent]:
        """What of the partitions a part takes; nothing of some, or of any."""
        cut = (each.part(number, self.parts) for each in self.extents)
        return [each for each in cut if each.start < each.end]

    def to_json(self) -> dict[str, Any]:
        return {
            "extents": [list(each) for each in self.extents],
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "parts": self.parts,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any], where: str) -> Plan:
        try:
            return cls(
                tuple(Extent(str(t), int(p), int(s), int(e)) for t, p, s, e in told["extents"]),
                told["since_ms"],
                told["until_ms"],
                int(told["parts"]),
                int(told["generation"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"not the plan of a replay: {error!r}", path=where) from None


def parts_of(extents: Sequence[Extent], most: int) -> int:
    """Into how many parts of about ``most`` offsets these are cut."""
    return max(1, -(-sum(each.end - each.start for each in extents) // most))


def said_of(extents: Sequence[Extent]) -> Iterator[str]:
    """For people."""
    for each in extents:
        yield f"{each.topic}-{each.partition} {each.start} to {each.end - 1}"
