"""What the copies report: frozen values, fit for people and for `--json`.

Touches nothing. `Progress` is what every copy calls as it goes: bytes done, bytes in all; a segment that
is linked counts as done at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

Progress = Callable[[int, int], None]


class Meter:
    """Adds up what was done and tells the caller; one for each copy."""

    def __init__(self, progress: Progress | None, total_bytes: int = 0) -> None:
        self._progress = progress
        self.total_bytes = total_bytes
        self.done_bytes = 0

    def expect(self, more_bytes: int) -> None:
        self.total_bytes += more_bytes

    def done(self, more_bytes: int) -> None:
        self.done_bytes += more_bytes
        self.total_bytes = max(self.total_bytes, self.done_bytes)
        if self._progress is not None:
            self._progress(self.done_bytes, self.total_bytes)

    def back_to(self, done_bytes: int) -> None:
        """Something has to be done again."""
        self.done_bytes = done_bytes


class _Report:
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True)
class PartitionCopy(_Report):
    """One partition of a copy. Offsets are those of the source; ``end_offset`` is not in the copy."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    source_end_offset: int
    """Where the source ended when it was looked at: the copy lacks ``end_offset`` up to here."""
    segments: int = 0
    linked_segments: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    cut_timestamp: int | None = None
    """When a moment was asked for: the time of the first record that was not yet there."""
    late_from_offset: int | None = None
    """The first offset behind the cut that is stamped at or before the moment asked for: appended behind
    something newer, it is not part of the copy. None when there is none."""
    oldest_timestamp: int | None = None
    """The newest record of the oldest segment, by which ``retention.ms`` goes; None when there is none."""
    open_transactions: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of transactions that no marker inside the copy ends."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CloneReport(_Report):
    """What `clone` made."""

    id: str
    target: str
    made_ms: int
    partitions: tuple[PartitionCopy, ...]
    notes: tuple[str, ...] = ()

    @property
    def linked_bytes(self) -> int:
        return sum(each.linked_bytes for each in self.partitions)

    @property
    def copied_bytes(self) -> int:
        return sum(each.copied_bytes for each in self.partitions)


@dataclass(frozen=True, slots=True)
class RestoreReport(CloneReport):
    """What `restore` made. ``to_time`` in ms, or None when offsets were given."""

    to_time: int | None = None
    held_retention: dict[str, str] = field(default_factory=dict)
    """Topics whose ``retention.ms`` was set to -1 in the copy, and what it was: records of that moment would
    have been deleted at once."""


@dataclass(frozen=True, slots=True)
class ExportReport(_Report):
    """What `export_topic` wrote, or `check_export` read."""

    file: str
    topic: str
    topic_id: str
    partitions: tuple[PartitionCopy, ...]
    settings: dict[str, str]
    size_bytes: int
    members: int
    manifest_crc: int
    checked_bytes: int = 0
    """`check_export`: up to which byte the file was found right; a check can go on from there."""


@dataclass(frozen=True, slots=True)
class ImportReport(_Report):
    """A topic that `import_topic` or `adopt` brought in."""

    topic: str
    topic_id: str
    settings: dict[str, str]
    partitions: tuple[PartitionCopy, ...]
    notes: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class GraduateReport(_Report):
    """What `graduate` did, or would do, and what is left for the operator."""

    topic: str
    log_dirs: tuple[str, ...]
    partitions: tuple[PartitionCopy, ...]
    patched_batches: int
    """Batches whose leader epoch the broker does not know, and that carry its own in the copy."""
    operator: tuple[str, ...]
    problems: tuple[str, ...] = ()
    dry_run: bool = False
