"""Values as columns: what a record becomes does not depend on the records beside it."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

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
