"""Numbers that callers hand in: what is not a whole number in its range is refused and changes nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog import Record, Store, errors

Call = Callable[[Store, Any], object]

NO_NUMBERS: tuple[object, ...] = (True, False, "1", b"1", 1.5, float("nan"), [1], {})

CALLS: dict[str, Call] = {
    "create_topic partitions": lambda store, bad: store.create_topic("new", bad),
    "add_partitions total": lambda store, bad: store.add_partitions("t", bad),
    "move_partition partition": lambda store, bad: store.move_partition("t", bad, "/elsewhere"),
    "repair partition": lambda store, bad: store.repair("t", bad, action="rebuild-indexes"),
    "compact partition": lambda store, bad: store.compact("t", bad),
    "lend_compaction partition": lambda store, bad: store.lend_compaction("t", bad),
    "lend_compaction beside": lambda store, bad: store.lend_compaction("t", 0, beside=bad),
    "append partition": lambda store, bad: store.topic("t").append(b"x", partition=bad),
    "append partition of one": lambda store, bad: store.topic("one").append(b"x", partition=bad),
    "append timestamp": lambda store, bad: store.topic("t").append(b"x", timestamp=bad),
    "append_many partition": lambda store, bad: store.topic("t").append_many([Record(b"x")], partition=bad),
    "append_batches partition": lambda store, bad: store.topic("t").append_batches(bad, b""),
    "end_transaction partition": lambda store, bad: store.topic("t").end_transaction(
        bad, producer_id=1, producer_epoch=0, commit=True
    ),
    "end_transaction producer_id": lambda store, bad: store.topic("t").end_transaction(
        0, producer_id=bad, producer_epoch=0, commit=True
    ),
    "end_transaction producer_epoch": lambda store, bad: store.topic("t").end_transaction(
        0, producer_id=1, producer_epoch=bad, commit=True
    ),
    "end_transaction coordinator_epoch": lambda store, bad: store.topic("t").end_transaction(
        0, producer_id=1, producer_epoch=0, coordinator_epoch=bad, commit=True
    ),
    "roll partition": lambda store, bad: store.topic("t").roll(bad),
    "flush partition": lambda store, bad: store.topic("t").flush(bad),
    "delete_records partition": lambda store, bad: store.topic("t").delete_records(bad, 0),
    "delete_records before_offset": lambda store, bad: store.topic("t").delete_records(0, bad),
    "read partition": lambda store, bad: store.topic("t").read(bad),
    "read start": lambda store, bad: store.topic("t").read(0, bad),
    "read end": lambda store, bad: store.topic("t").read(0, 0, bad),
    "at offset": lambda store, bad: store.topic("t").at(bad),
    "at partition": lambda store, bad: store.topic("t").at(0, bad),
    "scan partition": lambda store, bad: store.topic("t").scan([bad]),
    "scan start": lambda store, bad: store.topic("t").scan([0], start=bad),
    "scan end": lambda store, bad: store.topic("t").scan([0], end={0: bad}),
    "scan since": lambda store, bad: store.topic("t").scan(since=bad),
    "scan until": lambda store, bad: store.topic("t").scan(until=bad),
    "scan threads": lambda store, bad: store.topic("t").scan(threads=bad),
    "get partition": lambda store, bad: store.topic("t").get(b"k", bad),
    "history partition": lambda store, bad: list(store.topic("t").history(b"k", bad)),
    "offset_for_time partition": lambda store, bad: store.topic("t").offset_for_time(bad),
    "offset_for_time timestamp": lambda store, bad: store.topic("t").offset_for_time(0, bad),
    "fetch partition": lambda store, bad: store.topic("t").fetch(bad, 0, 1),
    "fetch offset": lambda store, bad: store.topic("t").fetch(0, bad, 1),
    "fetch max_bytes": lambda store, bad: store.topic("t").fetch(0, 0, bad),
    "list_offset which": lambda store, bad: store.topic("t").list_offset(0, bad),
    "end_of_epoch leader_epoch": lambda store, bad: store.topic("t").end_of_epoch(0, bad),
    "durable end": lambda store, bad: store.topic("t").durable(0, bad),
    "when offset": lambda store, bad: store.topic("t").when(0, "synced", bad),
    "log_start_offset partition": lambda store, bad: store.topic("t").log_start_offset(bad),
    "log_end_offset partition": lambda store, bad: store.topic("t").log_end_offset(bad),
    "high_watermark partition": lambda store, bad: store.topic("t").high_watermark(bad),
    "segments partition": lambda store, bad: store.topic("t").segments(bad),
    "size_bytes partition": lambda store, bad: store.topic("t").size_bytes(bad),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        opened.create_topic("one")
        opened.create_topic("t", partitions=2).append(b"x", partition=0)
        yield opened


@pytest.mark.parametrize("what", CALLS)
def test_what_is_no_whole_number_is_refused(store: Store, what: str) -> None:
    name = what.split()[1].removesuffix("s")
    for bad in NO_NUMBERS:
        if isinstance(bad, dict) and what in ("scan start", "read start", "read end"):
            continue  # a mapping says where to start in each partition
        if isinstance(bad, str) and what in ("scan since", "scan until", "offset_for_time timestamp"):
            continue  # a time may be text
        if isinstance(bad, list) and what == "read partition":
            continue  # several partitions
        with pytest.raises(errors.InvalidArgumentError, match=f"{name}s? must be a whole number.*, not "):
            CALLS[what](store, bad)
    assert store.topics() == ["one", "t"]
    assert store.topic("t").partitions == 2
    assert [record.value for record in store.topic("t").read()] == [b"x"]
    assert store.topic("one").log_end_offset() == 0


@pytest.mark.parametrize("count", [0, -1, 100_001, 2**31, 2**63, 2**70])
def test_a_topic_has_a_sensible_number_of_partitions(store: Store, count: int) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="partitions must be a number from 1 to 100000"):
        store.create_topic("new", count)
    with pytest.raises(errors.InvalidArgumentError, match="total must be a number from 1 to 100000"):
        store.add_partitions("t", count)
    with pytest.raises(errors.InvalidArgumentError, match="t has 2 partitions; 2 is not more"):
        store.add_partitions("t", 2)
    assert store.topics() == ["one", "t"]


def test_the_store_opens_after_a_refused_number(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store, pytest.raises(errors.InvalidArgumentError):
        store.create_topic("t", partitions=True)
    with stratalog.open(tmp_path / "data") as store:
        assert store.topics() == []
        store.create_topic("t", partitions=1).append(b"x")
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert [record.value for record in store.topic("t").read()] == [b"x"]


NO_TEXT: tuple[object, ...] = (5, 1.5, True, b"t", [], {}, object())
NO_NAME: tuple[object, ...] = (*NO_TEXT, None)
NO_BYTES: tuple[object, ...] = ("text", 5, 1.5, True, [b"k"], {}, object())
NO_VIEWS = (
    memoryview(bytes(200))[::2],
    memoryview(array("i", bytes(200))),
    memoryview(array("b", bytes(99))),
)
NO_LIST: tuple[object, ...] = (5, 1.5, True, object())
NO_MAPPING: tuple[object, ...] = (5, 1.5, "text", ["a"], object())
NO_RECORDS: tuple[object, ...] = (5, [{}], [5], ["text"], [()], [None], [("text",)], [(b"v", 5)], object())
NO_RECORDS += ([(b"v", b"k", 5)], [(b"v", b"k", [5])], [(b"v", b"k", (), "now")])
NO_HEADERS: tuple[object, ...] = (5, [5], [("h",)], [(5, b"v")], [("h", "v")], object())
NO_TIME: tuple[object, ...] = ("1", b"1", [1], {}, object())

TYPES: dict[str, tuple[tuple[object, ...], Call]] = {
    "topic name": (NO_NAME, lambda store, bad: store.topic(bad)),
    "create_topic name": (NO_NAME, lambda store, bad: store.create_topic(bad)),
    "create_topic config": (NO_MAPPING, lambda store, bad: store.create_topic("new", 1, bad)),
    "add_partitions name": (NO_NAME, lambda store, bad: store.add_partitions(bad, 3)),
    "alter_topic name": (NO_NAME, lambda store, bad: store.alter_topic(bad, {})),
    "alter_topic changes": (NO_MAPPING, lambda store, bad: store.alter_topic("t", bad)),
    "alter_topic append": (NO_MAPPING, lambda store, bad: store.alter_topic("t", append=bad)),
    "alter_topic subtract": (NO_MAPPING, lambda store, bad: store.alter_topic("t", subtract=bad)),
    "delete_topic name": (NO_NAME, lambda store, bad: store.delete_topic(bad)),
    "describe_topic name": (NO_NAME, lambda store, bad: store.describe_topic(bad)),
    "move_partition name": (NO_NAME, lambda store, bad: store.move_partition(bad, 0, "/elsewhere")),
    "move_partition log directory": (NO_TEXT, lambda store, bad: store.move_partition("t", 0, bad)),
    "repair name": (NO_NAME, lambda store, bad: store.repair(bad, 0, action="rebuild-indexes")),
    "repair name, tried": (
        NO_NAME,
        lambda store, bad: store.repair(bad, 0, action="rebuild-indexes", dry_run=True),
    ),
    "repair action": (NO_TEXT, lambda store, bad: store.repair("t", 0, action=bad)),
    "repair action, tried": (NO_TEXT, lambda store, bad: store.repair("t", 0, action=bad, dry_run=True)),
    "retain topic": (NO_TEXT, lambda store, bad: store.retain(bad)),
    "compact topic": (NO_TEXT, lambda store, bad: store.compact(bad, 0)),
    "archive topic": (NO_TEXT, lambda store, bad: store.archive(bad)),
    "janitor topic": (NO_TEXT, lambda store, bad: store.janitor(bad)),
    "take_over_archive topic": (NO_NAME, lambda store, bad: store.take_over_archive(bad)),
    "lend_compaction topic": (NO_NAME, lambda store, bad: store.lend_compaction(bad, 0)),
    "extend_loans tokens": ((*NO_LIST, [5], [[]]), lambda store, bad: store.extend_loans(bad)),
    "take_in_compaction token": (NO_TEXT, lambda store, bad: store.take_in_compaction(bad, None)),
    "take_in_compaction cleaned": (NO_LIST, lambda store, bad: store.take_in_compaction("x", bad)),
    "erase topic": (NO_NAME, lambda store, bad: store.erase(bad, [b"k"])),
    "erase keys": ((*NO_LIST, ["k"], [[]], b"k", []), lambda store, bad: store.erase("t", bad)),
    "erase reason": (NO_TEXT, lambda store, bad: store.erase("t", [b"k"], reason=bad)),
    "commit_staged query": (NO_TEXT, lambda store, bad: store.commit_staged(bad, 0, [])),
    "commit_staged batch": (NO_NUMBERS, lambda store, bad: store.commit_staged("q", bad, [])),
    "commit_staged files": ((*NO_LIST, [5]), lambda store, bad: store.commit_staged("q", 0, bad)),
    "allocate_producer_ids count": (NO_NUMBERS, lambda store, bad: store.allocate_producer_ids(bad)),
    "append value": (NO_BYTES, lambda store, bad: store.topic("t").append(bad)),
    "append value, keyed": (NO_BYTES, lambda store, bad: store.topic("t").append(bad, b"k")),
    "append value of one": (NO_BYTES, lambda store, bad: store.topic("one").append(bad)),
    "append key": (NO_BYTES, lambda store, bad: store.topic("t").append(b"v", bad)),
    "append key, placed": (NO_BYTES, lambda store, bad: store.topic("t").append(b"v", bad, partition=0)),
    "append key of one": (NO_BYTES, lambda store, bad: store.topic("one").append(b"v", bad)),
    "append header": (NO_HEADERS, lambda store, bad: store.topic("t").append(b"v", headers=bad)),
    "append_many record": (NO_RECORDS, lambda store, bad: store.topic("t").append_many(bad)),
    "append_many record of one": (NO_RECORDS, lambda store, bad: store.topic("one").append_many(bad)),
    "append_many record, placed": (
        NO_RECORDS,
        lambda store, bad: store.topic("t").append_many(bad, partition=0),
    ),
    "append_batches data": (
        (*NO_BYTES, *NO_VIEWS),
        lambda store, bad: store.topic("t").append_batches(0, bad),
    ),
    "read timeout_s": (NO_TIME, lambda store, bad: store.topic("t").read(0, follow=True, timeout_s=bad)),
    "read isolation": (NO_TEXT, lambda store, bad: store.topic("t").read(0, isolation=bad)),
    "scan partitions": ((*NO_LIST, "text"), lambda store, bad: store.topic("t").scan(bad)),
    "scan columns": ((*NO_LIST, [5], [[]]), lambda store, bad: store.topic("t").scan(columns=bad)),
    "get key": (NO_BYTES, lambda store, bad: store.topic("t").get(bad)),
    "history key": (NO_BYTES, lambda store, bad: list(store.topic("t").history(bad))),
    "when end": (NO_TEXT, lambda store, bad: store.topic("t").when(0, bad, 0)),
}


@pytest.mark.parametrize("what", TYPES)
def test_a_value_of_a_wrong_type_is_refused(store: Store, what: str) -> None:
    bad_values, call = TYPES[what]
    name = what.split(",")[0].removesuffix(" of one").split(" ", 1)[1]
    name = {"columns": "column", "partitions": "partitions?", "name": "(topic|name)"}.get(name, name)
    for bad in bad_values:
        with pytest.raises(errors.InvalidArgumentError, match=name):
            call(store, bad)
    assert store.topics() == ["one", "t"]
    assert store.topic("t").partitions == 2
    assert [record.value for record in store.topic("t").read()] == [b"x"]
    assert store.topic("t").log_end_offset(1) == store.topic("one").log_end_offset() == 0


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"a", "record 1: it must be a Record, not bytes"),
        (None, "record 1: it must be a Record, not NoneType"),
        ({"value": b"v"}, "record 1: it must be a Record, not dict"),
        ((), "record 1: an empty tuple has no value"),
        (Record(b"v", "k"), "record 1: key must be bytes or None, not str"),  # type: ignore[arg-type]
        (Record("v", b"k"), "record 1: value must be bytes or None, not str"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_a_record_is_named(
    store: Store, partitions: int, policy: str, bad: Any, said: str
) -> None:
    topic = store.create_topic("new", partitions, {"cleanup.policy": policy})
    good = Record(b"v", b"k")
    with pytest.raises(errors.InvalidRecordError, match=said):
        topic.append_many([good, bad], partition=0)
    # The record's number is that of its place among those of its partition.
    with pytest.raises(errors.InvalidRecordError, match=said.replace("1", "[01]")):
        topic.append_many([good, bad])


def test_text_and_objects_are_shown_the_way(store: Store) -> None:
    for topic in (store.create_topic("few"), store.create_topic("several", 2)):
        calls: list[tuple[str, Callable[..., object], tuple[Any, ...]]] = [
            ("value", topic.append, ("text",)),
            ("value", topic.append, ({"a": 1}, b"k")),
            ("key", topic.append, (b"v", "text")),
            ("value", topic.append_many, ([Record("text")],)),  # type: ignore[arg-type]
            ("key", topic.append_many, ([Record(b"v", 7)],)),  # type: ignore[arg-type]
            ("key", topic.get, ("text",)),
        ]
        for name, call, given in calls:
            with pytest.raises(errors.InvalidArgumentError, match=rf"using\({name}_serializer='str'\)"):
                call(*given)
        with pytest.raises(errors.InvalidRecordError) as caught:
            topic.append(b"v", b"k", [("name", "text")])  # type: ignore[list-item]
        assert "serializer" not in str(caught.value), "headers have none"


def test_records_and_frames_in_a_wrong_place_are_shown_the_way(store: Store) -> None:
    topic, record = store["one"], Record(b"v", b"k")
    with pytest.raises(errors.InvalidRecordError, match=r"not Record; append a Record with append_many\("):
        topic.append(record)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgumentError, match=r"records must be a list of records, not Record\("):
        topic.append_many(record)  # type: ignore[arg-type]
    for frame in (store["t"].scan(), store["t"].to_pandas(), store["t"].to_polars()):
        with pytest.raises(errors.InvalidArgumentError, match=r"pyarrow\.table\(\.\.\.\) makes an"):
            topic.append_many(frame)
    with pytest.raises(errors.InvalidArgumentError, match="milliseconds or a datetime, not '2026-01-01'"):
        topic.append(b"v", timestamp="2026-01-01")  # type: ignore[arg-type]
    assert topic.log_end_offset() == 0
    topic.append_many(pa.table(store["t"].scan()))
    assert topic.log_end_offset() == 1


NO_TABLES = {
    "'key' must be binary, not int64": pa.table({"value": [b"v"], "key": [1]}),
    "'value' must be binary, not int64": pa.table({"value": [1], "key": [b"k"]}),
    "'partition' must be int32, not string": pa.table({"value": [b"v"], "partition": ["x"]}),
    "'partition' must be int32, not double": pa.table({"value": [b"v"], "partition": [0.5]}),
    "'partition': int64 cannot be taken": pa.table({"value": [b"v"], "partition": [2**40]}),
    "a column 'key' twice": pa.table([[b"v"], [b"k"], [b"k"]], names=["value", "key", "key"]),
    "a column 'partition' twice": pa.table([[b"v"], [0], [0]], names=["value", "partition", "partition"]),
    "needs a column 'value'": pa.table({"key": [b"k"]}),
    "no column 'values'": pa.table({"value": [b"v"], "values": [b"v"]}),
}


@pytest.mark.parametrize("said", NO_TABLES)
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_table_that_is_not_one_of_records_is_refused(
    store: Store, said: str, policy: str, partitions: int
) -> None:
    topic, table = store.create_topic("new", partitions, {"cleanup.policy": policy}), NO_TABLES[said]
    if partitions == 1 and said.startswith("'partition'"):
        return  # it does not choose one there
    if policy == "compact" and "key" not in table.schema.names and "key" not in said:
        table = table.append_column("key", pa.array([b"k"]))
    for each in (table, table.to_batches()[0]):
        with pytest.raises(errors.InvalidRecordError, match=said):
            topic.append_many(each)
        if not said.startswith("'partition'"):  # it is given
            with pytest.raises(errors.InvalidRecordError, match=said):
                topic.append_many(each, partition=0, producer="p", sequence=0)
    assert topic.size_bytes() == 0


@pytest.mark.parametrize("numbers", [pa.array([1], pa.int8()), pa.array([1]).dictionary_encode()])
def test_any_whole_numbers_choose_partitions(store: Store, numbers: pa.Array) -> None:
    (placed,) = store.topic("t").append_many(pa.table({"value": [b"v"], "partition": numbers}))
    assert placed.partition == 1


@pytest.mark.parametrize("bad", [*NO_MAPPING, [5], "x"])
def test_settings_that_are_no_mapping_are_refused(tmp_path: Path, bad: Any) -> None:
    for act in (stratalog.open, stratalog.connect):
        with pytest.raises(errors.InvalidArgumentError, match="config must be a mapping, not"):
            act(tmp_path / "data", bad)
    assert not (tmp_path / "data").exists()


def test_a_tuple_without_a_key_is_a_record_without_one(store: Store) -> None:
    bare: Any = [(b"v",)]
    assert sum(placed.count for placed in store.topic("t").append_many(bare)) == 1
    compacted = store.create_topic("new", 1, {"cleanup.policy": "compact"})
    with pytest.raises(errors.InvalidRecordError, match="every record needs a key"):
        compacted.append_many(bare)


def test_a_client_names_what_is_not_a_record(tmp_path: Path) -> None:
    bad: Any = [Record(b"v"), b"a"]
    with stratalog.connect(tmp_path / "data", create=True) as client:
        client.create_topic("t")
        with pytest.raises(errors.InvalidRecordError, match="record 1: it must be a Record, not bytes"):
            client.append("t", bad)
        with pytest.raises(errors.RecordTooLargeError, match=r"record 0: .* max\.message\.bytes"):
            client.append("t", [Record(bytes(33 << 20))])
        none: Any
        for none in (None, 5, "text", {}):
            with pytest.raises(errors.InvalidArgumentError, match="records must be a list of records, not"):
                client.append("t", none)
        (placed,) = client.append("t", iter([Record(b"v")]))
        assert placed.count == 1


def test_verify_wants_an_open_store() -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"store must be an open Store, .*, not 'data'"):
        stratalog.verify("data")  # type: ignore[arg-type]
