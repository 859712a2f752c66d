"""Where a read begins and ends, as the user writes it and as offsets.

    earliest   latest                              {"orders": {"0": 23, "1": -2}}   (-2 earliest, -1 latest)
    -10m   2026-01-01T12:00:00Z   1767225600000    {"orders": {"0": 1767225600000}} (by timestamp)

A `Position` is parsed once and knows no log; `resolve` finds its offsets in one. Offsets in JSON have the
shape of Spark's Kafka source. Touches the log only through what it is handed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from stratalog.config.units import parse_time
from stratalog.errors import ConfigError, InvalidArgumentError
from stratalog.log.read.reader import Isolation

Pair = tuple[str, int]
Offsets = dict[Pair, int]
Kind = Literal["earliest", "latest", "offsets", "time", "times"]
Strategy = Literal["error", "latest"]

EARLIEST = -2
LATEST = -1
_OFFSETS_EXPECTED = (
    'earliest, latest, a time (-10m, 2026-01-01T12:00:00Z) or JSON {"topic": {"0": 23, "1": -2}}'
)
_TIME_EXPECTED = "epoch milliseconds, -10m or 2026-01-01T12:00:00Z"
_TIMES_EXPECTED = 'JSON {"topic": {"0": 1767225600000}}'
_RELATIVE = re.compile(r"\s*(?:[-+]|now\s*\Z)", re.IGNORECASE)


@dataclass(frozen=True)
class Position:
    """One end of a read. ``option`` is the user's option; ``text`` a time, resolved when planned."""

    option: str
    kind: Kind
    offsets: Mapping[Pair, int] = field(default_factory=dict)
    text: str = ""
    strategy: Strategy = "latest"
    """If no record is at the time or later: an error, as in Kafka's source, or the end."""


class Ends(Protocol):
    """The part of the logs that `resolve` needs."""

    def start_offset(self, topic: str, partition: int) -> int: ...

    def end_offset(self, topic: str, partition: int, isolation: Isolation) -> int: ...

    def offset_for_time(
        self, topic: str, partition: int, timestamp: int, isolation: Isolation
    ) -> int | None: ...


def bad_option(option: str, problem: str, expected: str) -> ConfigError:
    """Return the error for a wrong option; every one of them ends like this."""
    return ConfigError(f"option '{option}': {problem}; expected {expected}")


def parse_offsets_option(option: str, text: str) -> Position:
    """``startingOffsets`` or ``endingOffsets``."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Position(option, "earliest" if word == "earliest" else "latest")
    if text.lstrip().startswith("{"):
        offsets = _parse_json(option, text, _OFFSETS_EXPECTED)
        for (topic, partition), offset in offsets.items():
            if offset < EARLIEST:
                raise bad_option(option, f"{topic}-{partition} has offset {offset}", "-2, -1 or 0 and more")
        return Position(option, "offsets", offsets)
    if re.fullmatch(r"\s*[-+]?[0-9]+\s*", text):
        raise bad_option(option, f"{text!r} is a number without a topic", _OFFSETS_EXPECTED)
    return _time(option, text, _OFFSETS_EXPECTED, "latest")


def parse_time_option(option: str, text: str, strategy: Strategy) -> Position:
    """``startingTimestamp`` or ``endingTimestamp``."""
    return _time(option, text, _TIME_EXPECTED, strategy)


def parse_times_option(option: str, text: str, strategy: Strategy) -> Position:
    """``startingOffsetsByTimestamp`` or ``endingOffsetsByTimestamp``."""
    return Position(option, "times", _parse_json(option, text, _TIMES_EXPECTED), strategy=strategy)


def parse_assign(option: str, text: str) -> tuple[Pair, ...]:
    """``{"orders": [0, 1]}``"""
    expected = 'JSON {"topic": [0, 1]}'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise bad_option(option, f"{text!r} is not JSON ({error})", expected) from None
    if not isinstance(found, dict) or not found:
        raise bad_option(option, f"{text!r} names no partition", expected)
    pairs = []
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(_is_number(each) and each >= 0 for each in numbers):
            raise bad_option(option, f"{numbers!r} is not a list of partitions", expected)
        pairs += [(topic, number) for number in numbers]
    return tuple(sorted(set(pairs)))


def _time(option: str, text: str, expected: str, strategy: Strategy) -> Position:
    try:
        parse_time(text, 0)
    except InvalidArgumentError:
        raise bad_option(option, f"got {text!r}", expected) from None
    return Position(option, "time", text=text, strategy="latest" if _RELATIVE.match(text) else strategy)


def _parse_json(option: str, text: str, expected: str) -> Offsets:
    try:
        return parse_offsets(json.loads(text))
    except ValueError as error:
        raise bad_option(option, f"{text!r} cannot be read ({error})", expected) from None


def parse_offsets(value: object) -> Offsets:
    """Check offsets from parsed JSON; raise ValueError if they are wrong. Keys with ``@`` are skipped."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    found: Offsets = {}
    for topic, partitions in value.items():
        if topic.startswith("@"):
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} has no object of partitions")
        for number, offset in partitions.items():
            if not number.isdecimal() or not _is_number(offset):
                raise ValueError(f"{topic!r} has {number!r}: {offset!r}")
            found[(topic, int(number))] = offset
    return found


