"""What `check` holds a topic to, and its judgement: pure functions of limits, measures and the time.

Limits are written as in a TOML file:

    since = "-1h"                    # optional: only what was appended since then

    [limits]                         # of every topic
    max_age = "15m"                  # the newest record is no older
    max_ahead = "1m"                 # and no further in the future
    max_null_keys = "1%"             # of the records

    [topics.orders]                  # of this one besides
    min_records = 1000
    max_null_fields = { amount = 0, "customer.id" = 0.01 }   # of JSON values
    late_after = "5m"                # behind the largest timestamp before it in its partition
    max_late = 0.001                 # share of late records
    max_lateness = "1h"              # of any record
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratalog.config.units import format_duration_ms, parse_bytes, parse_duration_ms
from stratalog.errors import ConfigError, InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit. Times are in milliseconds, shares between 0 and 1."""

    max_age: int | None = None
    max_ahead: int | None = None
    min_records: int | None = None
    max_records: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    max_null_keys: float | None = None
    max_null_values: float | None = None
    max_null_fields: Mapping[str, float] = field(default_factory=dict)
    late_after: int = 0
    max_late: float | None = None
    max_lateness: int | None = None

    @classmethod
    def parse(cls, said: Mapping[str, object], where: str = "limits") -> Limits:
        """Limits as people write them; ConfigError names the one that is wrong and what it takes."""
        made: dict[str, Any] = {}
        for name, value in said.items():
            if name not in _READERS:
                close = difflib.get_close_matches(name, _READERS, 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ConfigError(
                    f"{where}: there is no limit {name!r}{hint}; there are {', '.join(_READERS)}"
                )
            if value is None:
                continue
            read, takes = _READERS[name]
            try:
                made[name] = read(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{where}: {name} is {value!r}, takes {takes}") from None
        return cls(**made)

    @property
    def any(self) -> bool:
        """Whether anything at all is limited."""
        return self != Limits(late_after=self.late_after)

    @property
    def judges_lateness(self) -> bool:
        return self.max_late is not None or self.max_lateness is not None

    @property
    def reads_records(self) -> bool:
        """Whether headers do not tell enough."""
        sizes = (self.min_bytes, self.max_bytes, self.max_null_keys, self.max_null_values)
        return any(each is not None for each in sizes) or bool(self.max_null_fields) or self.judges_lateness


@dataclass(slots=True)
class Measures:
    """What was found of one topic, or of one range of it. Times are in milliseconds."""

    newest: int | None = None
    records: int = 0
    bytes: int = 0
    """Of keys and values."""
    null_keys: int = 0
    null_values: int = 0
    null_fields: dict[str, int] = field(default_factory=dict)
    late: int = 0
    lateness: int = 0
    """The largest."""

    def add(self, other: Measures) -> None:
        """The same of both together."""
        for name in ("records", "bytes", "null_keys", "null_values", "late"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, count in other.null_fields.items():
            self.null_fields[name] = self.null_fields.get(name, 0) + count
        self.lateness = max(self.lateness, other.lateness)
        if other.newest is not None:
            self.newest = other.newest if self.newest is None else max(self.newest, other.newest)


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit of one topic: what was measured, what is allowed, and a sentence about it."""

    topic: str
    limit: str
    measured: float | None
    allowed: float
    ok: bool
    text: str

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "limit": self.limit,
            "measured": self.measured,
            "allowed": self.allowed,
            "ok": self.ok,
            "text": self.text,
        }


def judge(topic: str, limits: Limits, found: Measures, now_ms: int) -> list[Finding]:
    """Every limit of a topic held against what was found, kept ones too."""
    made: list[Finding] = []

    def say(limit: str, measured: float | None, allowed: float | None, ok: bool, text: str) -> None:
        if allowed is not None:
            made.append(Finding(topic, limit, measured, allowed, ok, f"{topic}: {text}"))

    age = None if found.newest is None else now_ms - found.newest
    if limits.max_age is not None:
        allowed = format_duration_ms(limits.max_age)
        if age is None:
            say(
                "max_age", None, limits.max_age, False, f"there is no record; the newest may be {allowed} old"
            )
        else:
            old = format_duration_ms(max(age, 0))
            kept = age <= limits.max_age
            say("max_age", age, limits.max_age, kept, f"the newest record is {old} old, {allowed} is allowed")
    if limits.max_ahead is not None:
        ahead = 0 if age is None else max(-age, 0)
        allowed = format_duration_ms(limits.max_ahead)
        text = f"the newest record is {format_duration_ms(ahead)} in the future, {allowed} is allowed"
        say("max_ahead", ahead, limits.max_ahead, ahead <= limits.max_ahead, text)
    for what in ("records", "bytes"):
        number = getattr(found, what)
        least, most = getattr(limits, f"min_{what}"), getattr(limits, f"max_{what}")
        if least is not None:
            say(
                f"min_{what}",
                number,
                least,
                number >= least,
                f"{number:,} {what}, at least {least:,} are due",
            )
        if most is not None:
            say(
                f"max_{what}",
                number,
                most,
                number <= most,
                f"{number:,} {what}, at most {most:,} are allowed",
            )
    shares = [
        ("max_null_keys", found.null_keys, found.records, limits.max_null_keys, "records have no key"),
        (
            "max_null_values",
            found.null_values,
            found.records,
            limits.max_null_values,
            "records have no value",
        ),
        ("max_late", found.late, found.records, limits.max_late, "records are late"),
    ]
    values = found.records - found.null_values
    for name, most in limits.max_null_fields.items():
        nulls = found.null_fields.get(name, 0)
        shares.append((f"max_null_fields.{name}", nulls, values, most, f"values have no {name}"))
    for limit, part, whole, most, text in shares:
        if most is not None:
            share = part / whole if whole else 0.0
            said = f"{part:,} of {whole:,} {text} ({share:.2%}), {most:.2%} is allowed"
            say(limit, round(share, 6), most, share <= most, said)
    if limits.max_lateness is not None:
        said = f"a record is {format_duration_ms(found.lateness)} late"
        said += f", {format_duration_ms(limits.max_lateness)} is allowed"
        say("max_lateness", found.lateness, limits.max_lateness, found.lateness <= limits.max_lateness, said)
    return made


def read_limits(text: str, where: str) -> dict[str, Any]:
    """A limits file; ConfigError when it is not TOML or has something else in it."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from None
    for name, value in said.items():
        if name not in ("since", "until", "limits", "topics"):
            raise ConfigError(
                f"{where}: there is no {name!r}; there are since, until, [limits], [topics.NAME]"
            )
        if name in ("limits", "topics") and not isinstance(value, dict):
            raise ConfigError(f"{where}: {name} is {value!r}, takes a table")
    for name, value in said.get("topics", {}).items():
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: topics.{name} is {value!r}, takes a table of limits")
    return said


def _duration(value: object) -> int:
    if isinstance(value, str):
        return parse_duration_ms(value)
    raise TypeError


def _size(value: object) -> int:
    return parse_bytes(value) if isinstance(value, str) else _count(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _share(value: object) -> float:
    if isinstance(value, str):
        number = float(value.strip().removesuffix("%"))
        share = number / 100 if value.strip().endswith("%") else number
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        share = float(value)
    else:
        raise TypeError
    if not 0 <= share <= 1:
        raise InvalidArgumentError(f"{value} is not a share")
    return share


def _shares(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {str(name): _share(each) for name, each in value.items()}


_A_DURATION = "a duration such as 10m or 1h30m"
_A_COUNT = "a whole number"
_A_SIZE = "a size such as 64MiB"
_A_SHARE = "a share such as 0.01 or 1%"
_READERS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "max_age": (_duration, _A_DURATION),
    "max_ahead": (_duration, _A_DURATION),
    "min_records": (_count, _A_COUNT),
    "max_records": (_count, _A_COUNT),
    "min_bytes": (_size, _A_SIZE),
    "max_bytes": (_size, _A_SIZE),
    "max_null_keys": (_share, _A_SHARE),
    "max_null_values": (_share, _A_SHARE),
    "max_null_fields": (_shares, "a table of fields and shares such as { amount = 0.01 }"),
    "late_after": (_duration, _A_DURATION),
    "max_late": (_share, _A_SHARE),
    "max_lateness": (_duration, _A_DURATION),
}
