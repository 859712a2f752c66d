"""One segment through its whole life: active, sealed, compacting, compacted, archived, deleted."""

from __future__ import annotations

import random
import time

import stratalog
from stratalog import Record, Store, Topic
from stratalog.config.units import format_bytes
from stratalog.demo.screen import Screen
from stratalog.demo.steps import Facts

TOPIC = "profiles"
KEYS = 2_000
UPDATES = 100_000
LIFE = ["active", "sealed", "compacting", "compacted", "archived", "deleted"]


def live(screen: Screen, path: str, archive: str, count: int = UPDATES) -> Facts:
    """Follow the first segment of a compacted, archived topic; its records must be right at every stage."""
    config = {"log.archive.url": archive, "log.cleaner.min.segment.age.ms": 0}
    began = time.perf_counter()
    with stratalog.open(path, config=config) as store:
        topic = store.create_topic(
            TOPIC,
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
        store.archive(TOPIC)  # copies go up and are read back ...
        store.archive(TOPIC)  # ... and then the local files may go
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
    return {
        "lifecycle_s": round(time.perf_counter() - began, 3),
        "compacted_bytes": compacted,
        "states": states,
    }


def _state(topic: Topic) -> str:
    return str(topic.segments()[0].state)


def _update(topic: Topic, count: int) -> dict[bytes, bytes | None]:
    """Many updates of few keys, some of them deletions; returns the latest value of each."""
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
    """Compact, and look at the directory while it happens; returns the bytes that are left."""

    def look(what: str, done: int, total: int) -> None:
        numbers = next(each for each in store.lifecycle() if each.topic == TOPIC)
        if "compacting" in numbers.states:
            seen.append("compacting")

    store.compact(TOPIC, force=True, progress=look)
    return store.topic(TOPIC).size_bytes()


def _records(topic: Topic, end: int) -> list[Record]:
    return list(topic.read(0, end=end))


def _delete(store: Store, topic: Topic, seen: list[str]) -> None:
    """Let time take it: whatever is older than a millisecond."""
    time.sleep(0.01)
    store.alter_topic(TOPIC, {"retention.ms": 1})
    report = store.retain(TOPIC)
    gone = {step.base_offset for step in report.steps if step.action == "delete"}
    if 0 in gone and topic.log_start_offset() > 0:
        seen.append("deleted")
