"""Checks of the arguments that callers pass in."""

from __future__ import annotations

import datetime as dt
import operator
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stratalog.config.units import epoch_ms, parse_time
from stratalog.errors import NOT_BYTES, InvalidArgumentError
from stratalog.model import Record

LARGEST = 2**63 - 1

Moment = int | str | dt.datetime
"""A time to read from or up to: epoch milliseconds, ISO 8601 text, ``-10m``, or a datetime with a zone."""

T = TypeVar("T")


def check_number(name: str, value: Any, low: int = -LARGEST - 1, high: int = LARGEST) -> int:
    """Return ``value`` as an int between ``low`` and ``high``; a bool, a float or a text is refused."""
    if type(value) is int and low <= value <= high:
        return value
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)
        except TypeError:
            raise InvalidArgumentError(f"{name} must be a whole number, not {value!r}") from None
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} must be a number from {low} to {high}, not {value}")
    return int(value)


def check_optional(name: str, value: Any, low: int = -LARGEST - 1) -> int | None:
    """Like `check_number`, for a number that may be None."""
    return None if value is None else check_number(name, value, low)


def wrong_type(name: str, wanted: str, value: object) -> InvalidArgumentError:
    """Build the error for an argument of a wrong type."""
    return InvalidArgumentError(f"{name} must be {wanted}, not {reprlib.repr(value)}")


def not_bytes(name: str, value: object) -> InvalidArgumentError:
    """Build the error for a key or value that is not bytes: what can be done with text and objects."""
    return wrong_type(name, "bytes or None", value).advising(NOT_BYTES.format(name))


def check_text(name: str, value: Any) -> str:
    """Return ``value`` if it is a string."""
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    return value


def check_key(value: Any) -> bytes:
    """Return a key if it is bytes."""
    if not isinstance(value, bytes):
        raise wrong_type("key", "bytes", value).advising(NOT_BYTES.format("key"))
    return value


def check_seconds(name: str, value: Any) -> float | None:
    """Return ``value`` if it is a number or None; one that no clock reaches is for ever."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise wrong_type(name, "a number of seconds", value)
    return float(min(max(value, -LARGEST), LARGEST))


def check_timestamp(name: str, value: Any) -> int:
    """Return a time in epoch milliseconds: a whole number of them, or a datetime with a time zone."""
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            raise InvalidArgumentError(
                f"{name} is a datetime without a time zone ({value}); use datetime.now(timezone.utc) or"
                f" value.astimezone()"
            )
        return epoch_ms(value)
    if isinstance(value, float | str):
        error = wrong_type(name, "a whole number of milliseconds or a datetime", value)
        raise error.advising("for seconds use int(seconds * 1000)" if isinstance(value, float) else "")
    if isinstance(value, dt.date | dt.timedelta):
        raise wrong_type(name, "epoch milliseconds or a datetime with a time zone", value)
    return check_number(name, value)


def check_moment(name: str, value: Any, now_ms: Callable[[], int]) -> int | None:
    """Return a time to read from or up to: what `check_timestamp` takes, ISO text, ``-10m`` or ``now``."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return parse_time(value, now_ms())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}: {error}") from None
    return check_timestamp(name, value)


def check_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping, an empty one for None."""
    if value is not None and not isinstance(value, Mapping):
        raise wrong_type(name, "a mapping", value)
    return value or {}


def check_list(name: str, values: Any, wanted: str) -> list[Any]:
    """Return the values as a list; a string, bytes, a mapping, a record or a frame is not taken for one."""
    if hasattr(values, "__arrow_c_stream__"):
        error = wrong_type(name, f"a list of {wanted}", type(values))
        raise error.advising("pyarrow.table(...) makes an Arrow table of it")
    try:
        if isinstance(values, str | bytes | Mapping | Record):
            raise TypeError
        iterator = iter(values)
    except TypeError:
        raise wrong_type(name, f"a list of {wanted}", values) from None
    return list(iterator)


def check_all(name: str, values: Any, kind: type[T], wanted: str) -> list[T]:
    """Return the values as a list if each is a ``kind``; ``wanted`` names that in the error."""
    found = check_list(name, values, wanted)
    for each in found:
        if not isinstance(each, kind):
            raise wrong_type(name, f"a list of {wanted}", each)
    return found
