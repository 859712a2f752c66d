"""A real broker's log directory, read and opened through the public API, equals what its client saw."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1"
RECORDS = sorted(GOLDEN.glob("records/*.jsonl"))


def _identity(value: bytes | None) -> object:
    return None if value is None else base64.b64encode(value).decode()


def _same(expected: object, value: bytes | None) -> bool:
    if isinstance(expected, dict):
        assert value is not None
        return expected == {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    return expected == _identity(value)


def _check(path: Path, store: Store) -> None:
    name = path.name.removesuffix(".jsonl").removesuffix(".committed")
    topic_name, _, number = name.rpartition("-")
    isolation = "read_committed" if path.name.endswith(".committed.jsonl") else "read_uncommitted"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    topic, partition = store.topic(topic_name), int(number)
    assert topic.log_start_offset(partition) == lines[0]["low"]
    assert topic.log_end_offset(partition) == lines[0]["high"]
    found = list(topic.read(partition, isolation=isolation))
    assert [record.offset for record in found] == [line["offset"] for line in lines[1:]]
    for line, record in zip(lines[1:], found, strict=True):
        assert record.timestamp == line["timestamp"]
        assert record.timestamp_type == line["timestampType"]
        assert _same(line["key"], record.key), record.offset
        assert _same(line["value"], record.value), record.offset
        assert [[key, _identity(value)] for key, value in record.headers] == line["headers"]
    _check_scan(topic, partition, isolation, found)


def _check_scan(topic: stratalog.Topic, partition: int, isolation: str, found: list[Record]) -> None:
    rows = topic.scan([partition], isolation=isolation).read_all().to_pylist()
    assert [row["offset"] for row in rows] == [record.offset for record in found]
    for row, record in zip(rows, found, strict=True):
        assert (row["key"], row["value"], row["partition"]) == (record.key, record.value, partition)
        assert row["topic"] == topic.name
        assert row["timestampType"] == record.timestamp_type
        assert round(row["timestamp"].timestamp() * 1000) == record.timestamp
        headers = [(header["key"], header["value"]) for header in row["headers"] or []]
        assert headers == [tuple(header) for header in record.headers]


def test_there_is_golden_data() -> None:
    assert len(RECORDS) >= 19


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_read_only(path: Path) -> None:
    with stratalog.open(GOLDEN / "log-dir", read_only=True) as store:
        _check(path, store)


def _copy(where: Path) -> Path:
    target = where / "log-dir"
    shutil.copytree(GOLDEN / "log-dir", target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with stratalog.open(_copy(tmp_path_factory.mktemp("golden"))) as store:
        yield store


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_opened_for_writing(path: Path, opened: Store) -> None:
    _check(path, opened)


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_opening_changes_nothing_a_broker_would_not(tmp_path: Path) -> None:
    """After a clean stop a broker removes `.deleted` files, rewrites its checkpoints, and that is all."""
    target = _copy(tmp_path)
    before = _files(target)
    with stratalog.open(target) as store:
        for name in store.topics():
            for partition in range(store.topic(name).partitions):
                list(store.topic(name).read(partition))
    after = _files(target)
    kept = {name: data for name, data in before.items() if not name.endswith(".deleted")}
    changed = {name for name, data in kept.items() if after.get(name) != data}
    assert changed == set()
    assert {name for name in after if name not in kept} <= {".lock"}


def test_appending_goes_on_where_the_broker_stopped(tmp_path: Path) -> None:
    target = _copy(tmp_path)
    with stratalog.open(target) as store:
        topic = store.topic("codec-zstd")
        assert topic.append(b"more", key=b"k").offset == 600
    with stratalog.open(target) as store:
        records = list(store.topic("codec-zstd").read(0))
        assert [record.offset for record in records] == list(range(601))
        assert records[-1].value == b"more"
        assert len(list(store.topic("transactions").read(0, isolation="read_committed"))) > 0
