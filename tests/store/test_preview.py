"""A preview changes nothing and is what the next round does, whatever the store went through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from stratalog.log.names import SEGMENT_KINDS, parse_file
from stratalog.log.policy.preview import Step
from stratalog.store.lifecycle.reports import LifecycleReport
from tests.store.lifecycle_support import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Life,
    bases,
)


def listing(life: Life) -> dict[str, bytes]:
    """Every file of the store with its bytes."""
    assert life.fs is not None
    found: dict[str, bytes] = {}

    def walk(path: str) -> None:
        assert life.fs is not None
        for name in life.fs.list_dir(path):
            if life.fs.stat(f"{path}/{name}").is_dir:
                walk(f"{path}/{name}")
            elif name != ".lock":
                found[f"{path}/{name}"] = life.fs.read_file(f"{path}/{name}")

    walk(life.root)
    return found


def predicted(topic: stratalog.Topic, steps: tuple[Step, ...]) -> list[tuple[int, int]]:
    """(base offset, next offset) of the segments after the due steps, compaction aside."""
    mine = [step for step in steps if step.due and step.topic == topic.name]
    gone = {step.base_offset for step in mine if step.action == "delete"}
    left = [(s.base_offset, s.next_offset) for s in topic.segments() if s.base_offset not in gone]
    if any(step.action == "roll" for step in mine):
        end = topic.log_end_offset()
        left.append((end, end))
    return left


COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6), st.integers(-12, 3)),
        st.tuples(st.just("roll")),
        st.tuples(st.just("pass"), st.sampled_from([1, 10 * MINUTE_MS, 2 * HOUR_MS, 9 * HOUR_MS])),
        st.tuples(
            st.just("jump"), st.sampled_from([-DAY_MS, -HOUR_MS, -MINUTE_MS, MINUTE_MS, HOUR_MS, DAY_MS])
        ),
        st.tuples(st.just("delete"), st.floats(0, 1)),
        st.tuples(st.just("again")),
        st.tuples(st.just("round"), st.sampled_from(["retain", "compact", "force", "janitor"])),
    ),
    min_size=4,
    max_size=25,
)
POLICIES = st.fixed_dictionaries(
    {
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete", ""]),
        "retention.ms": st.sampled_from([-1, 1, HOUR_MS, 10 * HOUR_MS]),
        "retention.bytes": st.sampled_from([-1, 0, 300, 2000]),
        "retention.segments": st.sampled_from([-1, 1, 3]),
        "min.cleanable.dirty.ratio": st.sampled_from([0.0, 0.5]),
        "min.compaction.lag.ms": st.sampled_from([0, HOUR_MS]),
        "cleaner.min.segment.age.ms": st.sampled_from([0, HOUR_MS]),
        "segment.ms": st.sampled_from([HOUR_MS, 100 * DAY_MS]),
        "segment.records": st.sampled_from([4, 1000]),
        "file.delete.delay.ms": st.sampled_from([0, MINUTE_MS]),
    }
)


@settings(max_examples=60)
@given(POLICIES, COMMANDS)
def test_a_preview_is_what_happens_next(policy: dict[str, object], commands: list[tuple[Any, ...]]) -> None:
    life = Life(config={"log.cleaner.backoff.ms": 1000})
    life.store.create_topic("t", 1, {**policy, "message.timestamp.after.max.ms": 2**62})
    life.store.create_topic("u", 1, {"retention.segments": 2})
    count = 0
    rounds: dict[str, Callable[[bool], LifecycleReport]] = {
        "retain": lambda preview: life.store.retain(preview=preview),
        "compact": lambda preview: life.store.compact(preview=preview),
        "force": lambda preview: life.store.compact(force=True, preview=preview),
        "janitor": lambda preview: life.store.janitor(preview=preview),
    }
    for command, *arguments in [*commands, ("round", "janitor"), ("round", "janitor")]:
        topic = life.store.topic("t")
        if command == "append":
            for at in range(arguments[0]):
                count += 1
                stamp = life.clock.now_ms() + arguments[1] * HOUR_MS
                topic.append(b"%d" % count, b"k%d" % (at % 3), timestamp=stamp)
            life.store.topic("u").append(b"u")
        elif command == "roll":
            topic.roll()
            life.store.topic("u").roll()
        elif command == "pass":
            life.pass_time(arguments[0])
        elif command == "jump":
            life.clock.jump(arguments[0])
        elif command == "delete":
            start, end = topic.log_start_offset(), topic.log_end_offset()
            topic.delete_records(0, start + int((end - start) * arguments[0]))
        elif command == "again":
            life.again()
        else:
            check_round(life, rounds[arguments[0]])
    assert [record.offset for record in life.store.topic("t").read()] == sorted(
        {record.offset for record in life.store.topic("t").read()}
    )
    life.store.close()


def check_round(life: Life, run: Callable[[bool], LifecycleReport]) -> None:
    """A preview changes nothing, says what the round then does, and tells the directory afterwards."""
    topics = [life.store.topic(name) for name in ("t", "u")]
    before = listing(life)
    shown = run(True)
    assert listing(life) == before
    assert shown.preview
    assert run(True) == shown
    expected = [predicted(topic, shown.steps) for topic in topics]
    active = [topic.segments()[-1] for topic in topics]
    ends = [topic.log_end_offset() for topic in topics]
    start_of = {topic.name: topic.log_start_offset() for topic in topics}
    done = run(False)
    assert done.steps == shown.steps
    assert done.notes == shown.notes
    for topic, wanted, was_active, end in zip(topics, expected, active, ends, strict=True):
        now = [(segment.base_offset, segment.next_offset) for segment in topic.segments()]
        cleaned = [s for s in done.steps if s.due and s.action == "compact" and s.topic == topic.name]
        if cleaned:
            # Inside of the range that was cleaned segments may be merged; outside none is touched.
            low, high = cleaned[0].base_offset, cleaned[0].next_offset
            assert [each for each in now if each[0] < low or each[0] >= high] == [
                each for each in wanted if each[0] < low or each[0] >= high
            ]
            assert {each[0] for each in now} <= {each[0] for each in wanted}
        else:
            assert now == wanted
        assert topic.log_end_offset() == end
        assert now[-1][0] in (was_active.base_offset, end)
        check_directory(life, topic)
        lost = [s.first_offset_lost for s in done.steps if s.due and s.topic == topic.name]
        first = min((offset for offset in lost if offset is not None), default=None)
        if first is not None:
            assert first == start_of[topic.name]
            assert topic.log_start_offset() > first
    for step in done.steps:
        if step.action == "delete" and step.due:
            assert step.base_offset < next(a for a in active if a.topic == step.topic).base_offset


def check_directory(life: Life, topic: stratalog.Topic) -> None:
    """What lies there under its own name is exactly what the log has."""
    files = [parsed for name in life.files(topic.name) if (parsed := parse_file(name)) is not None]
    plain = {file.base_offset for file in files if file.suffix == "" and file.kind in SEGMENT_KINDS}
    assert plain == set(bases(topic))
    assert not [file for file in files if file.suffix in (".cleaned", ".swap")]
