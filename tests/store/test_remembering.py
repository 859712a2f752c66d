"""What a program says about its store holds for whoever opens it later and says nothing."""

from __future__ import annotations

from pathlib import Path

import stratalog
from stratalog.format import settings


def test_settings_said_once_hold_for_the_next_open(tmp_path: Path) -> None:
    where = str(tmp_path / "data")
    with stratalog.open(where, config={"log.retention.ms": -1, "log.segment.bytes": 4096}) as store:
        store.create_topic("orders").append(b"x")
    with stratalog.open(where) as store:
        assert store.topic("orders").config.retention_ms == -1
        assert store.topic("orders").config.segment_bytes == 4096
        assert store.retain(preview=True).steps == ()
    with stratalog.open(where, read_only=True) as store:
        assert store.topic("orders").config.retention_ms == -1


def test_an_empty_mapping_means_the_defaults_and_is_kept_too(tmp_path: Path) -> None:
    where = str(tmp_path / "data")
    with stratalog.open(where, config={"log.retention.ms": -1}) as store:
        store.create_topic("orders").append(b"x")
    with stratalog.open(where, config={}) as store:
        assert store.topic("orders").config.retention_ms == 604_800_000
        store.topic("orders").append(b"y")
    with stratalog.open(where) as store:
        assert store.topic("orders").config.retention_ms == 604_800_000


def test_opening_alone_writes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "data"
    with stratalog.open(where, config={}) as store:
        store.create_topic("orders").append(b"x")
    before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    with stratalog.open(where, config={"log.retention.ms": -1}):
        pass
    after = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    del before[where / ".lock"], after[where / ".lock"]
    assert after == before


def test_a_setting_of_a_newer_version_is_left_out(tmp_path: Path) -> None:
    where = tmp_path / "data"
    with stratalog.open(where, config={"log.retention.ms": -1}) as store:
        store.create_topic("orders")
    path = where / settings.FILE_NAME
    known = settings.parse(path.read_bytes())
    newer = settings.Settings(
        known.generation + 1, known.topics, {**known.store, "log.of.tomorrow": "yes"}, known.deleting
    )
    path.write_bytes(settings.pack(newer))
    with stratalog.open(where) as store:
        assert store.topic("orders").config.retention_ms == -1