def format_offsets(offsets: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """Return offsets for JSON, always in the same order: Spark compares the text."""
    made: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        made.setdefault(topic, {})[str(partition)] = offset
    return made


def resolve(
    position: Position,
    logs: Ends,
    pairs: Iterable[Pair],
    wanted: Iterable[Pair] | None = None,
    *,
    isolation: Isolation,
    now_ms: int,
) -> Offsets:
    """Return the offset of every wanted partition; of all of ``pairs`` when None.

    Raise ConfigError if the position leaves out one of ``pairs`` or names another.
    """
    every = sorted(pairs)
    if position.kind in ("offsets", "times"):
        _check_cover(position, every)
    at: Callable[[Pair], int]
    match position.kind:
        case "earliest":
            at = lambda pair: logs.start_offset(*pair)  # noqa: E731
        case "latest":
            at = lambda pair: logs.end_offset(*pair, isolation)  # noqa: E731
        case "offsets":
            at = lambda pair: _named(logs, pair, position.offsets[pair], isolation)  # noqa: E731
        case "time":
            moment = parse_time(position.text, now_ms)
            at = lambda pair: _at_time(position, logs, pair, moment, isolation)  # noqa: E731
        case "times":
            at = lambda pair: _at_time(position, logs, pair, position.offsets[pair], isolation)  # noqa: E731
    return {pair: at(pair) for pair in (every if wanted is None else wanted)}


def _check_cover(position: Position, wanted: list[Pair]) -> None:
    named = position.offsets.keys()
    missing = [pair for pair in wanted if pair not in named]
    unknown = sorted(set(named) - set(wanted))
    for pairs, problem in ((missing, "no offset for"), (unknown, "not read, but named:")):
        if pairs:
            names = ", ".join(f"{topic}-{number}" for topic, number in pairs[:5])
            raise bad_option(
                position.option, f"{problem} {names}", "every partition that is read and no other"
            )


def _named(logs: Ends, pair: Pair, offset: int, isolation: Isolation) -> int:
    if offset == EARLIEST:
        return logs.start_offset(*pair)
    return logs.end_offset(*pair, isolation) if offset == LATEST else offset


def _at_time(position: Position, logs: Ends, pair: Pair, timestamp: int, isolation: Isolation) -> int:
    if timestamp == LATEST:
        return logs.end_offset(*pair, isolation)
    if timestamp == EARLIEST:
        return logs.start_offset(*pair)
    found = logs.offset_for_time(*pair, timestamp, isolation)
    if found is not None:
        return found
    if position.strategy == "error":
        raise bad_option(
            position.option,
            f"no record of {pair[0]}-{pair[1]} is at {timestamp} or later",
            "a time that the log reaches, or startingOffsetsByTimestampStrategy=latest to begin at its end",
        )
    return logs.end_offset(*pair, isolation)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
