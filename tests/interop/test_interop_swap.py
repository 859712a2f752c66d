"""A cleaner's swap, step by step under an open reader, with files that a real cleaner read and wrote.

Kafka replaces segments in steps that a reader may meet one by one: `.cleaned` files appear, become `.swap`,
the old files become `.deleted` from the lowest offset up, the swaps take their names, the deleted ones go; of
every segment the `.log` first. At each step an open reader must see every record that cleaning keeps, and
none that was never there. Needs no broker.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import stratalog
from tests.interop.samples import Seen, seen_by_us, segment_files

CLEANER = Path(__file__).resolve().parents[1] / "golden" / "kafka-4.3.1" / "cleaner"
TOPICS = (
    "clean-plain",
    "clean-lz4",
    "clean-zstd",
    "clean-idempotent",
    "clean-transactions",
    "clean-expired-tombstones",
    "clean-out-of-order",
)


def read(topic: stratalog.Topic) -> list[Seen]:
    return [seen_by_us(record) for record in topic.read(partition=0, start=0)]


def read_fresh(path: Path, name: str) -> list[Seen]:
    with stratalog.open(path, read_only=True) as store:
        return read(store.topic(name))


def files_of(directory: Path, base_offset: int) -> list[Path]:
    """A segment's files in the order in which Kafka renames them."""
    paths = (directory / f"{base_offset:020}.{kind}" for kind in ("log", "index", "timeindex", "txnindex"))
    return [path for path in paths if path.exists()]


def base_offsets(directory: Path) -> list[int]:
    return [int(path.stem) for path in segment_files(directory, ".log")]


def swap_steps(live: Path, after: Path) -> Iterator[str]:
    """Turns the segments of ``live`` into those of ``after`` as the cleaner does; yields after every step."""
    olds = base_offsets(live)
    for base, following in pairwise(base_offsets(after)):
        names = [path.name for path in files_of(after, base)]
        for name in names:
            shutil.copy(after / name, live / f"{name}.cleaned")
            yield f"{name}.cleaned"
        for name in names:
            (live / f"{name}.cleaned").rename(live / f"{name}.swap")
            yield f"{name}.swap"
        for old in olds:
            if base <= old < following:
                for path in files_of(live, old):
                    path.rename(f"{path}.deleted")
                    yield f"{path.name}.deleted"
        for name in names:
            (live / f"{name}.swap").rename(live / name)
            yield name
        for path in sorted(live.glob("*.deleted")):
            path.unlink()
            yield f"{path.name} removed"


@pytest.mark.parametrize("round_number", [1, 2])
@pytest.mark.parametrize("name", TOPICS)
def test_an_open_reader_lives_through_a_swap(tmp_path: Path, name: str, round_number: int) -> None:
    live = tmp_path / "log-dir"
    shutil.copytree(CLEANER / f"{round_number}-before", live)
    after = CLEANER / f"{round_number}-after"
    kept = read_fresh(after, name)
    with stratalog.open(live, read_only=True) as store:
        topic = store.topic(name)
        once = {seen.offset: seen for seen in read(topic)}
        assert len(kept) <= len(once)
        for step in swap_steps(live / f"{name}-0", after / f"{name}-0"):
            now = read(topic)
            assert [seen.offset for seen in now] == sorted({seen.offset for seen in now}), step
            assert all(once.get(seen.offset) == seen for seen in now), step
            lost = {seen.offset for seen in kept} - {seen.offset for seen in now}
            assert not lost, f"{step}: {len(lost)} records that cleaning keeps were not served"
        assert read(topic) == kept
