"""Small segments that follow one another are read as one: the records, and the errors, are those of each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from stratalog.errors import CorruptionError
from stratalog.log.segment.segment import Segment

EACH, SEGMENTS = 7, 12


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twelve sealed segments of a few records, and an active one."""
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t")
        for number in range(SEGMENTS):
            topic.append_many([(b"%d of %d" % (at, number), b"key-%d" % at) for at in range(EACH)])
            topic.roll()
        topic.append(b"active")
    return tmp_path / "data"


def segment(log: Path, number: int) -> Path:
    return log / "t-0" / f"{number * EACH:020d}.log"


def take(reader: pa.RecordBatchReader, found: list[int]) -> None:
    for batch in reader:
        found += batch.column("offset").to_pylist()


def offsets(log: Path, start: int = 0, end: int | None = None, threads: int = 1) -> list[int]:
    with stratalog.open(log, read_only=True) as store:
        found: list[int] = []
        columns = ["offset", "value"]
        take(store.topic("t").scan(columns=columns, start=start, end=end, threads=threads), found)
        return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("start", "end"), [(0, 85), (3, 60), (7, 14), (8, 13), (20, 85)])
def test_the_records_are_all_there(log: Path, start: int, end: int, threads: int) -> None:
    assert offsets(log, start, end, threads=threads) == list(range(start, end))


def test_no_sidecar_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = Segment.sidecar

    def counted(self: Segment, kind: str, *, limit: int = 1 << 40) -> bytes | None:
        read.append(kind)
        return plain(self, kind, limit=limit)

    with stratalog.open(log, read_only=True) as store:
        reader = store.topic("t").scan(end=EACH * SEGMENTS)
        monkeypatch.setattr(Segment, "sidecar", counted)
        assert reader.read_all().num_rows == EACH * SEGMENTS
    assert not read


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("byte", [0, 7, 20, 70])  # a base offset, which no CRC covers; a CRC; a record
def test_damage_is_named(log: Path, byte: int, threads: int) -> None:
    damaged = segment(log, 5)
    data = bytearray(damaged.read_bytes())
    data[byte] ^= 1
    damaged.write_bytes(data)
    with stratalog.open(log, read_only=True) as store:
        found: list[int] = []
        with pytest.raises(CorruptionError, match=damaged.name):
            take(store.topic("t").scan(threads=threads), found)
    assert found == list(range(5 * EACH))


@pytest.mark.parametrize("how", ["emptied", "cut", "removed"])
def test_what_is_missing_is_named(log: Path, how: str) -> None:
    lost = segment(log, 5)
    match how:
        case "emptied":
            lost.write_bytes(b"")
        case "cut":
            lost.write_bytes(lost.read_bytes()[:-1])
        case _:
            lost.unlink()
    with pytest.raises(CorruptionError, match=lost.name if how != "removed" else "are missing"):
        offsets(log)


def test_two_segments_that_were_exchanged_are_named(log: Path) -> None:
    one, other = segment(log, 3), segment(log, 4)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(CorruptionError, match=one.name):
        offsets(log)


def test_offsets_that_a_compaction_dropped_are_no_damage(log: Path) -> None:
    with stratalog.open(log, background=False) as store:
        topic = store.topic("t")
        store.alter_topic("t", {"cleanup.policy": "compact"})
        topic.append_many([(b"last", b"key-%d" % at) for at in range(EACH - 1)])
        topic.roll()
        store.compact("t", force=True)
        read = [record.offset for record in topic.read()]
    assert len(read) < EACH * SEGMENTS
    assert offsets(log) == read
