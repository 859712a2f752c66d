"""What is wrong with a file: the value that verify finds and repair gives up. Touches no disk."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.errors import CorruptionError, FormatError

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Damage:
    """Something wrong in one file: bytes [start, end), offsets first to last inclusive; -1: unknown, or none.

    ``derived``: no record is lost by it; ``rebuild-indexes`` makes it right from the log.
    """

    path: str
    start: int
    end: int
    first_offset: int
    last_offset: int
    reason: str
    derived: bool = False

    @property
    def offsets(self) -> int:
        """How many offsets it takes; in a compacted segment not all of them had a record."""
        return 0 if self.first_offset < 0 else self.last_offset - self.first_offset + 1


def derived_damage(path: str, reason: str, start: int = UNKNOWN, end: int = UNKNOWN) -> Damage:
    return Damage(path, start, end, UNKNOWN, UNKNOWN, reason, derived=True)


def reason_of(error: FormatError) -> str:
    return error.reason if isinstance(error, CorruptionError) else str(error)
