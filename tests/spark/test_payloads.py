"""Keys and values decoded in Spark: Avro, Protobuf and JSON, in batch queries and in streams."""

from __future__ import annotations

import datetime as dt
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException

import stratalog
from stratalog import Record
from stratalog.analysis.payloads import Payload
from stratalog.spark import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
message_factory = pytest.importorskip("google.protobuf.message_factory")


@pytest.fixture
def payloads(tmp_path: Path) -> Path:
    """Avro, plain and framed with the ids of two schemas; Protobuf; JSON; and some that is none of these."""
    at = {"type": "long", "logicalType": "timestamp-millis"}
    lines = {"type": "array", "items": {"type": "map", "values": "int"}}
    fields: list[dict[str, Any]] = [{"name": "id", "type": "string"}, {"name": "at", "type": at}]
    first = {"type": "record", "name": "Order", "fields": [*fields, {"name": "lines", "type": lines}]}
    more = {"name": "country", "type": ["null", "string"], "default": None}
    second = {**first, "fields": [*first["fields"], more]}
    (tmp_path / "schemas").mkdir()
    for number, schema in ((7, first), (8, second)):
        (tmp_path / "schemas" / f"{number}.avsc").write_text(json.dumps(schema))
    descriptors = descriptor_pb2.FileDescriptorSet()
    file = descriptors.file.add(name="order.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=9, label=1)
    order.field.add(name="total", number=2, type=4, label=1)
    (tmp_path / "order.desc").write_bytes(descriptors.SerializeToString())
    kind = message_factory.GetMessages(list(descriptors.file))["shop.Order"]

    def avro(schema: Any, **more: Any) -> bytes:
        out = io.BytesIO()
        datum = {"id": "a", "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), "lines": [{"x": 1}], **more}
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
        return out.getvalue()

    with stratalog.open(tmp_path / "log") as store:
        framed = [b"\0\0\0\0\7" + avro(first), b"\0\0\0\0\x08" + avro(second, country="DE"), None, b"none"]
        store.create_topic("framed").append_many([Record(each) for each in framed])
        store.create_topic("plain").append(avro(first), avro(first))
        store.create_topic("proto").append(kind(id="p", total=2**64 - 1).SerializeToString())
        store.create_topic("json").append_many([Record(b'{"n": 1}'), Record(b"none")])
    return tmp_path


def test_payloads_are_decoded(spark: SparkSession, payloads: Path) -> None:
    def table(topic: str) -> DataFrame:
        return spark.read.format("stratalog").option("subscribe", topic).load(str(payloads / "log"))

    order = Payload("avro", schemas=payloads / "schemas", on_misfit="null")
    shutil.rmtree(payloads / "schemas")  # the schemas travel with the query
    frame = table("framed").select("offset", decoded("value", order).alias("order")).orderBy("offset")
    assert frame.schema["order"].dataType.simpleString() == (
        "struct<id:string,at:timestamp,lines:array<map<string,int>>,country:string>"
    )
    rows = [row["order"] for row in frame.collect()]
    assert [row and (row["id"], row["lines"], row["country"]) for row in rows] == [
        ("a", [{"x": 1}], None),
        ("a", [{"x": 1}], "DE"),
        None,
        None,
    ]
    assert frame.where("order.at = timestamp'2026-01-31 12:00:00'").count() == 2
    proto = table("proto").select(decoded("value", Payload("protobuf", payloads / "order.desc")).alias("v"))
    assert [(row.v.id, int(row.v.total)) for row in proto.collect()] == [("p", 2**64 - 1)]
    strict = table("json").select(decoded("value", "json"))
    with pytest.raises(PythonException, match="row 1 of a batch is not json"):
        strict.collect()
    found = table("json").where("offset = 0").select(decoded("value", "json").alias("v")).collect()
    assert [row.v for row in found] == ['{"n": 1}']
    source = spark.readStream.format("stratalog").option("subscribe", "framed")
    stream = source.option("startingOffsets", "earliest").load(str(payloads / "log"))
    query = (
        stream.select(decoded("value", order).alias("v"))
        .writeStream.format("memory")
        .queryName("decoded")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(payloads / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    assert spark.sql("select count(v.id) from decoded").collect()[0][0] == 2
