"""JSON with a CRC line behind it: `stratalog.settings` and `stratalog.journal`.

    {…}
    crc32c: 7bff9b32

The CRC-32C covers every byte before its own line, in lower-case hexadecimal.
"""

from __future__ import annotations

import json

from stratalog.errors import CorruptionError
from stratalog.kernel import crc32c

_LABEL = b"crc32c: "
_LINE_SIZE = len(_LABEL) + 8 + 1


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
