"""What records look like going in and coming out of the command line."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.commands.append import (
    LineRules,
    chunks_of_lines,
    parse_header,
    record_from_file,
    records_from_json_lines,
)
from stratalog.cli.commands.read import (
    Position,
    compile_format,
    json_line,
    parse_position,
    people_line,
    printable,
    to_json,
    unescape,
    value_line,
)
from stratalog.errors import InvalidArgumentError, InvalidRecordError
from stratalog.model import LOG_APPEND_TIME, Record

NOW = 1_767_225_600_000
ORDER = Record(b"created", b"order-1", [("source", b"web"), ("n", None)], NOW, 17, 3, 0, "orders")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%s", b"created"),
        ("%k=%s\\n", b"order-1=created\n"),
        ("%t/%p/%o", b"orders/3/17"),
        ("%T", b"1767225600000"),
        ("%S %K", b"7 7"),
        ("%h", b"source=web,n="),
        ("100%%", b"100%"),
        ("\\t\\r\\0\\\\\\x1f", b"\t\r\0\\\x1f"),
        ("", b""),
        ("é %s", "é created".encode()),
    ],
)
def test_format_strings(text, printed):
    assert compile_format(text)(ORDER) == printed


def test_nulls_in_formats():
    assert compile_format("[%k|%s|%K|%S|%h|%T]")(Record(None)) == b"[||-1|-1||-1]"
    assert compile_format("%S")(Record(b"")) == b"0"


@pytest.mark.parametrize("text", ["%x", "%", "\\q", "\\", "\\x1", "%\n"])
def test_unknown_fields_and_escapes_are_named(text):
    with pytest.raises(InvalidArgumentError, match="in the format: use"):
        compile_format(text)


def test_bytes_pass_unchanged():
    record = Record(bytes(range(256)))
    assert compile_format("%s")(record) == bytes(range(256))
    assert value_line(record) == bytes(range(256)) + b"\n"
    assert value_line(Record(None)) == b"\n"


def test_delimiters():
    assert unescape("\\t") == b"\t"
    assert unescape("%") == b"%"
    assert unescape(" => ") == b" => "


def test_json_of_a_record():
    assert json.loads(json_line(ORDER)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "timestamp": NOW,
        "timestamp_type": "CreateTime",
        "key": "order-1",
        "value": "created",
        "headers": [{"key": "source", "value": "web"}, {"key": "n", "value": None}],
    }
    odd = to_json(Record(b"\xff", None, (), 5, timestamp_type=LOG_APPEND_TIME))
    assert (odd["value_base64"], odd["key"], odd["timestamp_type"]) == ("/w==", None, "LogAppendTime")
    assert json_line(ORDER).count(b"\n") == 1


def test_lines_for_people_are_harmless():
    assert people_line(ORDER) == b"3:17  2026-01-01T00:00:00.000Z  order-1  created\n"
    assert people_line(Record(None, None, (), 0, 1, 0)) == b"0:1  1970-01-01T00:00:00.000Z  null\n"
    assert b"\x1b[36morder-1\x1b[0m" in people_line(ORDER, color=True)
    assert printable(b"a\x1b[2Jb\nc\xff") == "a\\x1b[2Jb\\nc\\xff"
    assert printable("naïve ✓".encode()) == "naïve ✓"


@given(st.binary(), st.booleans())
def test_a_line_for_people_is_one_line(data, color):
    line = people_line(Record(data, data, (), NOW, 0, 0), color)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    line.decode()


def records(text: bytes, rules: LineRules = LineRules()) -> list[Record]:  # noqa: B008 - frozen
    return [rules.record(line) for lines in chunks_of_lines(io.BytesIO(text), "input") for line in lines]


def test_lines():
    assert records(b"a\nb\n") == [Record(b"a"), Record(b"b")]
    assert records(b"a\n\nlast without newline") == [
        Record(b"a"),
        Record(b""),
        Record(b"last without newline"),
    ]
    assert records(b"") == []
    assert records(b"keeps\r\n") == [Record(b"keeps\r")]


def test_keys_headers_and_times_of_lines():
    rules = LineRules(key_delimiter=b":", headers=(("h", b"1"),), timestamp=9)
    assert records(b"k:v:w\nno key\n:v\n", rules) == [
        Record(b"v:w", b"k", (("h", b"1"),), 9),
        Record(b"no key", None, (("h", b"1"),), 9),
        Record(b"v", b"", (("h", b"1"),), 9),
    ]
    assert records(b"v\n", LineRules(key=b"fixed")) == [Record(b"v", b"fixed")]
    assert records(b"k:\n:v\n", LineRules(key_delimiter=b":", null_empty=True)) == [
        Record(None, b"k"),
        Record(b"v", None),
    ]


def test_a_slow_pipe_is_passed_on_as_it_arrives():
    parts = iter([b"one\ntw", b"o", b"\nthree\nfour\n", b""])

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return next(parts)

    assert list(chunks_of_lines(Pipe(), "pipe")) == [[b"one"], [b"two", b"three", b"four"]]


def test_endless_lines_are_refused(monkeypatch):
    monkeypatch.setattr("stratalog.cli.commands.append.MAX_LINE_BYTES", 10)
    monkeypatch.setattr("stratalog.cli.commands.append.CHUNK_BYTES", 4)
    with pytest.raises(InvalidRecordError, match="data: a line is longer than 10 bytes"):
        list(chunks_of_lines(io.BytesIO(b"x" * 50), "data"))
    with pytest.raises(InvalidRecordError, match="data: longer than 10 bytes"):
        record_from_file(io.BytesIO(b"x" * 50), "data", LineRules())


def test_whole_files():
    assert record_from_file(io.BytesIO(b"a\nb"), "f", LineRules(key=b"k")) == Record(b"a\nb", b"k")
    assert record_from_file(io.BytesIO(b""), "f", LineRules(null_empty=True)) == Record(None)


def from_json(*lines: object, rules: LineRules = LineRules()):  # noqa: B008 - frozen
    text = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    found = records_from_json_lines(io.BytesIO(text), "input", rules, NOW)
    return [(record, partition) for batch in found for record, partition, _ in batch]


def test_json_lines():
    assert from_json({"value": "v"}, b"", {"value": None, "key": "k", "partition": 2}) == [
        (Record(b"v"), None),
        (Record(None, b"k"), 2),
    ]
    for headers in (
        {"a": "1"},
        [["a", "1"]],
        [{"key": "a", "value": "1"}],
        [{"key": "a", "value_base64": "MQ=="}],
    ):
        ((record, _),) = from_json({"value": "v", "headers": headers})
        assert list(record.headers) == [("a", b"1")]
    ((record, _),) = from_json({"value_base64": "/w==", "key_base64": "AA==", "timestamp": "2026-01-01"})
    assert (record.value, record.key, record.timestamp) == (b"\xff", b"\0", NOW)
    ((record, _),) = from_json({"value": "v", "timestamp": 5}, rules=LineRules(timestamp=7, key=b"k"))
    assert (record.timestamp, record.key) == (7, b"k")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: not JSON"),
        (b"\xff", "line 2"),
        (b"[" * 100_000, "line 2"),
        (7, "must be an object"),
        ({}, "no value"),
        ({"value": "v", "kye": "k"}, "unknown field 'kye'"),
        ({"value": 7}, "value must be a string or null"),
        ({"value": "v", "value_base64": "AA=="}, "both value and value_base64"),
        ({"value_base64": "*"}, "value_base64 is not base64"),
        ({"value_base64": 3}, "value_base64 is not base64"),
        ({"value": "v", "timestamp": 1.5}, "timestamp must be"),
        ({"value": "v", "timestamp": "soon"}, "is not a time"),
        ({"value": "v", "partition": "0"}, "partition must be"),
        ({"value": "v", "headers": 3}, "headers must be"),
        ({"value": "v", "headers": [3]}, "a header is"),
        (b'{"value": "\\ud800"}', "half a surrogate pair"),
    ],
)
def test_bad_json_lines_are_named(line, said):
    with pytest.raises(InvalidRecordError, match="input line 2: ") as caught:
        from_json({"value": "fine"}, line)
    assert said in str(caught.value)


json_records = st.builds(
    Record,
    value=st.none() | st.binary(),
    key=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.binary())),
    timestamp=st.integers(0, 2**62),
)


@given(st.lists(json_records, max_size=5))
def test_what_read_prints_append_takes(batch):
    printed = b"".join(json_line(record._replace(partition=1, topic="t")) for record in batch)
    found = records_from_json_lines(io.BytesIO(printed), "input", LineRules(), NOW)
    back = [(record._replace(headers=list(record.headers)), p) for part in found for record, p, _ in part]
    assert back == [(Record(*record[:4]), 1) for record in batch]


def test_headers_of_the_command_line():
    assert parse_header("a=1=2") == ("a", b"1=2")
    assert parse_header("a=") == ("a", b"")
    assert parse_header("a") == ("a", None)
    with pytest.raises(InvalidArgumentError):
        parse_header("=x")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("latest", Position("latest")),
        ("42", Position("offset", 42)),
        ("-5", Position("tail", 5)),
        ("-10m", Position("time", NOW - 600_000)),
        ("now", Position("time", NOW)),
        ("@1767225600000", Position("time", NOW)),
        ("2026-01-01", Position("time", NOW)),
    ],
)
def test_positions(text, position):
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize("text", ["", "soon", "1.5", "--", "-x"])
def test_not_positions(text):
    with pytest.raises(InvalidArgumentError, match="is not a position"):
        parse_position(text, NOW)
