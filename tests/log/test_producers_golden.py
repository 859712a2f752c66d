"""Replaying a real broker's batches must give the broker's own snapshots and transaction indexes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.format import producer_snapshot, txn_index
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.write.producers import MarkerType, ProducerBatch, ProducerState, increment_sequence

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1"
HEADER = struct.Struct(">qiibIhiqqqhii")
MARKERS: dict[int, MarkerType] = {0: "abort", 1: "commit"}


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def control_record(data: bytes, position: int) -> tuple[MarkerType | None, int]:
    """Type and coordinator epoch of the one record of a control batch, read without our own decoder."""
    _, position = varint(data, position)  # length
    _, position = varint(data, position + 1)  # attributes, timestamp delta
    _, position = varint(data, position)  # offset delta
    key_size, position = varint(data, position)
    (kind,) = struct.unpack_from(">h", data, position + 2)
    _, position = varint(data, position + key_size)
    (coordinator_epoch,) = struct.unpack_from(">i", data, position + 2)
    return MARKERS.get(kind), coordinator_epoch


def batches(log: Path) -> Iterator[ProducerBatch]:
    data = log.read_bytes()
    position = 0
    while position < len(data):
        base, length, _, magic, _, attributes, delta, _, newest, pid, epoch, sequence, count = (
            HEADER.unpack_from(data, position)
        )
        assert magic == 2
        control = bool(attributes & 0x20)
        found: tuple[MarkerType | None, int] = (None, -1)
        if control and count:
            found = control_record(data, position + HEADER.size)
        yield ProducerBatch(
            pid,
            epoch,
            sequence,
            increment_sequence(sequence, delta),
            base,
            base + delta,
            newest,
            bool(attributes & 0x10),
            control,
            *found,
        )
        position += length + 12


def segments(directory: Path) -> list[tuple[int, list[ProducerBatch]]]:
    return [(int(log.stem), list(batches(log))) for log in sorted(directory.glob("*.log"))]


def snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.snapshot"))


UNCLEANED = sorted([*GOLDEN.glob("log-dir/*-[0-9]"), *GOLDEN.glob("cleaner/1-before/*-[0-9]")])
CLEANED = sorted(GOLDEN.glob("cleaner/[12]-after/*-[0-9]"))


def name(directory: Path) -> str:
    return f"{directory.parent.name}/{directory.name}"


def test_the_golden_files_hold_producers_and_transactions() -> None:
    assert len(UNCLEANED) > 20
    assert len(CLEANED) == 14
    assert sum(len(producer_snapshot.parse(f.read_bytes())) for d in UNCLEANED for f in snapshots(d)) > 20
    assert sum(len(txn_index.parse(f.read_bytes())) for d in UNCLEANED for f in d.glob("*.txnindex")) > 10


@pytest.mark.parametrize("directory", UNCLEANED, ids=name)
def test_replay_gives_every_snapshot(directory: Path) -> None:
    log = [batch for _, found in segments(directory) for batch in found]
    previous, since = ProducerState(), 0
    for path in snapshots(directory):
        end = int(path.stem)
        wanted = sorted(producer_snapshot.parse(path.read_bytes()))
        whole = ProducerState()
        for batch in log:
            if batch.first_offset < end:
                whole.update(batch, replay=True)
                if batch.first_offset >= since:
                    previous.update(batch, replay=True)
        assert whole.to_entries() == wanted
        assert previous.to_entries() == wanted, "from the snapshot before"
        previous, since = ProducerState.from_entries(wanted), end


@pytest.mark.parametrize("directory", UNCLEANED, ids=name)
def test_replay_gives_every_transaction_index(directory: Path) -> None:
    state = ProducerState()
    for base, found in segments(directory):
        aborted: list[AbortedTxn] = []
        for batch in found:
            completed = state.update(batch, replay=True)
            if completed is not None and completed.aborted:
                aborted.append(completed.aborted_txn())
        index = directory / f"{base:020d}.txnindex"
        assert aborted == (txn_index.parse(index.read_bytes()) if index.exists() else [])


@pytest.mark.parametrize("directory", UNCLEANED, ids=name)
def test_what_the_broker_accepted_is_valid(directory: Path) -> None:
    state = ProducerState()
    for _, found in segments(directory):
        for batch in found:
            if batch.producer_id >= 0:
                assert state.find_duplicate(batch) is None
                state.validate(batch)
                state.update(batch)
                if not batch.control:
                    again = state.find_duplicate(batch)
                    assert again is not None
                    assert again[:2] == (batch.first_offset, batch.last_offset)


@pytest.mark.parametrize("directory", CLEANED, ids=name)
def test_a_cleaned_log_still_gives_the_last_snapshot(directory: Path) -> None:
    """Cleaning keeps each producer's last batch for this; what was true in between is gone."""
    state = ProducerState()
    for _, found in segments(directory):
        for batch in found:
            state.update(batch, replay=True)
    assert state.to_entries() == sorted(producer_snapshot.parse(snapshots(directory)[-1].read_bytes()))
