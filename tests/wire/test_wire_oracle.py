"""Requests and responses against another implementation of the same schemas: kio, made from Kafka's own."""

from __future__ import annotations

import random
from io import BytesIO
from typing import Any

import pytest
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from stratalog.wire.messages import codec
from stratalog.wire.schema import Message, table
from tests.wire.test_wire_messages import some_struct

MESSAGES = list(table("requests").values())
PLAIN = {"records": b"batch"}


def readable(value: Any) -> Any:
    """Values that kio takes too: it turns times and durations into objects of a smaller range."""
    if isinstance(value, tuple):
        made = [readable(each) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return max(0, min(value, 90))


@pytest.mark.parametrize("message", MESSAGES, ids=[message.name for message in MESSAGES])
def test_another_reader_and_writer_agree(message: Message) -> None:
    rng = random.Random(f"oracle {message.name}")
    made = codec(message.name)
    load = load_request_schema if message.name.endswith("Request") else load_response_schema
    compared = 0
    for version in range(message.versions.low, message.versions.high + 1):
        assert message.id is not None
        try:
            entity = load(message.id, version)
        except UnknownEntity:
            continue
        for _ in range(4):
            value = readable(some_struct(rng, made, message.struct, version))
            data = made.encode(value, version)
            found, size = entity_reader(entity)(data, 0)
            assert size == len(data)
            out = BytesIO()
            entity_writer(entity)(out, found)
            assert out.getvalue() == data, f"version {version}: {value}"
            compared += 1
    assert compared
