"""Checks of numbers that callers pass in."""

from __future__ import annotations

import operator
from typing import Any

from stratalog.errors import InvalidArgumentError

LARGEST = 2**63 - 1


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
            raise InvalidArgumentError(f"{name} is a whole number, not {value!r}") from None
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is a number from {low} to {high}, not {value}")
    return int(value)


def check_optional(name: str, value: Any, low: int = -LARGEST - 1, high: int = LARGEST) -> int | None:
    """Like `check_number`, for a number that may be None."""
    return None if value is None else check_number(name, value, low, high)
