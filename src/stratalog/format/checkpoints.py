"""Checkpoints: small text files in Kafka's form, version 0.

What lives here: the four `…-offset-checkpoint` files of a log directory's root (recovery point, log
start, replication, cleaner) and `leader-epoch-checkpoint` of a partition.

    0                        version
    2                        number of lines that follow
    orders 0 1042            topic partition offset          (leader-epoch-checkpoint: epoch start-offset)
    orders 1 998

Lines end with a newline; fields are separated by one blank. As in Kafka an empty file, or one with nothing
but a version, has no entries, any run of white space separates, and a repeated key counts as given last.

They are written beside and renamed, so a crash leaves the old one or the new one. What they say may be
older than the log, never newer; without them the log is scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stratalog.errors import CorruptionError, UnsupportedFormat

OffsetCheckpoint = dict[tuple[str, int], int]
LeaderEpochs = list[tuple[int, int]]

VERSION = 0
RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"

_LINE_END = re.compile(r"\r\n|\n|\r")
# Java's \s, which is narrower than Python's.
_BLANKS = re.compile(r"[ \t\n\x0b\f\r]+")
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_INT32, _INT64 = 1 << 31, 1 << 63


def pack_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    return _pack([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def parse_offsets(data: bytes | bytearray | memoryview) -> OffsetCheckpoint:
    result: OffsetCheckpoint = {}
    for number, line in _lines(data):
        fields = _fields(line, number, 3)
        result[fields[0], _integer(fields[1], number, _INT32)] = _integer(fields[2], number, _INT64)
    return result


def pack_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return _pack([f"{epoch} {start_offset}" for epoch, start_offset in epochs])


def parse_leader_epochs(data: bytes | bytearray | memoryview) -> LeaderEpochs:
    result: LeaderEpochs = []
    for number, line in _lines(data):
        fields = _fields(line, number, 2)
        result.append((_integer(fields[0], number, _INT32), _integer(fields[1], number, _INT64)))
    return result


def _pack(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (VERSION, len(lines), *lines)).encode()


def _lines(data: bytes | bytearray | memoryview) -> list[tuple[int, str]]:
    """Return the entry lines with their numbers; check version and count."""
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as error:
        raise CorruptionError("checkpoint: not UTF-8", position=error.start) from None
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    version = _integer(lines[0], 1, _INT32)
    if version != VERSION:
        raise UnsupportedFormat(f"checkpoint of version {version}")
    if len(lines) == 1:
        return []
    count = _integer(lines[1], 2, _INT32)
    if count != len(lines) - 2:
        raise CorruptionError(f"checkpoint: {count} entries announced, {len(lines) - 2} found", position=0)
    return list(enumerate(lines[2:], 3))


def _fields(line: str, number: int, count: int) -> list[str]:
    fields = _BLANKS.split(line)
    while len(fields) > 1 and fields[-1] == "":
        fields.pop()
    if len(fields) != count or fields[0] == "":
        raise CorruptionError(f"checkpoint line {number}: {line[:100]!r}")
    return fields


def _integer(text: str, number: int, bound: int) -> int:
    if _NUMBER.fullmatch(text) and -bound <= (value := int(text)) < bound:
        return value
    raise CorruptionError(
        f"checkpoint line {number}: {text[:100]!r} is not a {bound.bit_length()}-bit number"
    )
