"""The parts of an export by themselves: what is covered, what JSON becomes, which file a record goes to."""

from __future__ import annotations

import json
import tempfile
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.spark.pipelines import export_files
from stratalog.spark.pipelines.export_coverage import ALWAYS, Extent, end_of, joined, missing
from stratalog.spark.pipelines.export_files import NO_DATE, DateFiles, by_day, date_text
from stratalog.spark.pipelines.export_json import Payload, decode
from stratalog.spark.pipelines.export_log import DataFile, Held
from stratalog.spark.pipelines.export_merge import merges
from stratalog.spark.pipelines.export_tasks import Staging, tasks_of
from stratalog.spark.planning import LogRange
from stratalog.spark.schema import arrow_schema

bounds = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted)
extents = st.builds(
    lambda log, offsets, times: Extent("t", log, 0, *offsets, *(ALWAYS if times is None else times)),
    st.sampled_from(["old", "new"]),
    bounds,
    st.none() | bounds,
)


def area(found: list[Extent]) -> set[tuple[str, int, int]]:
    cells = [
        (each.topic_id, offset, time)
        for each in found
        for offset, time in product(range(each.start, each.end), range(-1, 10))
        if each.since_ms <= time < each.until_ms
    ]
    assert len(cells) == len(set(cells)), "something is there twice"
    return set(cells)


@given(extents, st.lists(extents, max_size=6))
def test_what_is_missing_is_what_nothing_covers(wanted: Extent, others: list[Extent]) -> None:
    covered: list[Extent] = []
    for each in others:  # as runs do: only what is missing is added
        covered = joined([*covered, *missing(each, covered)])
    before = area(covered)
    left = missing(wanted, covered)
    assert area(left) == area([wanted]) - before
    after = joined([*covered, *left])
    assert area(after) == before | area([wanted])
    assert missing(wanted, after) == []
    assert [Extent.from_json(json.loads(json.dumps(each.to_json()))) for each in after] == after


def test_a_log_read_in_order_is_one_extent() -> None:
    found = joined(Extent("t", "id", 0, at, at + 10) for at in (20, 0, 10))
    assert found == [Extent("t", "id", 0, 0, 30)]
    assert end_of(found, ("t", "id", 0)) == 30
    assert end_of(found, ("t", "other", 0)) is None
    for bad in (None, [], ["t", "id", 0, 1, 2, "x", None], ["t", "id", "0", 1, 2, None, None]):
        with pytest.raises(ValueError, match="extent|times"):
            Extent.from_json(bad)


PAYLOAD = Payload(
    pa.schema(
        [
            ("id", pa.int32()),
            ("price", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("to", pa.struct([("name", pa.string()), ("since", pa.date32())])),
        ]
    ),
    ("id", "price", "day", "value_at", "tags", "to"),
)
GOOD = [
    b'{"id": 1, "price": 2.50, "day": "2026-01-31", "at": "2026-01-31T12:00:00.5Z", "tags": ["a", null]}',
    b'{"to": {"name": "x\\u00e9", "since": "2026-01-01", "more": {}}, "unknown": [1, {}]}',
    b'  {\n"id":\n-7\n}\t',
    b"{}",
    b"null",
    None,
]
BAD = [
    b"",
    b"nonsense",
    b'{"id": 1',
    b"[1]",
    b"7",
    b'{"id": "7"}',
    b'{"id": 7.5}',
    b'{"id": 3000000000}',
    b'{"day": "2026-02-31"}',
    b'{"at": 5}',
    b'{"tags": "a"}',
    b'{"to": {"since": "never"}}',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}}\n{"i": 1, "v": {"id": 2}',
    b'{"id": 1, "id": 2}',
    b"\xff\xfe",
    b'{"to": {"name": "\xff"}}',
    b'{"to": {"name": "open',
]


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    numbers = pa.array(range(len(values)), pa.int64())
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "offset": numbers})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(GOOD + BAD), max_size=40))
def test_a_record_is_decoded_by_itself(values: list[bytes | None]) -> None:
    good, bad, reasons = decode(batch_of(values), PAYLOAD)
    assert good.schema.names == ["value", "offset", *PAYLOAD.names]
    assert [row["offset"] for row in good.to_pylist()] == [n for n, v in enumerate(values) if v in GOOD]
    assert [row["offset"] for row in bad.to_pylist()] == [n for n, v in enumerate(values) if v in BAD]
    assert len(reasons) == bad.num_rows
    assert all(each.startswith(("not JSON", "does not fit the schema")) for each in reasons)
    for row in good.to_pylist():
        alone = decode(batch_of([row["value"]]), PAYLOAD)[0].to_pylist()[0]
        assert {**row, "offset": 0} == alone


