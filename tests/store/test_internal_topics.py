"""Topics of Kafka's own: programs read them and cannot append to them; copies take them along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.errors import InvalidTopicError
from stratalog.log.write.sequenced import Source
from stratalog.store.groups.offsets import OFFSETS_TOPIC
from stratalog.store.transactions.coordinator import TRANSACTIONS_TOPIC


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_programs_do_not_append(tmp_path: Path, name: str) -> None:
    with stratalog.open(tmp_path, background=False) as store:
        store.create_topic("orders", 1).append(b"0")
        with store.transaction("t") as t:
            t.append("orders", b"1")
            t.commit_offsets("g", {("orders", 0): 1})
        topic = store[name]
        ends = [topic.log_end_offset(number) for number in range(topic.partitions)]
        source = Source(1, 0, 0, transactional=False)
        acts: list[Callable[[], object]] = [
            lambda: topic.append(b"x"),
            lambda: topic.append(b"x", b"k", partition=0, sync=True),
            lambda: topic.append_many([Record(b"x")]),
            lambda: topic.append_batches(0, b""),
            lambda: topic.append_from(source, 0, [Record(b"x")]),
            lambda: topic.using(value_serializer="str").append("x"),
            lambda: asyncio.run(topic.aappend(b"x")),
            lambda: asyncio.run(topic.aappend_many([Record(b"x")])),
        ]
        for act in acts:
            with pytest.raises(InvalidTopicError, match=f"{name} is written by its coordinator only"):
                act()
        with store.transaction("u") as t, pytest.raises(InvalidTopicError, match="its coordinator only"):
            t.append(name, b"x")
        now = [topic.log_end_offset(number) for number in range(topic.partitions)]
        assert now == ends if name == OFFSETS_TOPIC else now[0] >= ends[0]
        assert len(list(topic.read())) >= 1
        assert store.groups.offsets.committed("g", "orders", 0) is not None


def test_copies_take_them_along(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "a", background=False) as store:
        store.create_topic("orders", 1).append(b"0")
        with store.consumer("g", ["orders"], timeout_s=0) as consumer:
            consumer.poll()
            consumer.commit()
        held = [record.key for record in store[OFFSETS_TOPIC].read()]
        store.export(OFFSETS_TOPIC, tmp_path / "offsets.tar")
        store.clone(tmp_path / "clone")
    with stratalog.open(tmp_path / "b", background=False) as store:
        store.import_topic(tmp_path / "offsets.tar")
        assert [record.key for record in store[OFFSETS_TOPIC].read()] == held
    for place in ("a", "clone"):
        with (
            stratalog.open(tmp_path / place, background=False) as store,
            store.consumer("g", ["orders"], timeout_s=0) as consumer,
        ):
            assert consumer.committed("orders") == 1
            consumer.seek("orders", 0, 0)
            consumer.commit()
            assert consumer.committed("orders") == 0
