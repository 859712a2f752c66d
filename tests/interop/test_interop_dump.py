"""Kafka's own dump tool finds every file we write valid: all codecs, all its checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stratalog
from tests.interop.kafka import complaints, dump_log
from tests.interop.samples import CODECS, Seen, append_in_batches, sample_records, seen_by_us, segment_files

pytestmark = pytest.mark.interop

RECORDS = 3_000
TOPIC_CONFIG = {
    "segment.bytes": 64 * 1024,
    "index.interval.bytes": 512,
    "key.index.enable": True,
    "retention.ms": -1,
}
_RECORD = re.compile(
    r"\| offset: (\d+) (CreateTime|LogAppendTime): (\d+) keySize: (-?\d+) valueSize: (-?\d+) .*"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one topic a codec, filled by every way of appending, closed."""
    path = tmp_path_factory.mktemp("written")
    with stratalog.open(path) as store:
        for number, (codec, setting) in enumerate(CODECS.items()):
            topic = store.create_topic(
                f"codec-{codec}", partitions=1, config={**TOPIC_CONFIG, "compression.type": setting}
            )
            records = sample_records(RECORDS, seed=number)
            append_in_batches(topic, records[:-200])
            for record in records[-200:-100]:
                topic.append(record.value, key=record.key, headers=record.headers, timestamp=record.timestamp)
            topic.roll()
            topic.append_many(records[-100:], sync=True)
        stamped = store.create_topic(
            "log-append-time", config={**TOPIC_CONFIG, "message.timestamp.type": "LogAppendTime"}
        )
        append_in_batches(stamped, sample_records(RECORDS, seed=99))
    return path


TOPICS = (*(f"codec-{codec}" for codec in CODECS), "log-append-time")


def ours(path: Path, topic: str) -> list[Seen]:
    with stratalog.open(path, read_only=True) as store:
        return [seen_by_us(record) for record in store.topic(topic).read(partition=0, start=0)]


@pytest.mark.parametrize("topic", TOPICS)
def test_every_record_is_dumped_as_we_wrote_it(written: Path, topic: str) -> None:
    directory = written / f"{topic}-0"
    logs = segment_files(directory, ".log")
    assert len(logs) > 2
    dump = dump_log(logs, "--print-data-log", "--deep-iteration")
    assert complaints(dump) == []
    dumped = [match.groups() for match in map(_RECORD.fullmatch, dump.split("\n")) if match]
    expected = [
        (
            str(record.offset),
            "LogAppendTime" if record.timestamp_type else "CreateTime",
            str(record.timestamp),
            str(-1 if record.key is None else len(record.key)),
            str(-1 if record.value is None else len(record.value)),
        )
        for record in ours(written, topic)
    ]
    assert len(dumped) == RECORDS
    assert dumped == expected
    codec = topic.removeprefix("codec-") if topic.startswith("codec-") else "none"
    assert set(re.findall(r" compresscodec: (\w+) ", dump)) == {codec}


@pytest.mark.parametrize("topic", TOPICS)
def test_indexes_pass_the_sanity_check(written: Path, topic: str) -> None:
    indexes = segment_files(written / f"{topic}-0", ".index", ".timeindex")
    dump = dump_log(indexes, "--index-sanity-check")
    assert complaints(dump) == []
    empty = [path for path in indexes if path.stat().st_size == 0]
    assert dump.count(" passed sanity check.") == len(indexes) - len(empty)
    assert dump.count(" is empty.") == len(empty)
    assert len(empty) < len(indexes) / 2


@pytest.mark.parametrize("topic", TOPICS)
def test_indexes_agree_with_the_log(written: Path, topic: str) -> None:
    indexes = segment_files(written / f"{topic}-0", ".index", ".timeindex")
    assert complaints(dump_log(indexes, "--verify-index-only")) == []
    # the index of a sealed segment is not just valid by being empty
    entries = re.findall(r"^offset: \d+ position: \d+$", dump_log(indexes[:1]), re.MULTILINE)
    assert len(entries) >= 2


def test_every_file_of_a_partition_is_known_to_the_tool(written: Path) -> None:
    """Snapshots, transaction indexes and the rest, in one run as an operator would."""
    for topic in TOPICS:
        assert complaints(dump_log(segment_files(written / f"{topic}-0"), "--print-data-log")) == []
