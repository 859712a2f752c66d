"""Keys and values that are not bytes: what a serializer made comes back, and a failing one is named."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.errors import ConfigError, InvalidArgumentError, InvalidRecordError, SerializationError


class Order(NamedTuple):
    id: int
    item: str

    @staticmethod
    def of(data: bytes) -> Order:
        number, item = data.decode().split(",")
        return Order(int(number), item)

    def to_bytes(self) -> bytes:
        return f"{self.id},{self.item}".encode()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data", background=False) as opened:
        yield opened


@pytest.fixture
def plain(store: Store) -> Topic:
    return store.create_topic("orders", 2)


def pairs(records: Any) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in records]


def test_json_values_under_text_keys(plain: Topic) -> None:
    orders = plain.using(key_serializer="str", value_serializer="json")
    placed = orders.append({"id": 1, "item": "Äpfel"}, "ann", timestamp=1)
    orders.append_many([Record([1, None], "bob", (), 2), Record(None, "ann", (), 3)], sync=True)
    expected = [("ann", {"id": 1, "item": "Äpfel"}), ("bob", [1, None]), ("ann", None)]
    assert pairs(orders.read()) == expected
    assert pairs(orders.aread(since=2)) == expected[1:]
    assert plain.at(placed.offset, placed.partition) == next(plain.read())
    assert next(plain.read()).value == '{"id":1,"item":"Äpfel"}'.encode()
    found = orders.at(placed.offset, placed.partition)
    assert found is not None
    assert found.value == {"id": 1, "item": "Äpfel"}
    assert (found.topic, found.timestamp, found.offset) == ("orders", 1, placed.offset)
    newest = orders.get("ann")
    assert newest is not None
    assert newest.value is None
    assert pairs(orders.history("ann")) == [expected[0], expected[2]]
    assert orders.get("eve") is None
    assert orders.name == "orders"
    assert orders.topic is plain


def test_a_key_is_placed_by_its_bytes(plain: Topic) -> None:
    """Equal objects are one key: whatever the order of their fields, and whoever appends."""
    orders = plain.using(key_serializer="json", value_serializer="str")
    first = orders.append("one", {"a": 1, "b": 2})
    second = orders.append("two", {"b": 2, "a": 1})
    third = plain.append(b"three", b'{"a":1,"b":2}')
    assert first.partition == second.partition == third.partition
    assert [record.value for record in orders.history({"b": 2, "a": 1})] == ["one", "two", "three"]


def test_functions_of_a_class(plain: Topic) -> None:
    orders = plain.using(value_serializer=Order.to_bytes, value_deserializer=Order.of)
    orders.append(Order(7, "tea"), b"bytes stay bytes")
    assert pairs(orders.read()) == [(b"bytes stay bytes", Order(7, "tea"))]
    written = plain.using(value_serializer=Order.to_bytes)
    assert [record.value for record in written.read()] == [b"7,tea"], "a function has no other side"


def test_what_a_topic_takes_beside_values(plain: Topic) -> None:
    orders = plain.using(value_serializer="str")
    placed = orders.append("x", None, [("source", b"web")], 5, partition=1, expected_offset=0)
    assert (placed.partition, placed.offset, placed.timestamp) == (1, 0, 5)
    orders.append_many([("y",), ("z", b"k")], partition=1, producer="p", sequence=0)  # type: ignore[list-item]
    assert [(record.value, record.headers) for record in orders.read(1)] == [
        ("x", (("source", b"web"),)),
        ("y", ()),
        ("z", ()),
    ]


def test_in_an_event_loop(plain: Topic) -> None:
    orders = plain.using(key_serializer="str", value_serializer="json")

    async def main() -> list[tuple[Any, Any]]:
        await orders.aappend({"n": 1}, "ann", timestamp=1, sync=True)
        await orders.aappend_many([Record({"n": 2}, "bob", (), 2)])
        once = [(record.key, record.value) async for record in orders.aread()]
        followed = [(record.key, record.value) async for record in orders.aread(follow=True, timeout_s=0)]
        assert once == followed
        return once

    assert asyncio.run(main()) == [("ann", {"n": 1}), ("bob", {"n": 2})]


def test_a_consumer_and_a_transaction(store: Store, plain: Topic) -> None:
    orders = plain.using(key_serializer="str", value_serializer="json")
    logs = store.create_topic("logs").using(value_serializer="str")
    with store.transaction("shop") as t:
        placed = t.append(orders, {"n": 1}, "ann", timestamp=1)
        t.append_many(logs, [Record("begun", None, (), 2)])
        t.append("logs", b"raw", timestamp=3)
    assert placed.timestamp == 1
    with store.consumer("each", [orders, logs], timeout_s=0, isolation="read_committed") as consumer:
        assert sorted(pairs(consumer), key=str) == [("ann", {"n": 1}), (None, "begun"), (None, "raw")]
    options: dict[str, Any] = {"key_deserializer": "str", "value_deserializer": json.loads}
    with store.consumer("all", ["orders", logs], timeout_s=0, **options) as consumer:
        assert sorted(pairs(consumer), key=str) == [("ann", {"n": 1}), (None, "begun"), (None, "raw")]
    with store.consumer("none", ["orders"], timeout_s=0) as consumer:
        assert pairs(consumer) == [(b"ann", b'{"n":1}')]


def test_a_record_that_cannot_be_read_is_named_and_passed(store: Store) -> None:
    plain = store.create_topic("texts")
    texts = plain.using(value_serializer="str")
    plain.append_many([Record(b"one"), Record(b"\xff"), Record(b"three")])
    records = texts.read()
    assert next(records).value == "one"
    with pytest.raises(SerializationError, match="texts-0, offset 1: value .*value_deserializer") as raised:
        next(records)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("texts", 0, 1)
    assert isinstance(raised.value.__cause__, UnicodeDecodeError)
    assert next(records).value == "three"

    async def main() -> list[Any]:
        found: list[Any] = []
        asynchronous = texts.aread(follow=True, timeout_s=0)
        while True:
            try:
                found.append((await anext(asynchronous)).value)
            except SerializationError as error:
                found.append(error.offset)
            except StopAsyncIteration:
                return found

    assert asyncio.run(main()) == ["one", 1, "three"]
    with store.consumer("g", [texts], timeout_s=0) as consumer:
        assert [record.value for record in consumer.poll()] == ["one"]
        for _ in range(2):
            with pytest.raises(SerializationError):
                consumer.poll()
        assert consumer.position("texts") == 1, "nothing is skipped by itself"
        consumer.seek("texts", 0, 2)
        assert [record.value for record in consumer.poll()] == ["three"]


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        ({1, 2}, "k", r"^value \{1, 2\}: value_serializer raised TypeError: .*set"),
        (float("nan"), "k", "^value nan: value_serializer raised ValueError"),
        ({}, b"k", "^key b'k': key_serializer raised TypeError: expected a str, not bytes"),
    ],
)
def test_a_serializer_that_raises(plain: Topic, value: Any, key: Any, message: str) -> None:
    orders = plain.using(key_serializer="str", value_serializer="json")
    with pytest.raises(SerializationError, match=message) as raised:
        orders.append(value, key)
    assert isinstance(raised.value.__cause__, TypeError | ValueError)
    with pytest.raises(SerializationError, match=f"^record 1: {message[1:]}") as raised:
        orders.append_many([Record({}, "fine"), Record(value, key)])
    assert raised.value.record_index == 1
    assert isinstance(raised.value.__cause__, TypeError | ValueError)
    with pytest.raises(SerializationError, match=message):
        asyncio.run(orders.aappend(value, key))
    assert not list(plain.read())


@pytest.mark.parametrize("made", [None, "text", bytearray(b"x")])
def test_a_serializer_that_returns_no_bytes(plain: Topic, made: Any) -> None:
    """None too: a function that forgot to return something must not write a tombstone."""
    with pytest.raises(SerializationError, match=f"value_serializer returned {type(made).__name__}"):
        plain.using(value_serializer=lambda value: made).append(1)


@pytest.mark.parametrize(
    "argument", ["key_serializer", "value_serializer", "key_deserializer", "value_deserializer"]
)
def test_what_is_no_serializer(store: Store, plain: Topic, argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{argument} must be .*'json'.* or a function, not 7"):
        plain.using(**{argument: 7})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=f"^{argument} 'jsn' is not known"):
        plain.using(**{argument: "jsn"})  # type: ignore[arg-type]
    if argument.endswith("deserializer"):
        with pytest.raises(InvalidArgumentError, match=f"^{argument} must be "):
            store.consumer("g", ["orders"], **{argument: 7})  # type: ignore[arg-type]


def test_what_is_no_record(plain: Topic) -> None:
    orders = plain.using(value_serializer="str")
    with pytest.raises(InvalidRecordError, match="record 1: it must be a Record, not str"):
        orders.append_many([Record("x"), "y"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="records must be a list of records where there are ser"):
        orders.append_many(pa.table({"value": [b"x"]}))
    with pytest.raises(InvalidArgumentError, match="key must be bytes"):
        orders.get("text without a key_serializer")
    assert not list(plain.read())


def test_a_package_that_is_not_installed_is_named(plain: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    for argument in ("key_serializer", "value_deserializer"):
        with pytest.raises(ConfigError, match=f"{argument}='msgspec' needs the package msgspec: pip install"):
            plain.using(**{argument: "msgspec"})  # type: ignore[arg-type]


def test_a_handle_knows_partitions_that_are_added(store: Store) -> None:
    orders = store.create_topic("grows").using(key_serializer="str", value_serializer="str")
    orders.append("x", "k")
    store.add_partitions("grows", 4)
    assert {orders.append("x", f"k{number}").partition for number in range(50)} == {0, 1, 2, 3}
    assert len(list(orders.read())) == 51
