"""Every file kind of a real broker's directories: read, written again, the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratalog.format import checkpoints, metadata, producer_snapshot, txn_index
from stratalog.format.indexes import OffsetIndex, TimeIndex

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1"
DUMPS = GOLDEN / "dump"


def files(pattern: str) -> list[Path]:
    found = sorted(GOLDEN.rglob(pattern))
    assert found, pattern
    return found


def name(path: Path) -> str:
    return path.relative_to(GOLDEN).as_posix()


def base_offset(path: Path) -> int:
    return int(path.name.split(".")[0])


@pytest.mark.parametrize("path", files("*.index"), ids=name)
def test_offset_index(path: Path) -> None:
    log = path.with_suffix(".log")
    data = path.read_bytes()
    index = OffsetIndex.parse(data, base_offset(path), log.stat().st_size)
    assert index.to_bytes() == data
    preallocated = data + bytes(8 * 100)
    assert OffsetIndex.parse(preallocated, base_offset(path), log.stat().st_size).to_bytes() == data
    content = log.read_bytes()
    for i in range(len(index)):
        offset, position = index.entry(i)
        first = int.from_bytes(content[position : position + 8], "big")
        delta = int.from_bytes(content[position + 23 : position + 27], "big")
        assert offset == first + delta, "an entry names the last offset of the batch it points to"


@pytest.mark.parametrize("path", files("*.timeindex"), ids=name)
def test_time_index(path: Path) -> None:
    data = path.read_bytes()
    index = TimeIndex.parse(data, base_offset(path))
    assert index.to_bytes() == data
    assert TimeIndex.parse(data + bytes(12 * 100), base_offset(path)).to_bytes() == data


@pytest.mark.parametrize("path", files("*.txnindex"), ids=name)
def test_txn_index(path: Path) -> None:
    data = path.read_bytes()
    entries = txn_index.parse(data)
    assert txn_index.pack(entries) == data


@pytest.mark.parametrize("path", files("*.snapshot"), ids=name)
def test_producer_snapshot(path: Path) -> None:
    data = path.read_bytes()
    entries = producer_snapshot.parse(data)
    assert producer_snapshot.pack(entries) == data
    assert all(entry.last_offset < base_offset(path) for entry in entries)


@pytest.mark.parametrize("path", files("*-offset-checkpoint"), ids=name)
def test_offset_checkpoint(path: Path) -> None:
    offsets = checkpoints.parse_offsets(path.read_bytes())
    # A checkpoint that was never written to is an empty file, and stays one until it has entries.
    assert checkpoints.pack_offsets(offsets) == (path.read_bytes() or b"0\n0\n")


@pytest.mark.parametrize("path", files("leader-epoch-checkpoint"), ids=name)
def test_leader_epoch_checkpoint(path: Path) -> None:
    epochs = checkpoints.parse_leader_epochs(path.read_bytes())
    assert checkpoints.pack_leader_epochs(epochs) == path.read_bytes()


@pytest.mark.parametrize("path", files("partition.metadata"), ids=name)
def test_partition_metadata(path: Path) -> None:
    topic_id = metadata.parse_partition_metadata(path.read_bytes())
    assert metadata.pack_partition_metadata(topic_id) == path.read_bytes()


@pytest.mark.parametrize("path", files("meta.properties"), ids=name)
def test_meta_properties(path: Path) -> None:
    data = path.read_bytes()
    value = metadata.parse_meta_properties(data)
    assert value.node_id == 1
    assert value.directory_id is not None
    date = data.decode().splitlines()[1].removeprefix("#")
    packed = metadata.pack_meta_properties(value, comment=date)
    assert sorted(packed.splitlines()) == sorted(data.splitlines()), "only a hash table's order differs"
    assert metadata.parse_meta_properties(packed) == value


@pytest.mark.parametrize("path", files(".kafka_cleanshutdown"), ids=name)
def test_clean_shutdown(path: Path) -> None:
    epoch = metadata.parse_clean_shutdown(path.read_bytes())
    assert epoch is not None
    assert metadata.pack_clean_shutdown(epoch) == path.read_bytes()


def test_values_are_those_the_dump_tool_prints() -> None:
    """The dump of the broker's own tool, for the two kinds whose fields only it shows."""
    text = "".join(path.read_text(errors="replace") for path in sorted(DUMPS.glob("transactions-*.txt")))
    aborted, producers = [], []
    for path in sorted((GOLDEN / "log-dir").glob("transactions-*/*.txnindex")):
        aborted += txn_index.parse(path.read_bytes())
    for path in sorted((GOLDEN / "log-dir").glob("transactions-*/*.snapshot")):
        producers += producer_snapshot.parse(path.read_bytes())
    assert aborted
    assert producers
    for txn in aborted:
        assert (
            f"producerId: {txn.producer_id} firstOffset: {txn.first_offset} lastOffset: {txn.last_offset} "
            f"lastStableOffset: {txn.last_stable_offset}" in text
        )
    for entry in producers:
        pattern = rf"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} .*"
        assert re.search(pattern, text), pattern
