"""What a round of cleaning did, for people and for whoever decides about the next one. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stratalog.log.check.damage import Damage


@dataclass(frozen=True, slots=True)
class CleanReport:
    """One partition, compacted. Counts are of the range that was cleaned; bytes are those of `.log` files."""

    topic: str
    partition: int
    first_offset: int
    """The base offset of the first segment that was looked at."""
    next_dirty_offset: int
    """Where the next round begins: what the cleaner's checkpoint was told."""
    passes: int
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    tombstones_dropped: int
    groups: int
    """Groups of segments that were replaced by one each."""
    bytes_read: int
    """Of the log, all passes together, for the key map and for the rewriting."""
    seconds: float
    quarantined: tuple[Damage, ...] = ()
    """Segments that could not be read; they stay as they are, and so do the tombstones above them."""
    stopped: str | None = None
    """Why it ended early; None when the whole range was cleaned."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CleanReport:
        return cls(**{**value, "quarantined": tuple(Damage(**each) for each in value["quarantined"])})


@dataclass(frozen=True, slots=True)
class EraseReport:
    """One partition, rid of some keys."""

    topic: str
    partition: int
    keys: int
    records_erased: int
    segments_rewritten: int
    bytes_before: int
    bytes_after: int
    bytes_read: int
    files_removed: tuple[str, ...] = ()
    """Leftovers of earlier lives (`.deleted`, `.torn`) that may have held one of the keys."""
    unreachable: tuple[Damage, ...] = ()
    """Segments that could not be read, and so may still hold one of the keys."""
    seconds: float = 0.0
    dry_run: bool = False
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EraseReport:
        return cls(
            **{
                **value,
                "files_removed": tuple(value["files_removed"]),
                "unreachable": tuple(Damage(**each) for each in value["unreachable"]),
            }
        )