def test_what_json_becomes() -> None:
    first = decode(batch_of(GOOD[:2]), PAYLOAD)[0].to_pylist()
    assert (first[0]["id"], str(first[0]["price"]), str(first[0]["day"])) == (1, "2.50", "2026-01-31")
    assert (first[0]["value_at"].isoformat(), first[0]["tags"]) == (
        "2026-01-31T12:00:00.500000+00:00",
        ["a", None],
    )
    assert first[1]["to"]["name"] == "xé"
    assert decode(batch_of([b'{"id": "7"}']), PAYLOAD)[2] == [
        "does not fit the schema: JSON parse error: Column(/id) changed from number to string"
    ]


def records(times_ms: list[int], partition: int = 0) -> pa.RecordBatch:
    count = len(times_ms)
    values: dict[str, Any] = {
        "key": [None] * count,
        "value": [b"%d" % each for each in times_ms],
        "partition": [partition] * count,
        "offset": list(range(count)),
        "timestamp": [each * 1000 for each in times_ms],
        "timestampType": [0] * count,
        "headers": [[]] * count,
    }
    return pa.RecordBatch.from_pydict(values, schema=arrow_schema(tuple(values)))


DAY = 86_400_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3).flatmap(lambda d: st.integers(d * DAY, (d + 1) * DAY - 1)), min_size=1))
def test_days_keep_their_records_in_order(times_ms: list[int]) -> None:
    found: dict[int, list[int]] = {}
    for day, part in by_day(records(times_ms)):
        found.setdefault(day, []).extend(part.column("offset").to_pylist())
    wanted: dict[int, list[int]] = {}
    for offset, each in enumerate(times_ms):
        wanted.setdefault(each // DAY, []).append(offset)
    assert found == wanted


def test_more_days_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_files, "OPEN_FILES", 3)
    monkeypatch.setattr(export_files, "ROW_GROUP_BYTES", 2000)
    monkeypatch.setattr(export_files, "BUFFERED_BYTES", 4000)
    times_ms = [(n * 7 % 11) * DAY + n for n in range(900)] + [300_000_000_000_000]
    with tempfile.TemporaryDirectory() as directory:
        files = DateFiles(Staging(directory, "s"), "00000-0", "t", compression="zstd")
        for at in range(0, len(times_ms), 50):
            files.add(records(times_ms[at : at + 50]))
        made = files.finish()
        rows = []
        for file in made:
            table = pq.read_table(f"{directory}/{file.staged}")
            assert table.num_rows == file.records == sum(each.records for each in file.held)
            rows += [(each, file.date) for each in table["timestamp"].cast(pa.int64()).to_pylist()]
    assert sorted(rows) == sorted((each * 1000, date_text(each // DAY)) for each in times_ms)
    assert len(made) > 12
    assert date_text(300_000_000_000_000 // DAY) == NO_DATE


def test_tasks_and_merges_are_worth_their_while() -> None:
    small = [LogRange("a", partition, 0, 10, size_bytes=1 << 20) for partition in range(40)]
    large = [LogRange("b", 0, at, at + 10, size_bytes=128 << 20) for at in (0, 10)]
    tasks = tasks_of([*small, *large], 4)
    assert [len(task.ranges) for task in tasks] == [1, 1, 24, 16]
    assert sum(len(task.ranges) for task in tasks_of(small, 4)) == 40
    assert max(len(task.ranges) for task in tasks_of(small, 4)) == 16

    def file(name: str, size_bytes: int, columns: str = "") -> DataFile:
        return DataFile(name, "t", "2026-01-01", 1, size_bytes, (Held(0, len(name), 9, 1),), columns)

    files = [file(f"f{number}", 1000) for number in range(7)] + [file("big", 64 << 20), file("other", 1, "a")]
    assert merges(files, asked=False) == []
    [merge] = merges(files, asked=True)
    assert {each.path for each in merge.files} == {f"f{number}" for number in range(7)}
    assert len(merges([*files, file("f8", 1000)], asked=False)) == 1
