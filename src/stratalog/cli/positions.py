"""Where a read begins and ends, as people write it.

earliest   latest   1234 (an offset)   -5 (the last five)   @1767225600000 (epoch ms)
-10m   now   2026-01-01   2026-01-01T12:00:00Z (a time)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stratalog.config.units import parse_time
from stratalog.errors import InvalidArgumentError

Kind = Literal["earliest", "latest", "offset", "tail", "time"]
_OFFSET = re.compile(r"[0-9]{1,19}\Z")
_TAIL = re.compile(r"-[0-9]{1,19}\Z")


@dataclass(frozen=True, slots=True)
class Position:
    """``value`` is an offset, a number of records before the end, or epoch milliseconds."""

    kind: Kind
    value: int = 0


def parse_position(text: str, now_ms: int) -> Position:
    """A position; InvalidArgumentError lists the forms when it is none of them."""
    stripped = text.strip()
    if stripped in ("earliest", "beginning"):
        return Position("earliest")
    if stripped in ("latest", "end"):
        return Position("latest")
    if _OFFSET.match(stripped):
        return Position("offset", int(stripped))
    if _TAIL.match(stripped):
        return Position("tail", int(stripped[1:]))
    try:
        stripped = stripped.removeprefix("@")
        return Position("time", parse_time(stripped, now_ms))
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"{text!r} is not a position: use earliest, latest, an offset, -5 (the last five), -10m, "
            "2026-01-01T12:00:00Z or @ with epoch milliseconds"
        ) from None
