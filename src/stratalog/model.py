"""The values that cross every room: plain, frozen, no behaviour beyond their own data."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Header = tuple[str, bytes | None]

CREATE_TIME = 0
LOG_APPEND_TIME = 1
LONG_MAX = 2**63 - 1


def saturated(number: int) -> int:
    """Return the nearest number that 64 bits hold.

    A setting or a timestamp may be as large as they hold, which means never; a sum with one must not be
    larger. Where such a sum goes into a file, the kernel or Arrow it passes through here.
    """
    return max(-LONG_MAX - 1, min(number, LONG_MAX))


class Record(NamedTuple):
    """One record, to append or as read.

    An append uses only ``value``, ``key``, ``headers`` and ``timestamp`` (integer milliseconds or a datetime
    with a time zone; None means now). In a record that was read all fields are set. Key and value are bytes
    or None; with serializers (`Topic.using`) they can be anything. A named tuple, because the kernel creates
    and unpacks millions of them.
    """

    value: Any
    key: Any = None
    headers: Sequence[Header] = ()
    timestamp: int | None = None
    offset: int = -1
    partition: int = -1
    timestamp_type: int = CREATE_TIME
    topic: str = ""


class Appended(NamedTuple):
    """The place and timestamp of one appended record."""

    partition: int
    offset: int
    timestamp: int


class AppendedRange(NamedTuple):
    """The place of several appended records: ``count`` offsets, starting at ``offset``."""

    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # tuple.count has no use here


class OffsetRange(NamedTuple):
    """Offsets ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int


class SegmentState(enum.StrEnum):
    """The state of a segment, derived from the directory and the archive manifest."""

    ACTIVE = "active"
    SEALED = "sealed"
    COMPACTING = "compacting"
    COMPACTED = "compacted"
    ARCHIVED = "archived"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Information about one segment. Times are None if only a full scan could tell them."""

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
