"""The values that cross every room: plain, frozen, no behaviour beyond their own data."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Header = tuple[str, bytes | None]

CREATE_TIME = 0
LOG_APPEND_TIME = 1
LONG_MAX = 2**63 - 1


def saturated(number: int) -> int:
    """The nearest number that 64 bits hold.

    A setting or a timestamp may be as large as they hold, which means never; a sum with one must not be
    larger. Where such a sum goes into a file, the kernel or Arrow it passes through here.
    """
    return max(-LONG_MAX - 1, min(number, LONG_MAX))


class Record(NamedTuple):
    """One record, on its way in or out.

    Going in, only ``value``, ``key``, ``headers`` and ``timestamp`` (integer milliseconds or a datetime
    with a time zone; now when None) are looked at. Coming out, everything is set. A named tuple because the
    kernel makes and takes apart millions of them.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp: int | None = None
    offset: int = -1
    partition: int = -1
    timestamp_type: int = CREATE_TIME
    topic: str = ""


class Appended(NamedTuple):
    """Where one record went."""

    partition: int
    offset: int
    timestamp: int


class AppendedRange(NamedTuple):
    """Where a run of records went: ``count`` offsets from ``offset`` on."""

    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # tuple.count has no use here


class OffsetRange(NamedTuple):
    """Offsets ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int


class SegmentState(enum.StrEnum):
    """A segment's place in its life; each can be read off the directory and the archive manifest."""

    ACTIVE = "active"
    SEALED = "sealed"
    COMPACTING = "compacting"
    COMPACTED = "compacted"
    ARCHIVED = "archived"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The facts of one segment. Times are None where only a full scan could tell."""

    topic: str
    partition: int
    base_offset: int
    next_offset: int
    state: SegmentState
    size_bytes: int
    path: str
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    records: int | None = None
