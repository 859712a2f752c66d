"""Hostile bytes for every entry point of the kernel: ``fuzz_kernel.py --rounds N --seed S``.

Valid batches are mutated (bits flipped, bytes cut, spliced, lengths and counts made to lie), their CRC put
right again so that the record code is reached, and handed over in blocks of exactly their size, with
output blocks of exactly (or less than) the size needed. Then the header table lies as well. Any outcome but
an exception of the agreed kinds is fine here; what must not happen is seen by AddressSanitizer (asan.sh).
With ``--compare`` the interpreted kernel runs beside and must answer alike.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from array import array
from types import SimpleNamespace
from typing import Any

from stratalog import kernel
from stratalog.kernel import loader
from stratalog.model import Record

WIDTH = 14
ALL = 63


def interpreted_kernel() -> SimpleNamespace:
    """The interpreted kernel under the names of the package."""
    modules = loader.interpreted(*kernel.MODULES)
    found = {}
    for name in kernel.__all__:
        for module in modules.values():
            if hasattr(module, name):
                found[name] = getattr(module, name)
    return SimpleNamespace(**found)


def some_records(rng: random.Random) -> list[Record]:
    def data(limit: int) -> bytes | None:
        return rng.choice((None, b"", rng.randbytes(rng.randrange(limit))))

    headers = [(rng.choice(("", "a", "ключ", "x" * 130)), data(20)) for _ in range(rng.randrange(4))]
    return [
        Record(
            data(rng.choice((4, 40, 300))),
            data(20),
            headers if rng.random() < 0.3 else (),
            rng.choice((None, 0, -1, 5, 2**40 + rng.randrange(10**6), 2**63 - 1)),
        )
        for _ in range(rng.choice((1, 1, 2, 3, 8, 40)))
    ]


def some_batch(rng: random.Random, base_offset: int) -> tuple[bytes, int]:
    attributes = rng.choice((0, 0, 0, 8, 0x10, 0x20, 0x40))
    made = bytearray()
    size, count, *_ = kernel.encode_tuples(
        made,
        some_records(rng),
        0,
        1_700_000_000_000,
        1 << 20,
        base_offset,
        3,
        attributes,
        rng.choice((-1, 7)),
        0,
        5,
    )
    assert count
    return bytes(made[:size]), base_offset + count


def fix_crc(data: bytearray, position: int, size: int) -> None:
    crc = kernel.crc32c(memoryview(data)[position + 21 : position + size])
    struct.pack_into(">I", data, position + 17, crc)


def mutate(rng: random.Random, data: bytearray) -> None:
    """One change to one batch's bytes."""
    kind = rng.randrange(8)
    at = rng.randrange(61, len(data)) if len(data) > 61 and rng.random() < 0.8 else rng.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
    elif kind == 2:
        del data[at : at + rng.randrange(1, 12)]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 12))
    elif kind == 4:
        data[at : at + rng.randrange(1, 12)] = rng.choice((b"\xff", b"\x80")) * rng.randrange(1, 12)
    elif kind == 5:
        struct.pack_into(">i", data, 57, rng.choice((0, 1, 2, 2**31 - 1, -1, rng.randrange(100))))
    elif kind == 6:
        struct.pack_into(">i", data, 23, rng.choice((0, 1, 2**31 - 1, -1, rng.randrange(100))))
    else:
        other = rng.randrange(len(data))
        piece = data[other : other + rng.randrange(1, 30)]
        data[at : at + len(piece)] = piece


def mutated_log(rng: random.Random) -> bytearray:
    """A few batches, one of them changed; usually with length and CRC made to agree again."""
    parts = []
    offset = rng.choice((0, 0, 100, 2**40))
    batches = rng.choice((1, 1, 2, 4))
    for i in range(batches):
        made, offset = some_batch(rng, offset)
        data = bytearray(made)
        if i == batches - 1 or rng.random() < 0.2:
            for _ in range(rng.choice((1, 1, 2, 5))):
                mutate(rng, data)
                if len(data) < 61:
                    data += bytes(61 - len(data))
            if rng.random() < 0.9:
                struct.pack_into(">i", data, 8, len(data) - 12)
                data[16] = 2
            if rng.random() < 0.6:
                struct.pack_into(">q", data, 0, offset)
            fix_crc(data, 0, len(data))
        parts.append(data)
    log = bytearray().join(parts)
    if rng.random() < 0.1:
        del log[rng.randrange(len(log)) :]
    return log


