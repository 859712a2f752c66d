"""How fast the kernel is, in CPU time of one core, best of a few rounds: ``speed_kernel.py``."""

from __future__ import annotations

import time
from collections.abc import Callable

from stratalog import kernel
from stratalog.format import batch
from stratalog.format.batch import filter
from stratalog.model import Record

RECORDS = 200_000


def best(work: Callable[[], object], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def log_of(records: list[Record], batch_records: int) -> bytes:
    parts = []
    for start in range(0, len(records), batch_records):
        encoded, _ = batch.encode_records(
            records[start : start + batch_records],
            options=batch.BatchOptions(base_offset=start, leader_epoch=0, now_ms=1, max_bytes=1 << 30),
        )
        parts.append(encoded.data)
    return b"".join(parts)


def line(name: str, seconds: float, count: int, size: int) -> None:
    print(f"{name:42} {count / seconds / 1e6:8.2f} M/s {size / seconds / 1e9:8.2f} GB/s")


def reading(name: str, data: bytes) -> None:
    """A log of RECORDS records, read in chunks of about a mebibyte, as the log's readers do."""
    chunks = []
    position = 0
    while position < len(data):
        end = batch.scan(data, position, min(position + (1 << 20), len(data)), check_crc=False).end
        chunks.append(data[position:end])
        position = end
    scans = [batch.scan(chunk) for chunk in chunks]

    def scan(check_crc: bool) -> None:
        for chunk in chunks:
            batch.scan(chunk, check_crc=check_crc)

    def arrow(columns: tuple[str, ...], check_crc: bool = True) -> None:
        for chunk in chunks:
            found = batch.scan(chunk, check_crc=check_crc)
            batch.decode_arrow(chunk, found, topic="t", partition=0, columns=columns)

    def each(work: Callable[..., object], **args: object) -> Callable[[], None]:
        def run() -> None:
            for chunk, found in zip(chunks, scans, strict=True):
                work(chunk, found, **args)

        return run

    some = ("key", "value", "offset", "timestamp")
    works: dict[str, Callable[[], object]] = {
        "scan": lambda: scan(True),
        "scan without CRC": lambda: scan(False),
        "scan + Arrow, all columns": lambda: arrow(batch.COLUMNS),
        "scan + Arrow, key value offset time": lambda: arrow(some),
        "Arrow, offset only, no CRC": lambda: arrow(("offset",), False),
        "Arrow, key only, no CRC": lambda: arrow(("key",), False),
        "Record tuples": each(batch.decode_records, topic="t", partition=0),
        "measure": each(batch.measure),
        "key hashes": each(batch.decode_keys),
    }
    for work, run in works.items():
        line(f"{work}, {name}", best(run), RECORDS, len(data))
    compacting(name, chunks, scans, len(data))


def compacting(name: str, chunks: list[bytes], scans: list[batch.Scan], size: int) -> None:
    """Both halves of a compaction, with the memory a cleaner gets."""
    keys = filter.KeyMap(128 << 20, 0)

    def build() -> None:
        keys.clear(0)
        for chunk, found in zip(chunks, scans, strict=True):
            filter.build(keys, chunk, found)

    def compact() -> None:
        for chunk, found in zip(chunks, scans, strict=True):
            filter.filter_batches(chunk, found, keys=keys, now_ms=1, delete_retention_ms=1)

    building, filtering = best(build), best(compact)
    line(f"key map, {name}", building, RECORDS, size)
    line(f"filter, {name}", filtering, RECORDS, size)
    line(f"compaction, {name}", building + filtering, RECORDS, size)


def main() -> None:
    print(f"compiled: {kernel.compiled}")
    records = [Record(b"v" * 100, b"key-%06d" % (i % 1000), (), 10**12 + i) for i in range(RECORDS)]
    plain = [Record(record.value, record.key) for record in records]
    full = log_of(records, 1000)
    reading("full", full)
    reading("one-record", log_of(records, 1))
    line(
        "validate, full", best(lambda: batch.validate(bytearray(full), max_bytes=1 << 20)), RECORDS, len(full)
    )

    def encode(source: list[Record]) -> None:
        row = 0
        while row < RECORDS:
            _, row = batch.encode_records(
                source,
                row,
                options=batch.BatchOptions(base_offset=row, leader_epoch=0, now_ms=1, max_bytes=120_000),
            )

    line("encode (value, key) list", best(lambda: encode(plain)), RECORDS, len(full))
    line("encode (value, key, timestamp) list", best(lambda: encode(records)), RECORDS, len(full))
    table = batch.decode_arrow(full, batch.scan(full), topic="t", partition=0)[0]

    def encode_arrow(max_bytes: int) -> None:
        row = 0
        while row < table.num_rows:
            _, row = batch.encode_arrow(
                table,
                row,
                options=batch.BatchOptions(base_offset=row, leader_epoch=0, now_ms=1, max_bytes=max_bytes),
            )

    rows = table.num_rows
    size = len(full) * rows // RECORDS
    line("encode_arrow, 120 KB batches", best(lambda: encode_arrow(120_000)), rows, size)
    line("encode_arrow, 1 MiB batches", best(lambda: encode_arrow(1 << 20)), rows, size)

    value, key = b"v" * 100, b"key-000001"
    calls = 200_000

    def ones() -> None:
        for i in range(calls):
            batch.encode_one(value, key, (), 10**12, i, 0, 0)

    print(f"{'encode_one':42} {best(ones) / calls * 1e6:8.3f} us")
    block = full[: 1 << 20]
    print(f"{'crc32c of 1 MiB':42} {len(block) / best(lambda: kernel.crc32c(block)) / 1e9:8.2f} GB/s")


if __name__ == "__main__":
    main()
