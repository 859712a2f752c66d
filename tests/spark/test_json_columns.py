"""Values as columns: what a record becomes does not depend on the records beside it."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from stratalog.spark.pipelines.lake import json_columns
from stratalog.spark.pipelines.lake.json_columns import ON_MISFIT, Decoded, decode, payload_of

PAYLOAD = payload_of("id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>")
WRONG = [
    b"not json",
    b"[1]",
    b'{"id": "seven", "name": "x"}',
    b'{"id": 7, "name": 8}',
    b'{"id": 7.5, "at": "yesterday", "name": {"a": 1}}',
    b'{"id": 1, "id": "two"}',
    b'{"name": "\\ud800"}',
    b"\xff",
]


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())], names=["value", "offset"]
    )


def right(number: int) -> bytes:
    name = f'name "{number}"' if number % 3 else f"name {number}"  # an escape now and then
    at = "2026-01-05T10:00:00Z"
    return json.dumps({"id": number, "name": name, "at": at, "tags": ["a", None], "more": 1}).encode()


def outcome(decoded: Decoded) -> dict[int, object]:
    found: dict[int, object] = {row["offset"]: row for row in decoded.rows.to_pylist()}
    failed = decoded.failed.column("offset").to_pylist()
    return found | dict(zip(failed, decoded.reasons, strict=True))


@pytest.mark.parametrize("on_misfit", ON_MISFIT)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_a_record_is_decoded_alike_in_any_company(on_misfit: str, share: float) -> None:
    rng = random.Random(share)
    values: list[bytes | None] = [
        rng.choice(WRONG) if rng.random() < share else right(number) for number in range(1500)
    ]
    values[3] = None
    tried = decode(batch(values), PAYLOAD, on_misfit)
    looked = decode(batch(values), PAYLOAD, on_misfit, doubtful=True)
    assert outcome(looked) == outcome(tried)
    assert looked.misfits == tried.misfits
    assert looked.rows.column("offset").to_pylist() == sorted(looked.rows.column("offset").to_pylist())
    for number in rng.sample(range(len(values)), 60):
        alone = decode(batch([values[number]]), PAYLOAD, on_misfit)
        (one,) = outcome(alone).values()
        assert (one | {"offset": number} if isinstance(one, dict) else one) == outcome(tried)[number]


SCHEMAS = [
    "id BIGINT, name STRING, at TIMESTAMP, amount DOUBLE, tags ARRAY<STRING>",
    "b BOOLEAN, t TINYINT, s SMALLINT, i INT",
    "d DATE, n TIMESTAMP_NTZ, x DECIMAL(8, 3), f FLOAT",
    "a STRUCT<b: INT, c: STRING>, b STRING, c INT",
    "`strange name` INT, ok INT",
    "one STRING",
]
VALUES = [
    *("0", "-0", "7.5", "1.10", "0.0", "-0.0", "0.0001", "0.00001", "1e3", "01", ".5", "NaN", "-Inf"),
    *("127", "128", "-129", "1234", "12345678901", "9223372036854775808", "123456.123", "999999999999999999"),
    *("true", "false", "null", "tru", "[]", "{}", '["a", null]', "[1]", '{"b": 1, "c": "x"}', '{"c": 7}'),
    *('""', '"x"', '"7"', '"a\\n"', '"\\ud800"', '"é€😀"', '"e5"', '"inf"', '"2026-01-05"', '"2026-02-30"'),
    *('"2026-01-05T10:00:00Z"', '"\x7f"', f'"{"y" * 58}"', f'"{"é" * 59}"', f'"{"é" * 58}"'),
]


def any_object(rng: random.Random, names: list[str]) -> bytes:
    members = [(name, rng.choice(VALUES)) for name in rng.sample(names, rng.randint(1, len(names)))]
    if rng.random() < 0.1:
        members.append((rng.choice([*names, "more", names[0][:-1], names[0] + "s"]), rng.choice(VALUES)))
    space = rng.choice(["", " ", "\n"])
    body = f",{space}".join(f'"{name}"{space}:{space}{value}' for name, value in members)
    return f"{space}{{{body}{space}}}{rng.choice(['', '', '', '}'])}".encode()


@pytest.mark.parametrize("ddl", SCHEMAS)
@pytest.mark.parametrize("on_misfit", ON_MISFIT)
def test_patterns_tell_what_the_parser_tells(
    ddl: str, on_misfit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(ddl)
    payload = payload_of(ddl)
    names = payload.schema.names
    values: list[bytes | None] = [any_object(rng, names) for _ in range(600)]
    values += [f'{{"{name}": {value}}}'.encode() for name in names for value in VALUES]
    told = decode(batch(values), payload, on_misfit, doubtful=True)
    monkeypatch.setattr(json_columns, "_MOST_PATTERN", 0)  # every record goes through Python's parser
    parsed = decode(batch(values), payload, on_misfit, doubtful=True)
    assert repr(outcome(told)) == repr(outcome(parsed))
    assert told.misfits == parsed.misfits


def test_patterns_tell_most_misfits() -> None:
    texts = [json.dumps({"id": number, "names": [1, "x"], "name": number}).encode() for number in range(100)]
    texts += [json.dumps({"id": f"id {number}", "name": None, "nam": 1.5}).encode() for number in range(100)]
    plain = json_columns._Plain(pa.array(texts, pa.binary()), texts, PAYLOAD.schema)
    assert plain.misfits[0] == list(range(100, 200))
    assert plain.misfits[1] == list(range(100))
    assert not plain.others