def block(data: Any = b"") -> memoryview:
    """Writable memory of exactly this size: bytes and bytearray are one byte longer than they say."""
    return memoryview(array("B", bytes(data)))


def answer(work: Any, *args: Any) -> Any:
    """A result, or the name of the refusal."""
    try:
        return work(*args)
    except (ValueError, OverflowError, RuntimeError) as error:
        return type(error).__name__


class Drive:
    """Every entry point of one kernel over one log. What they answered is kept for comparison."""

    def __init__(self, engine: Any, log: bytes | bytearray, seed: int) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.source = block(log)
        self.said: list[Any] = []
        self.bounds = array("q", (0, 2**63 - 1, -(2**63), 2**63 - 1))
        if self.rng.random() < 0.3:
            self.bounds = array("q", (self.rng.randrange(120), 110, 0, 2**62))

    def say(self, *what: Any) -> None:
        self.said.append(what)

    def run(self, lies: bool) -> list[Any]:
        table, n = self.scan()
        self.over(table, n)
        if lies:
            for i in range(n * WIDTH):
                if self.rng.random() < 0.05:
                    table[i] = self.rng.choice(
                        (-1, 0, 1, 61, 2**31, 2**63 - 1, -(2**63), self.rng.randrange(999))
                    )
            self.over(table, n)
        return self.said

    def scan(self) -> tuple[array[int], int]:
        table = array("q", bytes(8 * WIDTH * 6))
        info = array("q", (0, 0, 0, 0, 0, 0, 0, -1, 0))
        size = len(self.source)
        n = self.engine.scan_batches(self.source, 0, size, True, False, table, 0, info)
        self.say("scan", n, table, info)
        again = array("q", (0, 0, 0, 0, 0, 0, 0, -1, 0))
        at = self.rng.randrange(size + 1)
        rows = array("q", bytes(8 * WIDTH * 2))
        self.say(self.engine.scan_batches(self.source, at, size, False, True, rows, 0, again), rows, again)
        headers, more = array("q", bytes(8 * WIDTH * 6)), array("q", (0, 0, 0, 0, 0, 0, 0, -1, 0))
        reach = size + self.rng.randrange(2 * size + 1)
        found = self.engine.scan_batches(self.source, at, size, False, False, headers, 0, more, reach)
        self.say("headers", found, headers, more)
        least = self.rng.randrange(-1, reach + 1)
        sums = array("q", (0, 2**63 - 1, -1, 2**63 - 1, -(2**63), 0))
        stopped = self.engine.sum_batches(table, 0, n, self.bounds, b"", self.rng.randrange(4), sums)
        self.say("sums", stopped, sums)
        self.say("rows", [self.engine.find_row(headers, found, column, least) for column in (0, 3)])
        return table, n

    def over(self, table: array[int], n: int) -> None:
        rng, engine = self.rng, self.engine
        skip = rng.randbytes(n) if rng.random() < 0.2 else b""
        out = array("q", bytes(40))
        first = 0
        while first < n:
            found = answer(engine.plan_run, table, first, n, self.bounds, skip, 1 << 20, out)
            self.say("plan", found, out[:])
            if found is not True:
                break
            row, first = out[0], out[1]
            body = -1
            if out[4]:  # the bytes stand for a decompressed batch, right or wrong
                row, body = first - 1, rng.choice((0, 61, len(self.source), len(self.source) + 1))
            self.decode(table, row, first, body, skip)
        for row in range(n):
            state = array("q", bytes(64))
            rows = table[:]
            body = rng.choice((-1, -1, -1, 0, 61))
            end = row + 1 if body >= 0 else n
            code = answer(engine.walk_records, self.source, rows, row, end, body, state)
            self.say("walk", code, state, rows)
        state = array("q", (0, -1, -1))
        entries = array("q", bytes(32 * n))
        self.say("index", answer(engine.index_batches, table, n, 100, 7, state, entries), state, entries)
        self.compact(table, n)

    def compact(self, table: array[int], n: int) -> None:
        """Keys collected, then the batches filtered, with room for all of it, for some or for none."""
        rng, engine = self.rng, self.engine
        keys = engine.KeyMap(rng.choice((32, 160, 4096)), rng.choice((0, 0, 101)), 7)
        keys.watch(rng.choice((0, 1, 16)))
        skip = rng.randbytes(n) if rng.random() < 0.2 else b""
        for body in (-1, rng.choice((0, 61, len(self.source), len(self.source) + 1))):
            state = array("q", bytes(64))
            row = n - 1 if body >= 0 and n else 0
            lo = rng.choice((0, 0, 3))
            code = answer(engine.add_rows, keys, self.source, table, row, n, body, skip, lo, state)
            self.say("add", code, state, len(keys), keys.latest_offset, keys.base_offset, bool(keys.full))
        rows = array("q", bytes(8 * rng.randrange(3)))
        self.say("rows", answer(engine.find_rows, table, 0, n, 0x30, rows), rows)
        if rng.random() < 0.5:
            keys.latest_offset = 2**63 - 1
        drops = engine.DropSet({b"", rng.randbytes(1)}) if rng.random() < 0.5 else None
        retention = bytes(rng.randrange(8) for _ in range(n)) if rng.random() < 0.5 else b""
        offsets = array("q", (0, 100, 2**40))[: rng.randrange(4)]
        rules = (
            retention,
            rng.choice((keys, keys, None)),
            drops,
            offsets,
            rng.choice((0, 2**41)),
            rng.choice((-1, 0, 2**62)),
        )
        room = len(self.source) + 10 * (len(self.source) // 7) + 61
        for body in (-1, -1, rng.choice((0, 61))):
            target = block(bytes(rng.choice((room, room, len(self.source), rng.randrange(200)))))
            made = array("q", bytes(8 * WIDTH * rng.choice((n + 1, n, 1, 0))))
            places = rng.choice((len(self.source), 64, 8, 1, 0))
            scratch = (array("q", bytes(8 * places)), array("q", bytes(8 * places)), block(bytes(places)))
            state = array("q", bytes(8 * 16))
            row = n - 1 if body >= 0 and n else 0
            while row < n:
                before = row
                code = answer(
                    engine.filter_rows,
                    *(self.source, table, row, n, body, *rules, target, made, *scratch, state),
                )
                row = state[3]
                self.say("filter", code, state, target, made)
                if code != 0 or row == before:
                    break

    def decode(self, table: array[int], row: int, end: int, body: int, skip: bytes) -> None:
        rng, engine = self.rng, self.engine
        made: list[Record] = []
        state = array("q", bytes(64))
        code = answer(
            engine.decode_tuples,
            *(self.source, table, row, end, body, self.bounds, skip, Record, "topic", 3, made, state),
        )
        self.say("tuples", code, state, made)
        offset = rng.choice((table[2] if len(table) > 2 else 0, 0, rng.randrange(1 << 62))) + rng.randrange(9)
        expect = rng.choice((-1, -1, offset))
        found = answer(engine.find_tuple, *(self.source, offset, expect, -1, 2**63 - 1, Record, "topic", 3))
        self.say("found", found)
        want = rng.choice((ALL, ALL, rng.randrange(64)))
        records = len(made) + 1 if rng.random() < 0.8 else rng.randrange(3)
        size = len(self.source) if rng.random() < 0.8 else rng.randrange(50)
        headers = sum(len(record.headers) for record in made) + rng.randrange(2)
        blocks: list[Any] = [array("q", bytes(8 * records)), array("q", bytes(8 * records))]
        blocks.append(array("i", bytes(4 * records)))
        for rows in (records, records):
            valid = block(b"\xff" * ((rows + 7) // 8))
            blocks += [array("i", bytes(4 * (rows + 1))), block(bytes(size)), valid]
        blocks.append(array("i", bytes(4 * (records + 1))))
        blocks += [array("i", bytes(4 * (headers + 1))), block(bytes(size))]
        blocks += [array("i", bytes(4 * (headers + 1))), block(bytes(size))]
        blocks.append(block(b"\xff" * ((headers + 7) // 8)))
        state = array("q", bytes(8 * 24))
        code = answer(
            engine.decode_columns,
            *(self.source, table, row, end, body, self.bounds, skip, want),
            *blocks,
            state,
        )
        self.say("columns", code, state, blocks)
        rows = state[8]
        if code == 0 and want & 5 == 5:
            hashes, kept = array("Q", bytes(8 * rows)), array("q", bytes(8 * rows))
            n = answer(engine.hash_keys, blocks[4], blocks[3], blocks[5], blocks[0], rows, hashes, kept)
            self.say("hashes", n, hashes, kept)


def drive_produce(engine: Any, log: bytes | bytearray, rng: random.Random) -> list[Any]:
    """Batches as a client sends them, whole or mutated: checked, admitted, placed, written, remembered."""
    said: list[Any] = []
    info = engine.AppendInfo()
    producers: dict[int, Any] = {}
    open_txns: dict[int, int] = {}
    ledger = engine.Ledger(0, 0, 0)
    ledger.roll_bytes, ledger.interval_bytes = rng.choice((200, 5000, 2**62)), 100
    ledger.sums = engine.BlockSums(0, 0)
    written = bytearray()

    def pwrite(data: Any, position: int) -> None:
        assert position == len(written)
        written.extend(data)

    good = bytearray()
    for _ in range(rng.choice((1, 1, 2, 12))):
        sequence, attributes = rng.choice((-1, 0, 1, 2**31 - 1)), rng.choice((0, 0, 0, 0x10, 1, 4))
        part = bytearray()
        size, *_ = engine.encode_tuples(
            *(part, some_records(rng), 0, 7, 1 << 20, rng.randrange(9), 0, attributes),
            *(rng.choice((-1, 7, 8)), rng.choice((0, 0, 1)), sequence),
        )
        good += part[:size]
    oldest, newest = rng.choice(((-(2**63), 2**63 - 1), (0, 2**50)))
    for data in (good, log, good):
        target = block(data)
        client, keyed = rng.random() < 0.7, rng.random() < 0.1
        code = answer(info.check, target, rng.choice((100, 1 << 20)), keyed, client, oldest, newest)
        said.append((code, info.n, info.size, info.compressed, info.producers, info.batch_index))
        said.append((info.record_index, info.position, info.number))
        rows = [info.header(row) for row in range(info.n)]
        outside = rng.choice(((0, len(data) + 1, 0, 0), (-1, 61, 0, 0), (len(data) - 60, 61, 0, 0)))
        for row, header in enumerate(rows):
            if header[6] & 7:
                body = block(data[rng.choice((0, header[0] + 61)) : header[0] + header[1]])
                code = code or answer(info.walk, row, body)
        said += [
            code,
            rows,
            answer(info.walk, info.n, b"x"),
            answer(info.replace, target, [outside] * info.n),
        ]
        if code != 0:
            continue
        admitted = answer(info.admit, producers, client)
        said.append((admitted, info.batch_index, info.base_offset, info.last_offset, info.timestamp))
        if admitted != 0:
            continue
        said.append(info.place(ledger.next_offset, 3, rng.random() < 0.3, 9))
        forced = False
        while info.row < info.n:
            first = info.row
            due = info.write(ledger, pwrite, 5, forced)
            forced = due < 0
            while due > 0:
                said.append((due, info.last_offset, info.timestamp))
                due = info.account(ledger)
            info.remember(producers, open_txns, first)
        said.append((bytes(written), ledger.size, ledger.next_offset, ledger.max_timestamp, ledger.sums.crc))
        assert ledger.sums.crc == kernel.crc32c(written) or ledger.size > 65536
        said.append((open_txns, {who: (each.epoch, each.count) for who, each in producers.items()}))
        said.append([each.last_batch() for each in producers.values()])
    info.release()
    return said


def drive_encode(engine: Any, rng: random.Random) -> list[Any]:
    """Records, right and wrong, from tuples and from Arrow buffers that may lie."""
    said: list[Any] = []
    records: list[Any] = list(some_records(rng))
    if rng.random() < 0.3:
        wrong: Any = rng.choice(
            (7, (), ("text",), (b"", 1), (b"", b"", 5), (b"", b"", [("a",)]), (b"", b"", (), 1.5), (b"",) * 3)
        )
        records.insert(rng.randrange(len(records) + 1), wrong)
    limit = rng.choice((62, 100, 400, 1 << 20))
    into = bytearray(rng.choice((0, 61, 100, 4096)))
    said.append(
        answer(engine.encode_tuples, into, records, 0, 5, limit, 9, 0, rng.choice((0, 8)), -1, -1, -1)
    )
    if isinstance(said[-1], tuple) and said[-1][1]:
        said.append(bytes(into[: said[-1][0]]))
    first = records[0]
    if isinstance(first, Record):
        said.append(answer(engine.encode_one, first.value, first.key, first.headers, 5, 9, 0, 1))
    rows = rng.randrange(1, 6)
    names = rng.randrange(4)

    def column(n: int, honest: bool) -> list[Any]:
        sizes = [rng.randrange(9) for _ in range(n)]
        ends = array("i", [sum(sizes[:i]) for i in range(n + 1)])
        data = block(rng.randbytes(sum(sizes)))
        if not honest:
            ends[rng.randrange(n + 1)] = rng.choice((-1, -(2**31), 2**31 - 1, len(data) + 1))
        valid = block(rng.randbytes((n + 12) // 8)) if rng.random() < 0.5 else block()
        return [ends, data, valid, rng.randrange(5)]

    honest = rng.random() < 0.6
    args: list[Any] = column(rows, honest) + column(rows, honest)
    args += [array("q", [rng.choice((0, 5, -1, -9, 2**62)) for _ in range(rows)]), block(), 0]
    if rng.random() < 0.4:
        args += [array("i"), block(), 0, *[array("i"), block(), block(), 0] * 2]
    else:
        args += [
            array("i", sorted(rng.randrange(names + 1 if honest else 9) for _ in range(rows + 1))),
            block(),
            0,
        ]
        args += [*column(names, True)[:2], block(), 0, *column(names, honest or names == 0)]
    target = block(bytes(rng.choice((61, 80, 300))))
    state = array("q", bytes(64))
    said.append(
        answer(
            engine.encode_columns,
            target,
            rng.randrange(rows),
            rows,
            250,
            5,
            *args,
            9,
            0,
            0,
            -1,
            -1,
            -1,
            state,
        )
    )
    said.append((target[: state[0]], state))  # what is behind the batch has no meaning
    key = rng.randbytes(rng.randrange(70))
    said.append(
        (engine.hash64(key), engine.murmur2(key), engine.partition_for_key(key, 7), engine.crc32c(key))
    )
    said.append(engine.crc32c_combine(*(rng.getrandbits(32) for _ in range(2)), rng.getrandbits(40)))
    return said


def drive_frames(engine: Any, log: bytes | bytearray, rng: random.Random) -> list[Any]:
    """Produce requests around the log's bytes, whole, mutated and cut; answers to them."""
    version = rng.randrange(2, 15)
    length = 16 if version >= 13 else rng.choice((1, 126, 127, 249))
    topic = bytes(rng.randrange(97, 123) for _ in range(length))
    batches = bytes(log[: rng.choice((0, 22, 23, 80, len(log)))])
    data = bytearray(struct.pack(">hhih", 0, version, 7, 1) + b"c")
    if version >= 9:
        data += b"\0\0" + struct.pack(">hi", -1, 30) + b"\2"
        data += (b"" if version >= 13 else varint(length + 1)) + topic
        data += b"\2" + struct.pack(">i", 3) + varint(len(batches) + 1) + batches + bytes(3)
    else:
        data += struct.pack(">hhiih", -1, -1, 30, 1, length) + topic
        data += struct.pack(">iii", 1, 3, len(batches)) + batches
    for _ in range(rng.choice((0, 0, 1, 3))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    size = rng.choice((len(data), len(data), rng.randrange(len(data))))
    numbers = [rng.getrandbits(63) for _ in range(3)]
    return [
        answer(engine.parse_produce, block(data[:size])),
        answer(engine.produce_answer, version, 7, topic, 3, *numbers),
        answer(engine.produce_answer, version, 7, bytes(rng.choice((0, 15, 16_001))), 3, *numbers),
    ]


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes((*made, value))


def one_round(seed: int, other: Any = None) -> None:
    """One mutated log and one set of records, through every entry point."""
    rng = random.Random(seed)
    log = mutated_log(rng)
    lies = rng.random() < 0.3 and other is None
    said = Drive(kernel, log, seed).run(lies)
    encoded = drive_encode(kernel, random.Random(seed + 1))
    produced = drive_produce(kernel, log, random.Random(seed + 2))
    framed = drive_frames(kernel, log, random.Random(seed + 3))
    if other is not None:
        assert framed == drive_frames(other, log, random.Random(seed + 3)), f"they disagree on seed {seed}"
        assert said == Drive(other, log, seed).run(lies), f"the kernels disagree on seed {seed}"
        assert encoded == drive_encode(other, random.Random(seed + 1)), f"the kernels disagree on seed {seed}"
        again = drive_produce(other, log, random.Random(seed + 2))
        assert produced == again, f"the kernels disagree on seed {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--compare", action="store_true", help="run the interpreted kernel beside")
    options = parser.parse_args()
    other = interpreted_kernel() if options.compare else None
    print(f"seed {options.seed}, {options.rounds} rounds, compiled: {kernel.compiled}")
    for i in range(options.rounds):
        one_round(options.seed * 1_000_003 + i, other)
    print(f"{options.rounds} mutated logs, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
