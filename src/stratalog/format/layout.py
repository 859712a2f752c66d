"""How the file kinds describe their own bytes.

Every module of a binary file kind exports its layout as plain data, one row a field, in file order. The
structs are made from it and docs/FORMAT.md is compared with it by a test, so the code and the document
cannot drift apart. Nothing here touches a file.
"""

from __future__ import annotations

import struct
import sys

Field = tuple[str, str, int]
"""Name, type as docs/FORMAT.md writes it, size in bytes."""
Layout = tuple[Field, ...]

_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I", "uint64": "Q"}

LITTLE_ENDIAN = sys.byteorder == "little"


def make_struct(layout: Layout) -> struct.Struct:
    """Return the big-endian struct of a layout of integers and ``bytes`` fields."""
    codes = (f"{size}s" if kind == "bytes" else _CODES[kind] for _, kind, size in layout)
    return struct.Struct(">" + "".join(codes))


def layout_size(layout: Layout) -> int:
    return sum(size for _, _, size in layout)
