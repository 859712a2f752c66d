"""JSON with a CRC line behind it (settings, journal, the manifest of an exported topic), and checked fields.

    {…}
    crc32c: 7bff9b32

The CRC-32C covers every byte before its own line, in lower-case hexadecimal.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from stratalog.errors import CorruptionError
from stratalog.kernel import crc32c

_LABEL = b"crc32c: "
_LINE_SIZE = len(_LABEL) + 8 + 1
_CRC = re.compile("[0-9a-f]{8}")
_REQUIRED = object()
MAX_COUNT = 2**63 - 1


def pack(content: object, indent: int | None = None) -> bytes:
    body = json.dumps(content, indent=indent).encode() + b"\n"
    return body + _line(body)


def parse(data: bytes | bytearray | memoryview, what: str) -> dict[str, object]:
    """Return the object in ``data``; raise CorruptionError, which begins with ``what``, for anything else."""
    raw = bytes(data)
    body, line = raw[:-_LINE_SIZE], raw[-_LINE_SIZE:]
    if not line.startswith(_LABEL):
        raise CorruptionError(f"{what}: no CRC line at the end", position=len(body))
    if line != _line(body):
        raise CorruptionError(
            f"{what}: the CRC does not match; was the file edited by hand?", position=len(body)
        )
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{what}: not JSON: {error}", position=0) from None
    if not isinstance(content, dict):
        raise CorruptionError(f"{what}: not an object", position=0)
    return content


def _line(body: bytes) -> bytes:
    return _LABEL + f"{crc32c(body):08x}\n".encode()


class Fields:
    """A JSON object whose fields are taken one by one, each checked for its type.

    A missing field or a value of another type is a CorruptionError that begins with ``what``.
    """

    def __init__(self, value: object, what: str) -> None:
        self._what = what
        if not isinstance(value, dict):
            self.fail("not an object")
        self._left = dict(value)

    def fail(self, reason: str) -> NoReturn:
        raise CorruptionError(f"{self._what}: {reason}")

    def take(self, name: str, default: object = _REQUIRED) -> Any:
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            self.fail(f"no {name}")
        return value

    def text(self, name: str, longest: int = MAX_COUNT) -> str:
        return self.as_text(self.take(name), name, longest)

    def count(self, name: str, most: int = MAX_COUNT, default: object = _REQUIRED) -> int:
        return self.as_count(self.take(name, default), name, most)

    def strings(self, name: str, default: object = _REQUIRED) -> dict[str, str]:
        value = self.take(name, default)
        if not isinstance(value, dict):
            self.fail(f"{name} is not an object")
        return {each: self.as_text(text, f"{each!r} in {name}") for each, text in value.items()}

    def items(self, name: str) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list):
            self.fail(f"{name} is not a list")
        return value

    def rows(self, name: str, width: int) -> list[Any]:
        rows = self.items(name)
        if not all(isinstance(row, list) and len(row) == width for row in rows):
            self.fail(f"{name} has a row that is not {width} values")
        return rows

    def as_text(self, value: object, name: str, longest: int = MAX_COUNT) -> str:
        if not isinstance(value, str) or len(value) > longest:
            self.fail(f"{name} is not a text" + (f" of at most {longest} characters" * (longest < MAX_COUNT)))
        return value

    def as_count(self, value: object, name: str, most: int = MAX_COUNT) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self.fail(f"{name} is not a count from 0 to {most}")
        return value

    def as_flag(self, value: object, name: str) -> bool | None:
        if value is not None and not isinstance(value, bool):
            self.fail(f"{name} is not true, false or null")
        return value

    def as_crc(self, value: object) -> int:
        if not isinstance(value, str) or _CRC.fullmatch(value) is None:
            self.fail(f"{value!r} is not a checksum")
        return int(value, 16)

    def nothing_left(self) -> None:
        """Raise CorruptionError if a field was not taken."""
        if self._left:
            self.fail(f"unknown fields {sorted(self._left)[:5]}")
