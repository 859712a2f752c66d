"""How fast the kernel is, one core: ``python tests/kernel/speed_kernel.py``. Best of a few short rounds."""

from __future__ import annotations

import time
from collections.abc import Callable

from stratalog import kernel
from stratalog.format import batch
from stratalog.model import Record

RECORDS = 200_000


def best(work: Callable[[], object], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def log_of(records: list[Record], batch_records: int) -> bytes:
    parts = []
    for start in range(0, len(records), batch_records):
        encoded, _ = batch.encode_records(
            records[start : start + batch_records],
            base_offset=start,
            leader_epoch=0,
            now_ms=1,
            max_bytes=1 << 30,
        )
        parts.append(encoded.data)
    return b"".join(parts)


def main() -> None:
    print(f"compiled: {kernel.compiled}")
    records = [Record(b"v" * 100, b"key-%06d" % (i % 1000), (), 1_700_000_000_000 + i) for i in range(RECORDS)]
    full = log_of(records, 1000)
    single = log_of(records, 1)

    def line(name: str, seconds: float, count: int, size: int) -> None:
        print(f"{name:42} {count / seconds / 1e6:8.2f} M/s {size / seconds / 1e9:8.2f} GB/s")

    for name, data in (("full", full), ("one-record", single)):
        found = batch.scan(data)

        def arrow(data: bytes = data, columns: tuple[str, ...] = batch.COLUMNS) -> None:
            batch.decode_arrow(data, batch.scan(data), topic="t", partition=0, columns=columns)

        def narrow(columns: tuple[str, ...], data: bytes = data) -> None:
            batch.decode_arrow(
                data, batch.scan(data, check_crc=False), topic="t", partition=0, columns=columns
            )

        line(f"scan, {name}", best(lambda data=data: batch.scan(data)), RECORDS, len(data))
        line(f"scan without CRC, {name}", best(lambda data=data: batch.scan(data, check_crc=False)), RECORDS, len(data))
        line(f"scan + Arrow, all columns, {name}", best(arrow), RECORDS, len(data))
        line(f"scan + Arrow, key value offset time, {name}",
             best(lambda: arrow(columns=("key", "value", "offset", "timestamp"))), RECORDS, len(data))  # fmt: skip
        line(f"Arrow, offset only, no CRC, {name}", best(lambda: narrow(("offset",))), RECORDS, len(data))
        line(f"Arrow, key only, no CRC, {name}", best(lambda: narrow(("key",))), RECORDS, len(data))
        line(f"Record tuples, {name}",
             best(lambda: batch.decode_records(data, found, topic="t", partition=0)), RECORDS, len(data))  # fmt: skip
        line(f"measure, {name}", best(lambda: batch.measure(data, found)), RECORDS, len(data))
        line(f"key hashes, {name}", best(lambda: batch.decode_keys(data, found)), RECORDS, len(data))
        if name == "full":
            line("validate, full", best(lambda: batch.validate(data, max_bytes=1 << 20)), RECORDS, len(data))

    def encode(timestamped: bool) -> None:
        source = records if timestamped else plain
        row = 0
        while row < RECORDS:
            _, row = batch.encode_records(
                source, row, base_offset=row, leader_epoch=0, now_ms=1, max_bytes=120_000
            )

    plain = [Record(r.value, r.key) for r in records]
    line("encode (value, key) list", best(lambda: encode(False)), RECORDS, len(full))
    line("encode (value, key, timestamp) list", best(lambda: encode(True)), RECORDS, len(full))
    table = batch.decode_arrow(full, batch.scan(full), topic="t", partition=0)[0]

    def encode_arrow(max_bytes: int) -> None:
        row = 0
        while row < table.num_rows:
            _, row = batch.encode_arrow(
                table, row, base_offset=row, leader_epoch=0, now_ms=1, max_bytes=max_bytes
            )

    size = table.num_rows
    line("encode_arrow, 120 KB batches", best(lambda: encode_arrow(120_000)), size, len(full) * size // RECORDS)
    line("encode_arrow, 1 MiB batches", best(lambda: encode_arrow(1 << 20)), size, len(full) * size // RECORDS)

    value, key = b"v" * 100, b"key-000001"
    one = batch.encode_one
    calls = 200_000

    def ones() -> None:
        for i in range(calls):
            one(value, key, (), 1_700_000_000_000, i, 0, 0)

    print(f"{'encode_one':42} {best(ones) / calls * 1e6:8.3f} us")
    print(f"{'crc32c of 1 MiB':42} {(1 << 20) / best(lambda: kernel.crc32c(full[: 1 << 20])) / 1e9:8.2f} GB/s")


if __name__ == "__main__":
    main()
