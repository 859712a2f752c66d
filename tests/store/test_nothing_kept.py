"""What comes and goes in a store leaves nothing in its memory, however often it does.

Objects are counted that can be reached from the store: after some rounds, and after as many more. What is
kept for each round, topic, segment or consumer shows, whatever it is kept in.
"""

from __future__ import annotations

import gc
import tracemalloc
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog import Store
from stratalog.format.seal import BLOCK_BYTES
from stratalog.model import SegmentState
from stratalog.testing.clock import ManualClock
from tests.store.lifecycle_support import COMPACT, DAY_MS

ROUNDS = 6
OUTSIDE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType)
"""What is not looked into: the program, not what it keeps."""


def kept(root: object) -> Counter[str]:
    """Count by type what can be reached from an object."""
    gc.collect()
    found: Counter[str] = Counter()
    seen, todo = {id(root)}, [root]
    while todo:
        each = todo.pop()
        found[type(each).__qualname__] += 1
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, OUTSIDE):
                seen.add(id(other))
                todo.append(other)
    return found


def create_and_delete(store: Store, number: int) -> None:
    topic = store.create_topic(f"t{number}", 2)
    for _ in range(2):
        topic.append(b"v", b"k")
        topic.roll()
    assert len(list(topic.read())) == 2
    assert topic.scan().read_all().num_rows == 2
    topic.flush()
    store.delete_topic(topic.name)


def compact_and_delete(store: Store, number: int) -> None:
    config = {key.replace("_", "."): value for key, value in COMPACT.items()}
    topic = store.create_topic(f"t{number}", 1, {**config, "min.cleanable.dirty.ratio": 0.99})
    for _ in range(2):
        for _ in range(3):
            topic.append(b"v", b"k")
            topic.roll()
        topic.flush()
        store.janitor(topic.name)  # the second time by an estimate of duplicates
    store.delete_topic(topic.name)


def archive_and_delete(store: Store, number: int) -> None:
    topic = store.create_topic(f"t{number}", 1, {"remote.storage.enable": True, "local.retention.bytes": 0})
    for _ in range(2):
        topic.append(b"v")
        topic.roll()
    topic.flush()
    for _ in range(2):
        store.janitor()
    assert {segment.state for segment in topic.segments()} >= {SegmentState.ARCHIVED}
    assert len(list(topic.read())) == 2
    store.delete_topic(topic.name)


def roll_and_retain(store: Store, _: int) -> None:
    topic = store.create_topic("kept", 1, {"retention.bytes": 0}, if_not_exists=True)
    for _ in range(3):
        topic.append(b"v" * 100)
        topic.roll()
        assert list(topic.read())
    topic.flush()
    store.retain()
    assert len(topic.segments()) == 1


def consume(store: Store, number: int) -> None:
    topic = store.create_topic("kept", 1, if_not_exists=True)
    topic.append(b"v")
    with store.consumer(f"g{number}", ["kept"], timeout_s=0) as consumer:
        assert next(iter(consumer)).value == b"v"
    assert list(topic.read(follow=True, timeout_s=0))
    next(iter(topic.read()))
    topic.delete_records(0, -1)


@pytest.mark.parametrize(
    "one_round", [create_and_delete, compact_and_delete, archive_and_delete, roll_and_retain, consume]
)
def test_rounds_leave_nothing_behind(tmp_path: Path, one_round: Callable[[Store, int], None]) -> None:
    clock = ManualClock()
    config = {"log.archive.url": f"file://{tmp_path / 'archive'}"}
    with stratalog.open(tmp_path / "data", config, clock=clock, background=False) as store:

        def rounds(first: int) -> Counter[str]:
            for number in range(first, first + ROUNDS):
                one_round(store, number)
                clock.advance(DAY_MS // 24)
                store.tick()
            return kept(store)

        rounds(10)
        before = rounds(10 + ROUNDS)
        grown = rounds(10 + 2 * ROUNDS) - before
        assert sum(grown.values()) < ROUNDS, grown


def test_the_cache_of_sidecars_counts_what_it_costs(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        for name, segments, batches in (("small", 50, 1), ("large", 2, 100)):
            topic = store.create_topic(name, 1)
            for _ in range(segments):
                for _ in range(batches):
                    topic.append(b"v" * BLOCK_BYTES)
                topic.roll()
            cache = store.partitions.context.cache
            found = store.partitions.view(name, 0).local_segments()[:-1]
            for segment in found:
                segment.forget()
            counted = cache.used_bytes
            gc.collect()
            tracemalloc.start()
            try:
                for segment in found:
                    assert segment.seal is not None
                    assert len(segment.seal.blocks) == batches
                    segment.offset_index(), segment.time_index(), segment.aborted()
                gc.collect()
                costs, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert costs <= 1.25 * (cache.used_bytes - counted)
