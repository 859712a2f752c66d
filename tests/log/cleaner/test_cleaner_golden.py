"""The same dirty range and the same moment as a real Kafka 4.3.1 cleaner had: the same bytes come out.

`tests/golden` holds seven topics before and after each of two rounds; `times.json` brackets their moments.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.log.write.recovery import OpenAs
from tests.log.cleaner.differential import assert_same, checkpoint, clean_copy, comparable, moment_of, raw_of
from tests.log.cleaner.support import compacted

CLEANER = Path(__file__).parents[2] / "golden" / "kafka-4.3.1" / "cleaner"
TIMES = json.loads((CLEANER / "times.json").read_text())
DAY_MS = 86_400_000
TOPICS = {
    "clean-plain": DAY_MS,
    "clean-lz4": DAY_MS,
    "clean-zstd": DAY_MS,
    "clean-idempotent": DAY_MS,
    "clean-transactions": DAY_MS,
    "clean-expired-tombstones": 1000,
    "clean-out-of-order": DAY_MS,
}
NOT_YET = ("clean-zstd", 1)
"""The broker had not come to it in its first round."""


@pytest.mark.parametrize("round_number", [1, 2])
@pytest.mark.parametrize("topic", TOPICS)
def test_cleans_as_kafka_does(tmp_path: Path, topic: str, round_number: int) -> None:
    before, after = CLEANER / f"{round_number}-before", CLEANER / f"{round_number}-after"
    first_dirty, end = checkpoint(before, topic), checkpoint(after, topic)
    was, wanted = raw_of(before / f"{topic}-0"), raw_of(after / f"{topic}-0")
    assert ((topic, round_number) == NOT_YET) == (end == 0) == (comparable(was) == comparable(wanted))
    if end == 0:
        return
    earliest, newest = TIMES[f"{round_number}-clean-from"], TIMES[f"{round_number}-clean-to"]
    now_ms = moment_of(was, wanted, TOPICS[topic])
    assert now_ms is not None
    assert earliest <= now_ms <= newest
    config = compacted(segment_bytes=16 << 10, delete_retention_ms=TOPICS[topic], index_interval_bytes=512)
    log, report = clean_copy(
        before / f"{topic}-0",
        tmp_path / f"{topic}-0",
        config,
        first_dirty,
        end,
        now_ms,
        OpenAs(clean=True, foreign=True),
    )
    assert_same(log, after / f"{topic}-0")
    assert log.saved == [end]
    assert (report.passes, report.quarantined, report.stopped) == (1, (), None)
    dropped = sum(len(batch.records) for batch in was) - sum(len(batch.records) for batch in wanted)
    assert report.records_before - report.records_after == dropped > 0
