"""Records into batches: sizes to the byte, every type refused by name, and Arrow in every shape."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog import kernel
from stratalog.errors import InvalidRecordError, RecordTooLargeError, UnsupportedCodecError
from stratalog.format import batch
from stratalog.model import Record
from tests.kernel.both import either

__all__ = ["either"]

pytestmark = pytest.mark.usefixtures("either")

ARGS: dict[str, Any] = {"base_offset": 7, "leader_epoch": 0, "now_ms": 500}

blobs = st.none() | st.binary(max_size=30)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)
records_of = st.lists(
    st.builds(Record, blobs, blobs, headers, st.none() | st.integers(-1, 10**14)), min_size=1, max_size=30
)


def facts(encoded: batch.Encoded) -> tuple[Any, ...]:
    return encoded[1:]


def decoded(data: bytes | bytearray) -> list[Record]:
    return batch.decode_records(data, batch.scan(data), topic="t", partition=0)


@given(records_of, st.sampled_from(range(5)), st.booleans())
def test_tuples_and_arrow_make_the_same_batch(records: list[Record], codec: int, append_time: bool) -> None:
    args: dict[str, Any] = {**ARGS, "max_bytes": 1 << 20, "codec": codec, "timestamp_type": int(append_time)}
    encoded, count = batch.encode_records(records, options=batch.BatchOptions(**args))
    assert count == len(records)
    assert encoded.crc == kernel.crc32c(encoded.data)
    header = batch.scan(encoded.data, expect=7).header(0)
    times = [500 if append_time or r.timestamp is None else r.timestamp for r in records]
    assert (encoded.min_timestamp, encoded.max_timestamp) == (min(times), max(times))
    assert (header.max_timestamp, header.codec, header.timestamp_type) == (max(times), codec, append_time)
    assert encoded.offset_of_max_timestamp == encoded.last_offset == header.last_offset == 6 + count
    found = decoded(encoded.data)
    assert [(r.value, r.key, r.headers) for r in found] == [(r.value, r.key, r.headers) for r in records]
    table = pa.table(
        {
            "value": pa.array([r.value for r in records], pa.binary()),
            "key": pa.array([r.key for r in records], pa.binary()),
            "timestamp": pa.array([r.timestamp for r in records], pa.timestamp("ms", tz="UTC")),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in r.headers] for r in records],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    same, _ = batch.encode_arrow(table, options=batch.BatchOptions(**args))
    assert same.data == encoded.data
    assert facts(same) == facts(encoded)
    half = len(records) // 2
    if half:
        again, end = batch.encode_arrow(table.slice(half), options=batch.BatchOptions(**args))
        assert end == len(records) - half
        assert [r.value for r in decoded(again.data)] == [r.value for r in records[half:]]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=30), st.integers(62, 300))
def test_max_bytes(values: list[bytes], max_bytes: int) -> None:
    records = [Record(value) for value in values]
    table = pa.table({"value": pa.array(values, pa.binary())})
    row = 0
    seen = []
    while row < len(records):
        whole = batch.encode_one(values[row], None, (), 500, 7, 0, 0)
        if len(whole) > max_bytes:
            with pytest.raises(RecordTooLargeError, match=f"record {row}: {len(whole)} bytes"):
                batch.encode_records(records, row, options=batch.BatchOptions(**ARGS, max_bytes=max_bytes))
            with pytest.raises(RecordTooLargeError, match=f"record {row}: {len(whole)} bytes"):
                batch.encode_arrow(table, row, options=batch.BatchOptions(**ARGS, max_bytes=max_bytes))
            row += 1
            continue
        encoded, end = batch.encode_records(
            records, row, options=batch.BatchOptions(**ARGS, max_bytes=max_bytes)
        )
        assert len(encoded.data) <= max_bytes
        assert end > row
        same, same_end = batch.encode_arrow(
            table, row, options=batch.BatchOptions(**ARGS, max_bytes=max_bytes)
        )
        assert (same.data, same_end) == (encoded.data, end)
        if end < len(records):
            more, _ = batch.encode_records(
                records[row : end + 1], options=batch.BatchOptions(**ARGS, max_bytes=1 << 20)
            )
            assert len(more.data) > max_bytes
        seen += [record.value for record in decoded(encoded.data)]
        row = end
    assert all(value in values for value in seen)


@given(blobs, blobs, headers, st.integers(-1, 2**63 - 1), st.booleans())
def test_encode_one(value: Any, key: Any, pairs: Any, timestamp: int, append_time: bool) -> None:
    data = batch.encode_one(value, key, pairs, timestamp, 7, 2, int(append_time))
    args: dict[str, Any] = {
        **ARGS,
        "leader_epoch": 2,
        "timestamp_type": int(append_time),
        "now_ms": timestamp,
    }
    encoded, _ = batch.encode_records(
        [Record(value, key, pairs, timestamp)], options=batch.BatchOptions(max_bytes=1 << 20, **args)
    )
    assert data == encoded.data


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Record("text"), "value"),  # type: ignore[arg-type]
        (Record(b"", "text"), "key"),  # type: ignore[arg-type]
        (Record(b"", bytearray(b"")), "key"),  # type: ignore[arg-type]
        (Record(b"", None, 7), "headers"),  # type: ignore[arg-type]
        (Record(b"", None, {"a": b""}), "headers"),  # type: ignore[arg-type]
        (Record(b"", None, "ab"), "headers"),  # type: ignore[arg-type]
        (Record(b"", None, ["ab"]), "header"),  # type: ignore[list-item]
        (Record(b"", None, [("a", b"", b"")]), "header"),  # type: ignore[list-item]
        (Record(b"", None, [(b"a", b"")]), "header key"),  # type: ignore[list-item]
        (Record(b"", None, [(None, b"")]), "header key"),  # type: ignore[list-item]
        (Record(b"", None, [("a", "b")]), "header value"),  # type: ignore[list-item]
        (Record(b"", None, [("\ud800", b"")]), "header key"),
        (Record(b"", None, (), 1.5), "timestamp"),  # type: ignore[arg-type]
        (Record(b"", None, (), -2), "timestamp"),
        (Record(b"", None, (), 2**63), "timestamp"),
        (7, "Record"),
        ((), "value"),
    ],
)
def test_wrong_types_are_named(record: Any, field: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"record 1: .*{field}"):
        batch.encode_records([Record(b"fine"), record], options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))
    if isinstance(record, Record) and isinstance(record.timestamp, (int, type(None))):
        stamp = record.timestamp or 0
        if stamp < 2**63:
            with pytest.raises(InvalidRecordError, match=field):
                batch.encode_one(record.value, record.key, record.headers, stamp, 0, 0, 0)


def test_short_tuples_and_iterables() -> None:
    options = batch.BatchOptions(**ARGS, max_bytes=1 << 20)
    encoded, count = batch.encode_records(((b"a",), (b"b", b"k")), options=options)  # type: ignore[arg-type]
    assert count == 2
    assert [(r.value, r.key, r.timestamp) for r in decoded(encoded.data)] == [
        (b"a", None, 500),
        (b"b", b"k", 500),
    ]


def test_unknown_codec() -> None:
    with pytest.raises(UnsupportedCodecError):
        batch.encode_records([Record(b"")], options=batch.BatchOptions(**ARGS, max_bytes=999, codec=9))


def test_markers_are_commit_or_abort() -> None:
    with pytest.raises(InvalidRecordError):
        batch.encode_control(
            "maybe",  # type: ignore[arg-type]
            producer_id=1,
            producer_epoch=0,
            base_offset=0,
            leader_epoch=0,
            timestamp=0,
        )


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"ab", None, b"cd"], pa.large_binary()),
        pa.array(["ab", None, "cd"], pa.string()),
        pa.array(["ab", None, "cd"], pa.large_string()),
        pa.array([b"ab", None, b"cd"], pa.binary(2)),
        pa.array(["ab", None, "cd"], pa.string()).dictionary_encode(),
        pa.array([b"ab", None, b"cd"], pa.binary_view()),
        pa.chunked_array([pa.array([b"ab"]), pa.array([None, b"cd"], pa.binary())]),
        pa.array([b"xx", b"ab", None, b"cd"], pa.binary())[1:],
    ],
    ids=lambda column: str(column.type),
)
def test_kind_columns(column: Any) -> None:
    table = pa.table({"value": column, "offset": pa.array([1, 2, 3]), "key": pa.nulls(3)})
    encoded, end = batch.encode_arrow(table, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))
    assert end == 3
    assert [(r.value, r.key) for r in decoded(encoded.data)] == [(b"ab", None), (None, None), (b"cd", None)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit(unit: str) -> None:
    stamps = pa.array([5000, None], pa.timestamp("ms")).cast(pa.timestamp(unit))
    table = pa.table({"value": pa.nulls(2, pa.binary()), "timestamp": stamps})
    encoded, _ = batch.encode_arrow(table, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))
    assert [r.timestamp for r in decoded(encoded.data)] == [5000, 500]


def test_headers_as_map_and_slices() -> None:
    pairs = pa.array([[("x", b"0")], [("a", b"1"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary()))
    table = pa.table({"value": pa.nulls(4, pa.binary()), "headers": pairs}).slice(1)
    encoded, _ = batch.encode_arrow(table, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))
    assert [r.headers for r in decoded(encoded.data)] == [(("a", b"1"), ("b", None)), (), ()]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    child = pa.array([{"key": c, "value": c.encode()} for c in "abcdef"], kind.value_type)[2:]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), child)
    encoded, _ = batch.encode_arrow(
        pa.table({"value": pa.nulls(2, pa.binary()), "headers": lists}),
        options=batch.BatchOptions(**ARGS, max_bytes=1 << 20),
    )
    assert [r.headers for r in decoded(encoded.data)] == [(("c", b"c"),), (("d", b"d"), ("e", b"e"))]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"key": [b"k"]}), "needs a column 'value'"),
        (pa.table({"value": [b"k"], "colour": [1]}), "colour"),
        (pa.table({"value": [1]}), "'value' must be binary"),
        (pa.table({"value": [b""], "timestamp": ["now"]}), "'timestamp' must be"),
        (pa.table({"value": [b""], "timestamp": [-5]}), "negative"),
        (pa.table({"value": [b""], "headers": [1]}), "'headers' must be"),
        (pa.table({"value": [b""], "headers": [[1]]}), "'headers'"),
        (pa.table({"value": [b""], "headers": [[{"key": None, "value": b""}]]}), "no key"),
    ],
)
def test_tables_that_are_no_records(table: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        batch.encode_arrow(table, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))


def test_arrow_buffers_that_lie() -> None:
    ends = pa.py_buffer(b"".join(n.to_bytes(4, "little", signed=True) for n in (0, 90, 2)))
    wrong = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"ab")])
    with pytest.raises(InvalidRecordError, match="record 0: its value"):
        batch.encode_arrow(pa.table({"value": wrong}), options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))


def test_a_record_far_above_the_average() -> None:
    values = [b""] * 5000 + [bytes(300_000)] + [b""] * 10
    table = pa.table({"value": pa.array(values, pa.binary())})
    row = 0
    sizes = []
    while row < len(values):
        encoded, row = batch.encode_arrow(table, row, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))
        sizes += [len(r.value or b"") for r in decoded(encoded.data)]
    assert sizes == [len(value) for value in values]


def test_columns_and_schema() -> None:
    assert pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    ).equals(batch.schema_for(batch.COLUMNS))
    records = [Record(b"v%d" % i, None, (("h", b"%d" % i),) * (i % 3), i) for i in range(500)]
    data = batch.encode_records(records, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))[0].data
    scan = batch.scan(data)
    whole = batch.decode_arrow(data, scan, topic="t", partition=3)[0]
    assert whole.schema.equals(batch.schema_for(batch.COLUMNS))
    assert batch.encode_arrow(whole, options=batch.BatchOptions(**ARGS, max_bytes=1 << 20))[0].data == data
    for columns in (
        ("offset",),
        ("headers", "key"),
        ("topic", "value"),
        ("timestampType", "timestamp", "partition"),
    ):
        part = batch.decode_arrow(data, scan, topic="t", partition=3, columns=columns)[0]
        part.validate(full=True)
        assert part.schema.equals(batch.schema_for(columns))
        assert part.equals(whole.select(columns))


def test_groups_of_eight_mebibytes() -> None:
    value = bytes(1 << 20)
    log = b"".join(batch.encode_one(value, None, (), 1, i, 0, 0) for i in range(20))
    log += batch.encode_one(bytes(20 << 20), None, (), 1, 20, 0, 0) + batch.encode_one(
        b"", None, (), 1, 21, 0, 0
    )
    made = batch.decode_arrow(log, batch.scan(log), topic="t", partition=0)
    assert [part.num_rows for part in made] == [7, 7, 6, 1, 1]
    assert sum(part.nbytes for part in made) < 42 << 20
