"""What a setting is, and how its value is parsed and printed.

Types, ranges and canonical text are Kafka's (``ConfigDef``): what this module prints, a Kafka broker
reads, and the other way round. On top of Kafka, a text value of a setting measured in bytes or
milliseconds may carry a unit (``64MiB``, ``7d``); the canonical text never does.

Pure functions of their arguments; touches nothing.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from stratalog.config.units import format_bytes, format_duration_ms, parse_bytes, parse_duration_ms
from stratalog.errors import ConfigError
from stratalog.model import LONG_MAX

SettingType = Literal["int", "long", "double", "boolean", "string", "list"]
Scope = Literal["topic", "broker"]
Value = int | float | bool | str | tuple[str, ...]

INT_MAX = 2**31 - 1
_LIMITS = {"int": (-(2**31), INT_MAX), "long": (-(2**63), LONG_MAX)}
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Synonym:
    """Another broker name for a setting.

    Without a ``type`` it is an alias and takes the same values; with one it is a whole number that
    ``factor`` turns into the setting's unit.
    """

    name: str
    factor: int = 1
    type: SettingType | None = None
    minimum: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    ``name`` is what a topic override is called (for ``scope == "broker"`` the broker's own name);
    ``broker_name`` sets its default for every topic of a store, None if nothing does. ``synonyms`` are
    further broker names, used in order when ``broker_name`` is not set. ``extra`` are values allowed outside
    ``minimum`` and ``maximum``. ``deviation`` is the difference from Kafka; ``ours`` is True if Kafka does
    not have it. ``item_pattern`` is for the items of a list.
    """

    name: str
    type: SettingType
    default: Value
    scope: Scope
    broker_name: str | None
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    doc: str
    synonyms: tuple[Synonym, ...] = ()
    extra: tuple[int, ...] = ()
    deviation: str = ""
    ours: bool = False
    item_pattern: str = ""

    @property
    def field(self) -> str:
        """The attribute of ``TopicConfig`` that holds it."""
        return self.name.replace(".", "_")

    @property
    def unit(self) -> Literal["bytes", "ms", ""]:
        """What its number counts, when that is bytes or milliseconds."""
        if self.type not in ("int", "long"):
            return ""
        if self.name.endswith(".ms"):
            return "ms"
        if ".bytes" in self.name or self.name.endswith("buffer.size"):
            return "bytes"
        return ""

    @property
    def store_names(self) -> list[str]:
        """Names other than its own that set it for a store, the first one set wins."""
        names = [self.broker_name] if self.broker_name and self.broker_name != self.name else []
        return names + [synonym.name for synonym in self.synonyms]

    @property
    def range(self) -> str:
        """``at least 1`` or ``1 to 9 or -1``, to follow "must be"; empty without limits."""
        if self.minimum is None and self.maximum is None:
            return ""
        low = "" if self.minimum is None else canonical_number(self.minimum)
        high = "" if self.maximum is None else canonical_number(self.maximum)
        text = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"
        return text + "".join(f" or {value}" for value in self.extra)

    @property
    def default_text(self) -> str:
        return canonical(self.default)


def parse_value(setting: Setting, value: object, *, name: str | None = None) -> Value:
    """Return the typed value; ConfigError names the setting, the given value and the valid ones."""
    shown = name or setting.name
    parsed = _convert(setting.type, setting.unit, value, shown)
    if isinstance(parsed, tuple):
        return _check_list(setting, parsed, shown)
    if isinstance(parsed, str):
        if setting.choices and parsed not in setting.choices:
            close = [choice for choice in setting.choices if choice.lower() == parsed.lower()]
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{shown}={parsed}: must be one of {', '.join(setting.choices)}{hint}")
        return parsed
    if isinstance(parsed, bool) or parsed in setting.extra:
        return parsed
    low, high = setting.minimum, setting.maximum
    if (low is not None and parsed < low) or (high is not None and parsed > high):
        raise ConfigError(f"{shown}={canonical(parsed)}: out of range, must be {setting.range}")
    return parsed


