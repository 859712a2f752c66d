"""Filters that Spark pushes down, as bounds that rule out partitions, offsets and times before a byte is
read.

A filter that the bounds express exactly is taken; every other one is returned for Spark to evaluate, though
it may still narrow the bounds. Timestamps in the log are milliseconds and literals arrive in microseconds:
each operator rounds its own way, so that the bound admits exactly the milliseconds the operator does.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")

_COMPARE: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda one, other: one == other,
    EqualNullSafe: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
    In: lambda one, other: one in other,
    StringStartsWith: lambda one, other: one.startswith(other),
    StringEndsWith: lambda one, other: one.endswith(other),
    StringContains: lambda one, other: other in one,
}


@dataclass
class Bounds:
    """What may be wanted. Offsets [first_offset, end_offset), times [since_ms, until_ms)."""

    places: list[Filter] = field(default_factory=list)
    """Filters on topic and partition, evaluated for every partition."""
    first_offset: int | None = None
    end_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    nothing: bool = False

    def admits(self, topic: str, partition: int) -> bool:
        """Return True if a partition may hold wanted rows."""
        if self.nothing:
            return False
        here = {"topic": topic, "partition": partition}
        return all(_holds(each, here) for each in self.places)

    def push(self, filters: Iterable[Filter], columns: Iterable[str] = _NEVER_NULL) -> Iterator[Filter]:
        """Take what can be taken; yield what Spark must still evaluate."""
        known = tuple(columns)
        for each in filters:
            if not self._take(each, known):
                yield each

    def _take(self, each: Filter, known: tuple[str, ...]) -> bool:
        inner = each.child if isinstance(each, Not) else each
        path: tuple[str, ...] = getattr(inner, "attribute", ())
        if len(path) != 1 or path[0] not in known:
            return False
        column = path[0]
        if isinstance(inner, IsNull | IsNotNull):
            if isinstance(inner, IsNull) is not isinstance(each, Not):
                self.nothing = True
            return True
        value = getattr(inner, "value", None)
        if value is None or (isinstance(value, tuple | list) and None in value):
            return False
        if column in ("topic", "partition"):
            return self._take_place(each, inner, str if column == "topic" else int)
        if isinstance(each, Not):
            return False
        if column == "offset":
            return self._take_offset(inner, value)
        return self._take_time(inner, value) if column == "timestamp" else False

    def _take_place(self, each: Filter, inner: Filter, kind: type) -> bool:
        value: Any = getattr(inner, "value")  # noqa: B009 - not every filter has one, this one does
        values = value if isinstance(inner, In) else [value]
        if type(inner) not in _COMPARE or not all(type(one) is kind for one in values):
            return False
        self.places.append(each)
        return True

    def _take_offset(self, inner: Filter, value: Any) -> bool:
        values = list(value) if isinstance(inner, In) else [value]
        if not values or not all(type(one) is int for one in values):
            return False
        interval = _interval(inner, [(one, one) for one in values])
        if interval is None:
            return False
        self._offsets(*interval)
        return not isinstance(inner, In) or max(values) - min(values) + 1 == len(set(values))

    def _take_time(self, inner: Filter, value: Any) -> bool:
        values = list(value) if isinstance(inner, In) else [value]
        if not values:
            return False
        at = []
        for one in values:
            if isinstance(one, dt.datetime) and one.tzinfo:
                at.append((one - _EPOCH) // _MICROSECOND)
            elif type(one) is int:  # a time that no datetime can be: see `workers.keep_late_times`
                at.append(one)
            else:
                return False
        interval = _interval(inner, [(one // 1000, -(-one // 1000)) for one in at])
        if interval is None:
            return False
        self._times(*interval)
        return not isinstance(inner, In) or len(at) == 1

    def _offsets(self, first: int | None, end: int | None) -> None:
        self.first_offset = _larger(self.first_offset, first)
        self.end_offset = _smaller(self.end_offset, end)

    def _times(self, since: int | None, until: int | None) -> None:
        self.since_ms = _larger(self.since_ms, since)
        self.until_ms = _smaller(self.until_ms, until)
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            self.nothing = True


def _holds(each: Filter, here: dict[str, Any]) -> bool:
    if isinstance(each, Not):
        return not _holds(each.child, here)
    column: str = getattr(each, "attribute")[0]  # noqa: B009
    compare = _COMPARE[type(each)]
    return compare(here[column], getattr(each, "value"))  # noqa: B009


def _interval(inner: Filter, values: list[tuple[int, int]]) -> tuple[int | None, int | None] | None:
    """Return the bounds [first, end) of a comparison, given its values rounded down and up; None if it has
    none."""
    (down, up), last = min(values), max(values)[0]
    match inner:
        case EqualTo() | EqualNullSafe() | In():
            return up, last + 1
        case GreaterThan():
            return down + 1, None
        case GreaterThanOrEqual():
            return up, None
        case LessThan():
            return None, up
        case LessThanOrEqual():
            return None, down + 1
    return None


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _smaller(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
