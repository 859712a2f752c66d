"""The steps of the demonstration, a function each; each checks what it sees and returns its facts."""

from __future__ import annotations

import random
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

import stratalog
from demo.events import Events, number_of
from demo.screen import Screen
from demo.victim import kill_one
from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.model import Record, SegmentInfo
from stratalog.store import Store, Topic

TOPIC = "orders"
PARTITIONS = 2
BATCH = 5_000
LOOKUPS = 300
BYTES_PER_EVENT = 115
SEGMENTS = 10
WINDOW_MS = 600_000
PROFILES = "profiles"
KEYS = 2_000
UPDATES = 100_000
LIFE = ["active", "sealed", "compacting", "compacted", "archived", "deleted"]
Facts = dict[str, object]
Found = dict[int, "array[int]"]
"""The number of the event at each offset of each partition."""


def create(store: Store, count: int) -> Topic:
    """Create a topic whose segments are small enough that about ten fill up."""
    segment_bytes = min(max(count * BYTES_PER_EVENT // SEGMENTS, 64 << 10), 64 << 20)
    config = {"segment.bytes": segment_bytes, "key.index.enable": True}
    return store.create_topic(TOPIC, partitions=PARTITIONS, config=config)


def append(screen: Screen, topic: Topic, events: Events) -> Facts:
    """Append all events in batches; a row appears for each segment that fills up."""
    screen.segment_head()
    shown: set[tuple[int, int]] = set()
    taken_s = 0.0
    placed = 0
    with screen.progress("appending", events.count) as progress:
        for start in range(0, events.count, BATCH):
            records = events.batch(start, BATCH, events.count)
            began = time.perf_counter()
            placed += sum(each.count for each in topic.append_many(records))
            taken_s += time.perf_counter() - began
            progress(start + len(records))
            _show_sealed(screen, topic, shown)
    segments = topic.segments()
    for each in segments:
        if each.state == "active":
            screen.segment(each)
    ends = sum(topic.log_end_offset(each) for each in range(PARTITIONS))
    rate = events.count / max(taken_s, 1e-9)
    screen.check(
        "appended",
        placed == ends == events.count,
        f"{placed:,} acknowledged in {taken_s:.2f} s ({rate / 1e6:.2f} million/s), {ends:,} in the log",
    )
    whole = _contiguous(segments)
    screen.check("segments", whole, f"{len(segments)} segments, each beginning where the last one ends")
    size_bytes = sum(each.size_bytes for each in segments)
    detail = f"{events.count:,} events, {format_bytes(size_bytes)}, key index on"
    screen.row("append", f"{rate / 1e6:.2f} M/s", detail)
    screen.row("segments", str(len(segments)), f"in {PARTITIONS} partitions")
    facts = {"append_s": round(taken_s, 4), "segments": len(segments), "partitions": PARTITIONS}
    return {**facts, "size_bytes": size_bytes}


def _show_sealed(screen: Screen, topic: Topic, shown: set[tuple[int, int]]) -> None:
    for each in topic.segments():
        name = (each.partition, each.base_offset)
        if each.state != "active" and name not in shown:
            shown.add(name)
            screen.segment(each)


def _contiguous(segments: list[SegmentInfo]) -> bool:
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for each in segments:
        if each.base_offset != ends[each.partition]:
            return False
        ends[each.partition] = each.next_offset
    return True


def scan(screen: Screen, topic: Topic, events: Events) -> tuple[Found, Facts]:
    """Scan every partition to Arrow, then compare each row with the event it must be."""
    began = time.perf_counter()
    tables = {
        partition: topic.scan([partition], ["key", "value", "offset", "timestamp"]).read_all()
        for partition in range(PARTITIONS)
    }
    taken_s = time.perf_counter() - began
    seen = bytearray(events.count)
    found: Found = {}
    right = True
    with screen.progress("comparing", events.count) as progress:
        done = 0
        for partition, table in tables.items():
            numbers = found[partition] = array("q")
            for batch in table.to_batches():
                right = _compare(batch, events, numbers, seen) and right
                done += batch.num_rows
                progress(done)
            right = right and all(a < b for a, b in pairwise(numbers))
    rows = sum(len(numbers) for numbers in found.values())
    rate = rows / max(taken_s, 1e-9)
    screen.check(
        "scanned",
        right and rows == events.count == sum(seen),
        f"{rows:,} records to Arrow in {taken_s:.2f} s ({rate / 1e6:.2f} million/s), all as they were made",
    )
    screen.row("scan to Arrow", f"{rate / 1e6:.2f} M/s", "key, value, offset, timestamp")
    return found, {"scan_s": round(taken_s, 4)}


def _compare(batch: Any, events: Events, numbers: array[int], seen: bytearray) -> bool:
    """True when each row is the event it says it is, at the next offset; every event is marked as seen."""
    columns = [batch.column(name).to_pylist() for name in ("key", "value")]
    columns += [batch.column(name).cast("int64").to_pylist() for name in ("offset", "timestamp")]
    for key, value, offset, timestamp in zip(*columns, strict=True):
        number = number_of(value)
        if not 0 <= number < events.count or offset != len(numbers) or seen[number]:
            return False
        made = events.record(number)
        if (value, key, timestamp) != (made.value, made.key, made.timestamp):
            return False
        seen[number] = 1
        numbers.append(number)
    return True


def _timed(calls: Iterable[Callable[[], object]]) -> tuple[float, list[object]]:
    """Return the median time of the calls in microseconds, and their results."""
    times, results = [], []
    for call in calls:
        began = time.perf_counter_ns()
        results.append(call())
        times.append(time.perf_counter_ns() - began)
    return median(times) / 1e3, results


def _read_one(topic: Topic, partition: int, offset: int) -> Record | None:
    return next(topic.read(partition, offset, offset + 1), None)


def _same(record: object, event: Record, offset: int | None = None) -> bool:
    """True when a record read is the event, at this offset when one is given."""
    return (
        isinstance(record, Record)
        and (record.value, record.key, record.timestamp) == (event.value, event.key, event.timestamp)
        and offset in (None, record.offset)
    )


def find_by_offset(screen: Screen, topic: Topic, events: Events, found: Found) -> Facts:
    """Read single records at random offsets."""
    chance = random.Random(1)
    places = []
    for _ in range(LOOKUPS):
        partition = chance.choice([each for each, numbers in found.items() if numbers])
        places.append((partition, chance.randrange(len(found[partition]))))
    middle_us, records = _timed(partial(_read_one, topic, *at) for at in places)
    right = all(
        _same(record, events.record(found[partition][offset]), offset)
        for record, (partition, offset) in zip(records, places, strict=True)
    )
    screen.check("by offset", right, f"{LOOKUPS} random offsets, {middle_us:,.0f} µs each")
    screen.row("read by offset", f"{middle_us:,.0f} µs", "median, random offsets")
    return {"by_offset_us": round(middle_us, 1)}


def find_by_time(screen: Screen, topic: Topic, events: Events, found: Found) -> Facts:
    """Find offsets by time, and everything in ten minutes, though the times are out of order."""
    chance = random.Random(2)
    # As in Kafka: the first offset whose time is at or after the moment, whatever the order of times.
    newest = list(accumulate((events.timestamp(number) for number in found[0]), max))
    moments = [events.timestamp(chance.randrange(events.count)) for _ in range(LOOKUPS)]
    middle_us, offsets = _timed(partial(topic.offset_for_time, 0, moment) for moment in moments)
    expected_offsets = [bisect_left(newest, moment) for moment in moments]
    right = offsets == [None if at == len(newest) else at for at in expected_offsets]
    since = events.timestamp(events.count // 3)
    until = since + WINDOW_MS
    began = time.perf_counter()
    values = topic.scan(columns=["value"], since=since, until=until).read_all().column("value").to_pylist()
    window_s = time.perf_counter() - began
    expected = events.between(since, until)
    right = right and sorted(number_of(value) for value in values) == expected
    span = format_duration_ms(WINDOW_MS)
    screen.check(
        "by time",
        right,
        f"{LOOKUPS} random times, {middle_us:,.0f} µs each; {len(values):,} events of {span} in"
        f" {window_s * 1e3:,.1f} ms, though times are out of order",
    )
    screen.row("read by time", f"{middle_us:,.0f} µs", "median, first offset at a random time")
    return {"by_time_us": round(middle_us, 1), "window_s": round(window_s, 5)}


def find_by_key(screen: Screen, topic: Topic, events: Events) -> Facts:
    """Find the latest record of random keys, and one key's whole history."""
    chance = random.Random(3)
    customers = [events.customer(chance.randrange(events.count)) for _ in range(LOOKUPS)]
    middle_us, records = _timed(partial(topic.get, b"customer-%06d" % customer) for customer in customers)
    last = {events.customer(number): number for number in range(events.count)}
    right = all(
        _same(record, events.record(last[customer]))
        for record, customer in zip(records, customers, strict=True)
    )
    customer = customers[0]
    began = time.perf_counter()
    history = list(topic.history(b"customer-%06d" % customer))
    history_s = time.perf_counter() - began
    expected = events.of_customer(customer)
    right = right and [number_of(record.value or b"") for record in history] == expected
    right = right and topic.get(b"nobody") is None
    screen.check(
        "by key",
        right,
        f"{LOOKUPS} random keys, {middle_us:,.0f} µs each; all {len(history)} events of one customer in"
        f" {history_s * 1e3:,.1f} ms",
    )
    screen.row("read by key", f"{middle_us:,.0f} µs", "median, latest record of a random key")
    return {"by_key_us": round(middle_us, 1), "history_s": round(history_s, 5)}


def kill_and_recover(screen: Screen, path: str, events: Events) -> Facts:
    """Kill a child that appends; every acknowledged record must be there."""
    with stratalog.open(path, read_only=True) as store:
        before = {each: store.topic(TOPIC).log_end_offset(each) for each in range(PARTITIONS)}
    acked = kill_one(path, TOPIC, events, after_events=min(max(events.count // 5, 2_000), 200_000))
    screen.check(
        "killed",
        acked.exit_status == -9 and acked.events > 0,
        f"the child was killed after {acked.events:,} acknowledged events",
    )
    began = time.perf_counter()
    with stratalog.open(path) as store:
        taken_s = time.perf_counter() - began
        scanned = sum(report.scanned_bytes for report in store.recovery)
        cuts = [cut for report in store.recovery for cut in report.cuts]
        damages = [damage for report in store.recovery for damage in report.damages]
        topic = store.topic(TOPIC)
        size = topic.size_bytes()
        screen.line(
            f"recovery checked {format_bytes(scanned)} past the synced end of {format_bytes(size)}"
            f" in {taken_s * 1e3:,.0f} ms; {len(cuts)} torn tail{'' if len(cuts) == 1 else 's'} cut"
        )
        ends = {each: topic.log_end_offset(each) for each in range(PARTITIONS)}
        right = not damages and all(ends[each] >= end for each, end in acked.ends.items())
        seen = bytearray(acked.events)
        extra = 0
        for partition, start in before.items():
            for record in topic.read(partition, start):
                number = number_of(record.value or b"")
                right = right and _same(record, events.record(number))
                if number < acked.events:
                    right = right and not seen[number]
                    seen[number] = 1
                else:
                    extra += 1
        lost = acked.events - sum(seen)
        screen.check(
            "recovered",
            right and lost == 0,
            f"{sum(seen):,} of {acked.events:,} acknowledged events are there, {lost} lost"
            f" (and {extra:,} that were written but not yet acknowledged)",
        )
    took = f"open took {taken_s * 1e3:,.0f} ms and checked {format_bytes(scanned)}"
    screen.row("after SIGKILL", f"{lost} lost", f"of {acked.events:,} acknowledged; {took}")
    return {
        "acknowledged": acked.events,
        "lost": lost,
        "recover_s": round(taken_s, 5),
        "recover_scanned_bytes": scanned,
    }


def tear_and_recover(screen: Screen, path: str) -> Facts:
    """Add half a batch at the end: it must be cut and saved, and offsets go on where they were."""
    with stratalog.open(path) as store:
        topic = store.topic(TOPIC)
        topic.append_many([Record(b"whole batch %d" % each) for each in range(10)], partition=0)
        end = topic.log_end_offset(0)
        active = topic.segments(0)[-1]
    with open(active.path, "rb") as file:
        head = file.read(256)
    with open(active.path, "ab") as file:
        # The head of a true batch: its length field promises more bytes than follow.
        file.write(head)
    with stratalog.open(path) as store:
        topic = store.topic(TOPIC)
        cuts = [cut for report in store.recovery for cut in report.cuts]
        placed = topic.append(b"after the cut", partition=0)
        record = next(topic.read(0, placed.offset))
        right = len(cuts) == 1 and placed.offset == end and record.value == b"after the cut"
        screen.check(
            "torn tail",
            right,
            f"{len(head)} torn bytes cut and kept as a .torn file; the next offset is {placed.offset:,}",
        )
    torn = len(head) if cuts else 0
    screen.row("after a torn write", f"{torn} B cut", "saved beside the segment; nothing else lost")
    return {"torn_bytes": torn}


def live(screen: Screen, path: str, archive: str, count: int = UPDATES) -> Facts:
    """Follow one segment of a compacted, archived topic; its records must be right at every stage."""
    config = {"log.archive.url": archive, "log.cleaner.min.segment.age.ms": 0}
    began = time.perf_counter()
    with stratalog.open(path, config=config) as store:
        topic = store.create_topic(
            PROFILES,
            config={
                "cleanup.policy": "compact,delete",
                "segment.bytes": 3 << 20,
                "remote.storage.enable": True,
                "local.retention.bytes": 0,
                "retention.ms": -1,
            },
        )
        seen = [_state(topic)]
        latest = _update(topic, count)
        seen.append(_state(topic))
        moment = topic.log_end_offset()
        before = topic.size_bytes()
        compacted = _compact(store, seen)
        seen.append(_state(topic))
        kept = _records(topic, moment)
        right = {record.key: record.value for record in kept if record.value is not None} == {
            key: value for key, value in latest.items() if value is not None
        }
        screen.check(
            "compacted",
            right and compacted < before / 2,
            f"{count:,} updates of {KEYS:,} keys: {format_bytes(before)} became {format_bytes(compacted)};"
            " every key has its latest value",
        )
        store.archive(PROFILES)  # copies go up and are read back ...
        store.archive(PROFILES)  # ... and then the local files may go
        seen.append(_state(topic))
        across = _records(topic, moment)
        moved = sum(info.state == "archived" for info in topic.segments())
        screen.check(
            "archived",
            moved > 0 and across == kept,
            f"{moved} segments lie in the archive only; the same {len(across):,} records are read across",
        )
        _delete(store, topic, seen)
    states = [state for at, state in enumerate(seen) if at == 0 or seen[at - 1] != state]
    screen.check("every state", states == LIFE, " → ".join(states))
    taken_s = time.perf_counter() - began
    screen.row("a segment's life", f"{taken_s * 1e3:,.0f} ms", " → ".join(states))
    return {"lifecycle_s": round(taken_s, 3), "compacted_bytes": compacted, "states": states}


def _state(topic: Topic) -> str:
    return str(topic.segments()[0].state)


def _update(topic: Topic, count: int) -> dict[bytes, bytes | None]:
    """Append many updates of few keys, some of them deletions; return the latest value of each."""
    chance = random.Random(4)
    latest: dict[bytes, bytes | None] = {}
    for start in range(0, count, 1000):
        records = []
        for number in range(start, min(start + 1000, count)):
            key = b"customer-%06d" % chance.randrange(KEYS)
            value = None if chance.random() < 0.05 else b"profile %d %s" % (number, b"x" * 60)
            latest[key] = value
            records.append(Record(value, key))
        topic.append_many(records)
    topic.roll()
    return latest


def _compact(store: Store, seen: list[str]) -> int:
    """Compact, and look at the states meanwhile; return the bytes that are left."""

    def look(what: str, done: int, total: int) -> None:
        numbers = next(each for each in store.lifecycle() if each.topic == PROFILES)
        if "compacting" in numbers.states:
            seen.append("compacting")

    store.compact(PROFILES, force=True, progress=look)
    return store.topic(PROFILES).size_bytes()


def _records(topic: Topic, end: int) -> list[Record]:
    return list(topic.read(0, end=end))


def _delete(store: Store, topic: Topic, seen: list[str]) -> None:
    """Let retention delete everything older than a millisecond."""
    time.sleep(0.01)
    store.alter_topic(PROFILES, {"retention.ms": 1})
    report = store.retain(PROFILES)
    gone = {step.base_offset for step in report.steps if step.action == "delete"}
    if 0 in gone and topic.log_start_offset() > 0:
        seen.append("deleted")
