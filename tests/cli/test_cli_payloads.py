"""Avro, Protobuf and JSON payloads: plain and framed, on the command line and in Arrow; misfits are named."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import sys
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stratalog
from stratalog.analysis.payloads import Payload
from stratalog.errors import ConfigError, FormatError, InvalidArgumentError, NotFoundError
from tests.cli.shell import Shell

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
message_factory = pytest.importorskip("google.protobuf.message_factory")

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SECOND = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "country", "type": ["null", "string"], "default": None}],
}
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def avro(schema, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + data


def orders(number: int):
    return {"id": f"o{number}", "amount": number * 1.5, "at": AT}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "7.avsc").write_text(json.dumps(FIRST))
    (tmp_path / "schemas" / "8.avsc").write_text(json.dumps(SECOND))
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    descriptors = descriptor_pb2.FileDescriptorSet()
    file = descriptors.file.add(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other").field.add(name="n", number=1, type=5, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=9, label=1)
    order.field.add(name="amount", number=2, type=3, label=1)
    order.field.add(name="tags", number=3, type=9, label=3)
    order.field.add(name="line", number=4, type=11, label=1, type_name=".shop.Order.Line")
    order.nested_type.add(name="Line").field.add(name="sku", number=1, type=12, label=1)
    (tmp_path / "order.desc").write_bytes(descriptors.SerializeToString())
    (tmp_path / "schemas" / "9.desc").write_bytes(descriptors.SerializeToString())
    kind = message_factory.GetMessages(list(descriptors.file))["shop.Order"]
    message = kind(id="p1", amount=2**60, tags=["a", "b"])
    message.line.sku = b"\xff"
    proto = message.SerializeToString()
    with stratalog.open(tmp_path / "data") as store:
        for name in ("plain", "framed", "proto", "protoframed", "mixed", "json"):
            store.create_topic(name)
        for number in range(5):
            store["plain"].append(avro(FIRST, orders(number)), b"k%d" % number)
            store["json"].append(json.dumps({"n": number}).encode())
        store["plain"].append(None, b"gone")
        store["framed"].append(framed(7, avro(FIRST, orders(1))), framed(7, avro(FIRST, orders(1))))
        store["framed"].append(framed(8, avro(SECOND, {**orders(2), "country": "DE"})))
        store["proto"].append(proto)
        store["protoframed"].append(framed(9, b"\x02\x02" + proto))  # one index: 1
        store["protoframed"].append(framed(9, b"\x04\x02\x00" + message.line.SerializeToString()))  # 1, 0
        store["mixed"].append(avro(FIRST, orders(1)))
        store["mixed"].append(b"\xff\xff\xff\xff")
    return tmp_path


@pytest.fixture
def shell(place) -> Shell:
    return Shell(place / "data")


def test_avro_with_a_schema_file(shell, place):
    options = ("--value-format", "avro", "--schema", str(place / "order.avsc"))
    assert json.loads(shell.lines("read", "plain", *options)[1]) == {
        "id": "o1",
        "amount": 1.5,
        "at": "2026-01-01T00:00:00+00:00",
    }
    rows = [json.loads(line) for line in shell.lines("read", "plain", *options, "--json")]
    assert (rows[2]["value"]["amount"], rows[5]["value"], rows[2]["key"]) == (3.0, None, "k2")
    assert len(shell.lines("read", "plain", *options, "--where", "amount > 3 and id == 'o4'")) == 1


def test_framed_avro_with_a_directory_of_schemas(shell, place):
    options = ("--value-format", "avro", "--schemas", str(place / "schemas"), "--key-format", "avro")
    rows = [json.loads(line) for line in shell.lines("read", "framed", *options, "--json")]
    assert [row["value"]["country"] for row in rows] == [None, "DE"]
    assert (rows[0]["key"]["id"], rows[1]["key"]) == ("o1", None)
    one = ("--value-format", "avro", "--schema", str(place / "order.avsc"), "--framed", "-n", "1")
    assert json.loads(shell.ok("read", "framed", *one))["id"] == "o1"


def test_avro_in_arrow_and_parquet(shell, place):
    payload = Payload("avro", schemas=place / "schemas")
    with stratalog.open(place / "data", read_only=True) as store:
        table = store["framed"].to_arrow(columns=["offset", "value"], value_format=payload)
    assert table.schema.field("value").type == pa.struct(
        [
            ("id", pa.string()),
            ("amount", pa.float64()),
            ("at", pa.timestamp("ms", "UTC")),
            ("country", pa.string()),
        ]
    )
    assert table["value"].to_pylist() == [
        {**orders(1), "country": None},
        {**orders(2), "country": "DE"},
    ]
    out = place / "out.parquet"
    options = ("--value-format", "avro", "--schema", str(place / "order.avsc"), "--out", str(out))
    assert shell.json("read", "plain", *options)["records"] == 6
    assert pq.read_table(out)["value"].to_pylist()[3] == orders(3)


def test_protobuf(shell, place):
    expected = {"id": "p1", "amount": 2**60, "tags": ["a", "b"], "line": {"sku": "/w=="}}
    options = ("--value-format", "protobuf", "--schema", str(place / "order.desc"), "--message", "shop.Order")
    assert json.loads(shell.ok("read", "proto", *options)) == expected
    assert shell.lines("read", "proto", *options, "--where", "tags contains 'b' and amount > 5")
    directory = ("--value-format", "protobuf", "--schemas", str(place / "schemas"))
    first, second = shell.lines("read", "protoframed", *directory)
    assert json.loads(first) == expected
    assert json.loads(second) == {"sku": "/w=="}
    with stratalog.open(place / "data", read_only=True) as store:
        payload = Payload("protobuf", place / "order.desc", message="shop.Order")
        (value,) = store["proto"].to_arrow(value_format=payload)["value"].to_pylist()
    assert value == {**expected, "line": {"sku": b"\xff"}}


def test_json_stays_text_in_arrow(shell, place):
    with stratalog.open(place / "data", read_only=True) as store:
        column = store["json"].to_arrow(value_format="json")["value"]
        assert (column.type, column[1].as_py()) == (pa.string(), '{"n": 1}')
        with pytest.raises(FormatError, match="offset 0"):
            store["plain"].to_arrow(value_format="json")
    lines = shell.lines("read", "json", "--value-format", "json", "--json")
    assert json.loads(lines[1])["value"] == {"n": 1}


def test_a_misfit_is_named(shell, place):
    options = ("--value-format", "avro", "--schema", str(place / "order.avsc"))
    result = shell("read", "mixed", *options)
    assert result.exit_code == 5
    assert "mixed-0 offset 1: the value is not avro" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    lines = shell.lines("read", "mixed", *options, "--on-misfit", "null", "--json")
    assert json.loads(lines[1])["value"] is None
    lines = shell.lines("read", "mixed", *options, "--on-misfit", "text", "--json")
    assert json.loads(lines[1])["value_base64"] == "/////w=="
    with stratalog.open(place / "data", read_only=True) as store:
        schema = place / "order.avsc"
        values = store["mixed"].to_arrow(value_format=Payload("avro", schema, on_misfit="null"))["value"]
        assert values.to_pylist() == [orders(1), None]
        with pytest.raises(InvalidArgumentError, match="use null"):
            store["mixed"].to_arrow(value_format=Payload("avro", schema, on_misfit="text"))


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x01\x00\x00\x00\x07", framed(99, b"x"), framed(9, b"\xff" * 9)]
)
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_garbage_is_a_misfit(place, data, form):
    payload = Payload(form, schemas=place / "schemas")
    with pytest.raises(FormatError, match="here is not"):
        payload.load(data, lambda: "here")
    with (
        stratalog.open(place / "data", read_only=True) as store,
        pytest.raises(InvalidArgumentError, match="a format is json, avro, protobuf or a Payload, not 3"),
    ):
        store["plain"].to_arrow(value_format=3)  # type: ignore[arg-type]


TREE = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": ["null", "Tree"]}]}


def test_nested_data_does_not_end_the_process(shell, place):
    """The schema allows any depth, and a few kilobytes claim it."""
    (place / "tree.avsc").write_text(json.dumps(TREE))
    payload = Payload("avro", place / "tree.avsc")
    assert payload.decode(b"\x02\x02\x00") == {"below": {"below": {"below": None}}}
    with stratalog.open(place / "data") as store:
        trees = store.create_topic("trees")
        trees.append(b"\x02\x00")
        trees.append(b"\x02" * 100_000 + b"\x00")
        with pytest.raises(FormatError, match="offset 1 is not avro: RecursionError"):
            trees.to_arrow(value_format=payload)
    asked = ("read", "trees", "--value-format", "avro", "--schema", str(place / "tree.avsc"))
    result = shell(*asked)
    assert result.exit_code == 5
    assert shell.lines(*asked, "--on-misfit", "null")[0] == '{"below":{"below":null}}'


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "Nothing", "fields": []},
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "N", "fields": [{"name": "a", "type": "null"}]},
    ],
)
def test_elements_that_take_no_bytes_are_refused(tmp_path, items):
    """Six bytes could be a million million of them."""
    (tmp_path / "a.avsc").write_text(json.dumps({"type": "array", "items": items}))
    with pytest.raises(FormatError, match="an array of a type without bytes"):
        Payload("avro", tmp_path / "a.avsc")


def test_schemas_out_of_measure(tmp_path):
    deep: object = "int"
    for _ in range(900):
        deep = {"type": "array", "items": deep}
    (tmp_path / "deep.avsc").write_text(json.dumps(deep))
    with pytest.raises(FormatError, match="nested too deeply|recursion"):
        Payload("avro", tmp_path / "deep.avsc")
    for digits, kind in ((38, pa.decimal128(38, 2)), (50, pa.decimal256(50, 2)), (100, pa.string())):
        schema = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}
        (tmp_path / "d.avsc").write_text(json.dumps(schema))
        assert Payload("avro", tmp_path / "d.avsc").arrow_type == kind


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "string"}, "abc", "abc"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A"),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {
                        "name": "ids",
                        "type": {"type": "array", "items": {"type": "string", "logicalType": "uuid"}},
                    }
                ],
            },
            {"ids": [str(uuid.UUID(int=1))]},
            {"ids": [str(uuid.UUID(int=1))]},
        ),
    ],
)
def test_text_in_avro_is_text_in_arrow(place, schema, value, expected):
    (place / "a.avsc").write_text(json.dumps(schema))
    with stratalog.open(place / "data") as store:
        topic = store.create_topic("text")
        topic.append(avro(schema, value))
        table = topic.to_arrow(columns=["value"], value_format=Payload("avro", place / "a.avsc"))
    assert table["value"].to_pylist() == [expected]


def test_another_message_than_the_columns_is_a_misfit(place):
    """Its fields would be dropped: the column is of the first message, the record of the second."""
    payload = Payload("protobuf", schemas=place / "schemas")
    with (
        stratalog.open(place / "data", read_only=True) as store,
        pytest.raises(FormatError, match=r"it is a shop\.Order, and the column has shop\.Other"),
    ):
        store["protoframed"].to_arrow(value_format=payload)


def test_half_a_surrogate_pair_stays_as_json_names_it(shell, place):
    with stratalog.open(place / "data") as store:
        store.create_topic("halves").append(b'{"a":"\\ud800","b":"\xc3\xa4"}')
    options = ("--value-format", "json")
    line = '{"a":"\\ud800","b":"\\u00e4"}'
    assert shell.lines("read", "halves", *options) == [line]
    assert json.loads(shell.lines("read", "halves", *options, "--json")[0])["value"] == json.loads(line)
    shell.ok("read", "halves", *options, "--out", str(place / "h.csv"))


def test_wrong_ways_to_ask(shell, place, monkeypatch):
    schema = str(place / "order.avsc")
    for options, code in (
        (("--value-format", "avro"), 2),
        (("--value-format", "json", "--schema", schema), 2),
        (("--schema", schema), 2),
        (("--value-format", "avro", "--schema", str(place / "none.avsc")), 3),
        (("--value-format", "avro", "--schemas", str(place)), 3),
        (("--value-format", "avro", "--schema", str(place / "order.desc")), 5),
        (("--value-format", "protobuf", "--schema", schema), 5),
        (("--value-format", "protobuf", "--schema", str(place / "order.desc"), "--message", "No"), 5),
        (("--value-format", "json", "--value-hex"), 2),
    ):
        result = shell("read", "plain", *options)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert len(result.stderr.splitlines()) == 1
    with pytest.raises(NotFoundError):
        Payload("avro", schemas=place / "nowhere")
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"fastavro: pip install 'stratalog\[payloads\]'"):
        Payload("avro", schema)


def test_what_a_column_cannot_hold_is_a_misfit(tmp_path):
    """Data that its schema does not allow: a decimal of more digits, an int of more bits."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    (tmp_path / "d.avsc").write_text(json.dumps(schema))
    data = pa.array([b"\x02\x10", b"\x50" + b"\x7f" * 40, None])
    with pytest.raises(FormatError, match="row 1 does not fit"):
        Payload("avro", tmp_path / "d.avsc").column(data, lambda row: f"row {row}")
    kept = Payload("avro", tmp_path / "d.avsc", on_misfit="null").column(data, lambda row: f"row {row}")
    assert kept.to_pylist() == [Decimal("0.16"), None, None]


def test_a_few_names_that_stand_for_any_number_of_fields(tmp_path):
    """Each type holds the one before it twice: forty of them are a million million fields."""
    avro: object = {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "null"}]}
    for number in range(1, 40):
        sides = [{"name": "l", "type": avro}, {"name": "r", "type": f"r{number - 1}"}]
        avro = {"type": "record", "name": f"r{number}", "fields": sides}
    (tmp_path / "bomb.avsc").write_text(json.dumps(avro))
    with pytest.raises(FormatError, match="more than 100000 fields"):
        Payload("avro", tmp_path / "bomb.avsc")

    files = descriptor_pb2.FileDescriptorSet()
    made = files.file.add(name="bomb.proto", syntax="proto3")
    for number in range(40):
        message = made.message_type.add(name=f"M{number}")
        for at, name in enumerate("lr" if number else ""):
            message.field.add(name=name, number=at + 1, type=11, label=1, type_name=f".M{number - 1}")
    (tmp_path / "bomb.desc").write_bytes(files.SerializeToString())
    bomb = Payload("protobuf", tmp_path / "bomb.desc", message="M39")
    assert bomb.arrow_type == pa.string()
    assert bomb.decode(b"\x0a\x00") == {"l": {"l": None, "r": None}, "r": None}
