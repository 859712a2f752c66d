"""Sizes, durations and moments as people write them, to integers and back.

Everything raises ``InvalidArgumentError`` (a ValueError) with the text and what would have been right.
The clock comes in as an argument.
"""

from __future__ import annotations

import datetime as dt
import re

from stratalog.errors import InvalidArgumentError

_BYTES = {
    "": 1,
    "b": 1,
    **{unit + suffix: 1024**power for power, unit in enumerate("kmgtp", 1) for suffix in ("", "ib")},
    **{unit + "b": 1000**power for power, unit in enumerate("kmgtp", 1)},
}
_MS = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_NUMBER = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)\Z", re.IGNORECASE)
_SPAN = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*", re.IGNORECASE)
_EPOCH = re.compile(r"[0-9]{1,19}\Z")
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_bytes(text: str) -> int:
    """``64MiB``, ``1.5GB``, ``512k``, ``4096``. ``KiB``, ``K`` are 1024; ``kB`` is 1000."""
    match = _SIZE.match(text.strip())
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidArgumentError(f"{text!r} is not a size; write 4096, 64MiB or 1.5GB")
    return _scale(match[1], factor)


def parse_duration_ms(text: str) -> int:
    """``500ms``, ``90s``, ``10m``, ``1h30m``, ``7d``, ``2w``; a bare number is milliseconds."""
    rest = text.strip()
    if _EPOCH.match(rest):
        return int(rest)
    total, position = 0, 0
    while match := _SPAN.match(rest, position):
        factor = _MS.get(match[2].lower())
        if factor is None:
            break
        total += _scale(match[1], factor)
        position = match.end()
    if not rest or position != len(rest):
        raise InvalidArgumentError(f"{text!r} is not a duration; write 500ms, 90s, 10m, 1h30m or 7d")
    return total


def parse_time(text: str, now_ms: int) -> int:
    """Return a moment in epoch milliseconds.

    ``now``; ``-10m`` and ``+10m`` count from now; a whole number is epoch milliseconds; otherwise ISO 8601
    (``2026-01-01``, ``2026-01-01T12:00:00Z``, ``2026-01-01 12:00+02:00``). Without a zone the time is UTC.
    """
    stripped = text.strip()
    if stripped.lower() == "now":
        return now_ms
    if stripped[:1] in ("-", "+") and not _EPOCH.match(stripped[1:]):
        span = parse_duration_ms(stripped[1:])
        return now_ms - span if stripped[0] == "-" else now_ms + span
    if _EPOCH.match(stripped):
        return int(stripped)
    try:
        moment = dt.datetime.fromisoformat(stripped)
    except ValueError:
        raise InvalidArgumentError(
            f"{text!r} is not a time; write 2026-01-01T12:00:00Z, -10m, now or epoch milliseconds"
        ) from None
    return epoch_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC))


def epoch_ms(moment: dt.datetime) -> int:
    """Return a moment with a time zone in epoch milliseconds."""
    return (moment - _UTC_EPOCH) // dt.timedelta(milliseconds=1)


def format_bytes(size_bytes: int) -> str:
    """``0 B``, ``4.0 KiB``, ``1.5 GiB``: three figures at most."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        value /= 1024
        if abs(value) < 999.5 or unit == "EiB":
            break
    return f"{value:.1f} {unit}" if abs(value) < 99.95 else f"{value:.0f} {unit}"


def format_duration_ms(span_ms: int) -> str:
    """``250ms``, ``1.5s``, ``10m``, ``1h 30m``, ``7d``: the two largest parts."""
    if span_ms < 0:
        return "-" + format_duration_ms(-span_ms)
    if span_ms < 1000:
        return f"{span_ms}ms"
    if span_ms < 60_000:
        return f"{span_ms / 1000:g}s" if span_ms % 1000 else f"{span_ms // 1000}s"
    parts: list[str] = []
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        count, span_ms = divmod(span_ms, factor)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def format_time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; the bare number when no calendar holds it."""
    try:
        moment = _UTC_EPOCH + dt.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _scale(number: str, factor: int) -> int:
    """``number`` times ``factor``, exact for whole numbers of any size."""
    whole, _, fraction = number.partition(".")
    part = int(fraction) * factor // 10 ** len(fraction) if fraction else 0
    return int(whole) * factor + part
