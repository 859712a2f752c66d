"""The loops of the dump tool, with types; only the command that needs them loads this module."""

from __future__ import annotations

from array import array

from stratalog.kernel import _dump
from stratalog.kernel import dump_slots as at

#: offset, timestamp, sequence, key, value, headers (name, value)
RawRecord = tuple[int, int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
Gaps = dict[int, int]

REASONS = {
    at.NEGATIVE_COUNT: "Found invalid record count",
    at.RECORD_SIZE: "Invalid record size: the batch has fewer bytes left",
    at.RECORD_STRUCTURE: "Found invalid record structure",
    at.HEADER_COUNT: "Found invalid number of record headers",
    at.HEADER_KEY_SIZE: "Invalid negative header key size",
    at.RECORD_SIZE_MISMATCH: "Invalid record size: the fields end elsewhere",
    at.TRAILING_BYTES: "Incorrect declared batch size, records still remaining in file",
}


def new_state(flags: int) -> memoryview:
    state = memoryview(array("q", bytes(8 * at.STATE_SIZE)))
    state[at.FLAGS] = flags
    state[at.LAST_OFFSET] = -1
    return state


def java_string(data: bytes) -> bytes:
    """Bytes as UTF-8, decoded the way Java does: each mistake a U+FFFD."""
    result: bytes = _dump.java_string(data)
    return result


def print_log(view: memoryview, out: memoryview, state: memoryview, gaps: Gaps) -> int:
    code: int = _dump.print_log(view, out, state, gaps)
    return code


def print_body(view: memoryview, out: memoryview, state: memoryview, gaps: Gaps) -> int:
    code: int = _dump.print_body(view, out, state, gaps)
    return code


def read_header(view: memoryview, state: memoryview) -> int:
    code: int = _dump.read_header(view, state)
    return code


def read_records(view: memoryview, state: memoryview, records: list[RawRecord] | None) -> int:
    code: int = _dump.read_records(view, state, records)
    return code
