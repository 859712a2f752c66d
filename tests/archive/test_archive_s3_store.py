"""A whole store on a real S3 server: reads across the boundary, and kills at its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.archive import open_objects
from stratalog.fs import RealFileSystem
from tests.archive.faulty import Killed, When
from tests.store.test_tiering_kills import story
from tests.store.tiered import TOPIC, Tiered

EVERY = 9
"""Of the requests; the archive in a directory is killed at each (tests/store/test_tiering.py)."""


def test_a_store_by_its_settings_alone(s3_url: str, tmp_path: Path) -> None:
    """As users do it: a URL in the settings, credentials in the environment, a real disk."""
    settings = {
        "log.archive.url": s3_url,
        "log.archive.cache.dir": str(tmp_path / "cache"),
        "log.segment.bytes": 1 << 20,
    }
    config = {"remote.storage.enable": True, "key.index.enable": True, "local.retention.bytes": 1 << 20}
    rows = [Record(f"{number:06d}".encode() * 100, key=f"k{number % 50}".encode()) for number in range(9_000)]
    with stratalog.open(tmp_path / "data", settings) as store:
        topic = store.create_topic("events", config=config)
        for at in range(0, len(rows), 500):
            topic.append_many(rows[at : at + 500])
        store.archive()
        report = store.archive()
        assert any(step.action == "drop-local" for step in report.steps)
        states = [str(segment.state) for segment in topic.segments(0)]
        assert states.count("archived") >= 3
        assert topic.segments(0)[0].path.startswith(s3_url)
        assert topic.scan([0], ["value"]).read_all()["value"].to_pylist() == [row.value for row in rows]
        assert topic.get(b"k7").offset == 8_957
        assert [record.offset for record in topic.history(b"k7")] == list(range(7, 9_000, 50))
    with stratalog.open(tmp_path / "data", settings, read_only=True) as store:
        assert sum(1 for _ in store.topic("events").read(0)) == len(rows)
    assert list((tmp_path / "cache").iterdir()) == [], "the cache goes with its process"


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_at_requests_to_s3(s3_endpoint: str, s3_url: str, when: When, quiet: None) -> None:
    number = 0 if when == "before" else EVERY // 2
    while True:
        objects = open_objects(f"{s3_url}/{when}-{number}", RealFileSystem(), timeout_ms=30_000, retries=2)
        tiered = Tiered(objects)
        tiered.objects.kill_at, tiered.objects.kill_when = number, when
        try:
            story(tiered)
        except Killed:
            tiered.reboot()
        else:
            break
        if TOPIC in tiered.store.topics():
            tiered.check()
            tiered.archive()
            tiered.leave()
            tiered.check()
            tiered.check_archive()
        tiered.close()
        number += EVERY
    assert number > 100
    tiered.objects.kill_at = -1
    tiered.check()
    tiered.check_archive()
    tiered.close()
