"""The filter itself: rows, room and codes, on both kernels. What it makes is judged in tests/format."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from stratalog.format import batch
from stratalog.model import Record
from tests.kernel.both import engine

__all__ = ["engine"]

TARGET_ROOM, MADE_ROOM, RECORD_ROOM = 1, 2, 3
WIDTH = 14


def some_log(sizes: list[int], codec: int = 0) -> tuple[bytes, batch.Scan]:
    parts, offset = [], 0
    for size in sizes:
        made, _ = batch.encode_records(
            [Record(b"v" * i, b"%d" % i, (), 100 + i) for i in range(size)],
            options=batch.BatchOptions(
                base_offset=offset, leader_epoch=0, now_ms=0, codec=codec, max_bytes=1 << 20
            ),
        )
        parts.append(bytes(made.data))
        offset += size
    log = b"".join(parts)
    return log, batch.scan(log)


class Call:
    """One run of `filter_rows`, with as much room as is asked for."""

    def __init__(self, engine: Any, log: bytes, scan: batch.Scan, room: int, rows: int, records: int) -> None:
        self.engine = engine
        self.log = log
        self.scan = scan
        self.target = bytearray(room)
        self.made = array("q", bytes(8 * WIDTH * rows))
        self.places = (array("q", bytes(8 * records)), array("q", bytes(8 * records)), bytearray(records))
        self.state = array("q", bytes(8 * 16))

    def run(self, row: int = 0, *, drops: Any = None, retention: bytes = b"") -> int:
        code: int = self.engine.filter_rows(
            self.log,
            self.scan.table,
            row,
            self.scan.n,
            -1,
            retention,
            None,
            drops,
            array("q"),
            0,
            -1,
            self.target,
            self.made,
            *self.places,
            self.state,
        )
        return code


def test_rows_are_done_as_far_as_there_is_room(engine: Any) -> None:
    """Each kind of room is asked for by its own code, and what was done before stays done."""
    log, scan = some_log([3, 4, 5])
    sizes = [header.size for header in scan]
    call = Call(engine, log, scan, sizes[0] + sizes[1], 9, 99)
    assert call.run() == TARGET_ROOM
    assert (call.state[3], call.state[4], call.state[5]) == (2, sizes[0] + sizes[1], 2)
    assert call.state[12] == sizes[2]
    assert call.target == log[: sizes[0] + sizes[1]]
    call.target = bytearray(call.target + bytes(sizes[2]))
    assert call.run(2) == 0
    assert call.target == log
    assert call.made[: 3 * WIDTH] == array("q", [
        number if column != 10 else scan.table[row * WIDTH + 8]
        for row in range(3)
        for column, number in enumerate(scan.table[row * WIDTH : (row + 1) * WIDTH])
    ])  # fmt: skip
    call = Call(engine, log, scan, len(log), 1, 99)
    assert call.run() == MADE_ROOM
    assert (call.state[3], call.state[5]) == (1, 1)
    call = Call(engine, log, scan, len(log), 3, 4)
    assert call.run() == RECORD_ROOM
    assert (call.state[3], call.state[12]) == (2, 5)
    for room, rows, records, code in ((0, 3, 9, 1), (999, 0, 9, 2), (999, 3, 0, 3)):
        assert Call(engine, log, scan, room, rows, records).run() == code


def test_it_stops_at_a_compressed_batch(engine: Any) -> None:
    log, scan = some_log([3, 4], codec=4)
    call = Call(engine, log, scan, len(log), 2, 99)
    assert call.run() == 0
    assert call.state[3] == 0
    assert call.run(retention=b"\2\0") == 0  # one that goes anyway is not opened
    assert (call.state[3], call.state[5]) == (1, 0)


def test_a_rewritten_batch_needs_room_to_grow(engine: Any) -> None:
    """The worst case is asked for before a byte is written."""
    log, scan = some_log([3])
    drops = engine.DropSet([b"0"])
    call = Call(engine, log, scan, len(log) + 19, 1, 9)
    assert call.run(drops=drops) == TARGET_ROOM
    assert call.state[12] == len(log) + 20
    assert not any(call.target)
    call = Call(engine, log, scan, len(log) + 20, 1, 9)
    assert call.run(drops=drops) == 0
    assert (call.state[6], call.state[7], call.state[10]) == (3, 2, 1)


def test_rows_outside_the_table(engine: Any) -> None:
    log, scan = some_log([3])
    call = Call(engine, log, scan, len(log), 1, 9)
    with pytest.raises(ValueError, match="outside the table"):
        call.run(-1)
    with pytest.raises(ValueError, match="outside the table"):
        engine.find_rows(scan.table, 0, 2, 1, array("q"))
    call.state[4] = len(log) + 1
    with pytest.raises(ValueError, match="outside the target"):
        call.run()
    call.state[4], call.state[5] = 0, 2
    with pytest.raises(ValueError, match="outside the target"):
        call.run()
    with pytest.raises(ValueError, match="negative"):
        engine.blank(-1)
    assert len(engine.blank(5)) == 5


def test_rows_by_attributes(engine: Any) -> None:
    _, scan = some_log([1, 1, 1])
    scan.table[WIDTH + 6] = 0x10
    scan.table[2 * WIDTH + 6] = 0x20
    rows = array("q", (9, 9))
    assert engine.find_rows(scan.table, 0, 3, 0x30, rows) == 2
    assert list(rows) == [1, 2]
    assert engine.find_rows(scan.table, 0, 3, 0x30, rows[:1]) == 2
    assert engine.find_rows(scan.table, 2, 3, 0x10, rows) == 0
