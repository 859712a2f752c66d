"""Every record a real broker wrote, against what its own client read; and its batches written again."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stratalog import kernel
from stratalog.format import batch
from stratalog.model import Record
from tests.kernel.both import either

__all__ = ["either"]

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1"
PARTITIONS = sorted(
    path.stem for path in (GOLDEN / "records").glob("*.jsonl") if not path.stem.endswith(".committed")
)
SEGMENTS = sorted(GOLDEN.glob("**/*.log"))


def matches(data: bytes | None, wanted: Any) -> bool:
    if wanted is None or data is None:
        return data is None and wanted is None
    if isinstance(wanted, dict):
        return len(data) == wanted["len"] and hashlib.sha256(data).hexdigest() == wanted["sha256"]
    return data == base64.b64decode(wanted)


def check(record: Record, wanted: dict[str, Any]) -> None:
    assert record.offset == wanted["offset"]
    assert record.timestamp == wanted["timestamp"]
    assert record.timestamp_type == wanted["timestampType"]
    assert matches(record.key, wanted["key"])
    assert matches(record.value, wanted["value"])
    assert len(record.headers) == len(wanted["headers"])
    for (name, value), (wanted_name, wanted_value) in zip(record.headers, wanted["headers"], strict=True):
        assert name == wanted_name
        assert matches(value, wanted_value)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.usefixtures("either")
def test_every_record(partition: str) -> None:
    topic, number = partition.rsplit("-", 1)
    lines = (GOLDEN / "records" / f"{partition}.jsonl").read_text().splitlines()
    low = json.loads(lines[0])["low"]
    wanted = [json.loads(line) for line in lines[1:]]
    records: list[Record] = []
    rows: list[dict[str, Any]] = []
    for path in sorted((GOLDEN / "log-dir" / partition).glob("*.log")):
        data = path.read_bytes()
        scan = batch.scan(data)
        assert scan.stop is batch.Stop.END
        assert scan.end == len(data)
        args: dict[str, Any] = {"topic": topic, "partition": int(number), "bounds": batch.Bounds(low)}
        records += batch.decode_records(data, scan, **args)
        for made in batch.decode_arrow(data, scan, **args):
            made.validate(full=True)
            times = made.column("timestamp").cast("int64").to_pylist()
            rows += [{**row, "timestamp": time} for row, time in zip(made.to_pylist(), times, strict=True)]
    assert len(records) == len(wanted) == len(rows)
    for record, want, row in zip(records, wanted, rows, strict=True):
        check(record, want)
        headers = tuple((header["key"], header["value"]) for header in row["headers"])
        assert record == Record(
            row["value"],
            row["key"],
            headers,
            row["timestamp"],
            row["offset"],
            row["partition"],
            row["timestampType"],
            row["topic"],
        )


@pytest.mark.parametrize(
    "path", SEGMENTS, ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}/{path.stem}"
)
def test_every_segment(path: Path) -> None:
    """Measured, hashed, and (where nothing was compressed or cleaned) encoded again to the same bytes."""
    data = path.read_bytes()
    scan = batch.scan(data)
    assert scan.stop is batch.Stop.END
    batch.measure(data, scan)
    hashes, offsets = batch.decode_keys(data, scan)
    records = batch.decode_records(data, scan, topic="t", partition=0)
    keyed = [record for record in records if record.key is not None]
    assert list(offsets) == [record.offset for record in keyed]
    assert list(hashes) == [kernel.hash64(record.key) for record in keyed if record.key is not None]
    for header in scan:
        inside = [r.timestamp for r in records if header.base_offset <= r.offset <= header.last_offset]
        if inside:
            assert header.min_timestamp == min(time for time in inside if time is not None)
            assert header.max_timestamp >= max(time for time in inside if time is not None)
        whole = data[header.position : header.position + header.size]
        if header.codec or header.is_control or header.timestamp_type or header.has_delete_horizon:
            continue
        if header.count != header.last_offset - header.base_offset + 1:
            continue
        mine = [r for r in records if header.base_offset <= r.offset <= header.last_offset]
        encoded, count = batch.encode_records(
            mine,
            options=batch.BatchOptions(
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                now_ms=0,
                max_bytes=1 << 24,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
            ),
        )
        assert count == header.count
        assert encoded.data == whole
        assert encoded.crc == kernel.crc32c(whole)


def test_control_batches() -> None:
    """Markers as the broker wrote them, made again."""
    seen = set()
    for path in sorted(GOLDEN.glob("log-dir/transactions-*/*.log")):
        data = path.read_bytes()
        for header in batch.scan(data):
            if not header.is_control:
                continue
            marker, epoch = batch.decode_control(data, header)
            assert marker is not None
            seen.add(marker)
            made = batch.encode_control(
                marker,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                timestamp=header.base_timestamp,
                coordinator_epoch=epoch,
            )
            assert made == data[header.position : header.position + header.size]
    assert seen == {"commit", "abort"}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_index_entries_are_the_brokers(partition: str) -> None:
    """Uncleaned segments: the offset index, entry by entry, from the rule alone."""
    if partition.startswith("compacted"):
        return
    for path in sorted((GOLDEN / "log-dir" / partition).glob("*.log")):
        data = path.read_bytes()
        index = path.with_suffix(".index").read_bytes()
        base = int(path.stem)
        wanted = [
            (base + int.from_bytes(index[i : i + 4], "big"), int.from_bytes(index[i + 4 : i + 8], "big"))
            for i in range(0, len(index), 8)
        ]
        state = batch.IndexState()
        interval = {"codec": 512, "out": 256}.get(partition.split("-")[0], 4096)
        columns = batch.index_columns(batch.scan(data), interval_bytes=interval, state=state)
        assert list(zip(columns.last_offsets, columns.positions, strict=True)) == wanted