def parse_synonym(setting: Setting, synonym: Synonym, value: object) -> Value:
    """Return the value of ``setting`` given under one of its synonyms."""
    if synonym.type is None:
        return parse_value(setting, value, name=synonym.name)
    parsed = _convert(synonym.type, "", value, synonym.name)
    assert isinstance(parsed, int)  # the table only has whole-number synonyms
    if synonym.minimum is not None and parsed < synonym.minimum:
        raise ConfigError(f"{synonym.name}={parsed}: out of range, must be at least {synonym.minimum}")
    if parsed < 0 and -1 in (setting.minimum, *setting.extra):
        return -1  # "no limit" has no unit: -1 hours is not -3,600,000 ms
    scaled = parsed * synonym.factor
    if scaled > LONG_MAX:
        raise ConfigError(f"{synonym.name}={parsed}: out of range, too large in milliseconds")
    return scaled


def canonical(value: Value) -> str:
    """Return the text Kafka prints for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return canonical_number(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return value


def canonical_number(value: float) -> str:
    """Return a number as Java's ``toString`` writes it."""
    if isinstance(value, int):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    shortest = next((s for n in range(18) if float(s := f"{value:.{n}e}") == value), f"{value:.17e}")
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def readable(setting: Setting, value: object) -> str:
    """Return a value for people: ``1.0 GiB``, ``7d``, ``no limit``, or the canonical text."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (int, float)):
        return ",".join(value) if isinstance(value, tuple) else str(value)
    if value >= LONG_MAX:
        return "no limit"
    if value < 0 and setting.name.startswith(("retention.", "local.retention.")):
        return "no limit" if value != -2 or setting.minimum != -2 else f"as {setting.name[6:]}"
    if isinstance(value, int) and value > 0:
        if setting.unit == "bytes":
            return format_bytes(value)
        if setting.unit == "ms":
            return format_duration_ms(value)
    return str(value)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` or nothing, to end an error about an unknown name."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _convert(kind: SettingType, unit: str, value: object, shown: str) -> Value:
    if kind == "boolean":
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        raise ConfigError(f"{shown}={value}: must be true or false")
    if kind == "string":
        if isinstance(value, str):
            return value.strip()
        raise ConfigError(f"{shown}={value!r}: must be a string")
    if kind == "list":
        return _convert_list(value, shown)
    if kind == "double":
        return _convert_double(value, shown)
    return _convert_whole(kind, unit, value, shown)


def _convert_whole(kind: SettingType, unit: str, value: object, shown: str) -> int:
    number: int
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and _WHOLE.match(text := value.strip()) and len(text) <= 20:
        number = int(text)
    elif isinstance(value, str) and unit:
        try:
            number = parse_bytes(value) if unit == "bytes" else parse_duration_ms(value)
        except ValueError as error:
            raise ConfigError(f"{shown}={value}: {error}") from None
    else:
        raise ConfigError(f"{shown}={value}: must be a whole number")
    low, high = _LIMITS[kind]
    if not low <= number <= high:
        raise ConfigError(f"{shown}={value}: does not fit a {kind} ({low} to {high})")
    return number


def _convert_double(value: object, shown: str) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ConfigError(f"{shown}={value}: must be a number")


def _convert_list(value: object, shown: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",")) if value.strip() else ()
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = sorted(value) if isinstance(value, (set, frozenset)) else list(value)
        if all(isinstance(part, str) for part in parts):
            return tuple(part.strip() for part in parts)
    raise ConfigError(f"{shown}={value!r}: must be a comma-separated list")


def _check_list(setting: Setting, parts: tuple[str, ...], shown: str) -> tuple[str, ...]:
    if "" in parts:
        raise ConfigError(f"{shown}={','.join(parts)}: a list has no empty items")
    for part in parts:
        if setting.choices and part not in setting.choices:
            raise ConfigError(f"{shown}={','.join(parts)}: {part} is not one of {', '.join(setting.choices)}")
        if setting.item_pattern and parts != ("*",) and not re.fullmatch(setting.item_pattern, part):
            raise ConfigError(f"{shown}={','.join(parts)}: must be * or a list of partition:broker")
    return tuple(dict.fromkeys(parts))  # the same item twice counts once, as in Kafka
