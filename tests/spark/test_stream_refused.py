"""Commits that the store refuses before it decides: its own error, at once, and nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from stratalog.errors import ControlError, InvalidRecordError, RecordTooLargeError, UnknownTopicError
from stratalog.spark.sink import Sink, Staged, driver_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[stratalog.Store]:
    """Held by this process, so that commits go through its control socket, as a stream's do."""
    with stratalog.open(tmp_path / "log") as opened:
        opened.create_topic("out", 1)
        yield opened


def staged(tmp_path: Path, values: list[bytes], batch: int = 0) -> tuple[Sink, Staged]:
    sink = Sink((str(tmp_path / "log"),), "out", ("value",), driver_of(), 20.0)
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    return sink, sink.stage(iter([rows]), "q", batch)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda store: store.alter_topic("out", {"max.message.bytes": 100}), RecordTooLargeError),
        (lambda store: store.alter_topic("out", {"cleanup.policy": "compact"}), InvalidRecordError),
        (lambda store: store.delete_topic("out"), UnknownTopicError),
        (lambda store: (store.delete_topic("out"), store.create_topic("out", 1)), UnknownTopicError),
    ],
)
def test_settings_that_changed_after_staging(
    store: stratalog.Store,
    tmp_path: Path,
    change: Callable[[stratalog.Store], object],
    error: type[Exception],
) -> None:
    sink, message = staged(tmp_path, [bytes(500)])
    change(store)
    begun = time.monotonic()
    with pytest.raises(error):
        sink.commit(message.query, message.batch, message.files, job=False)
    assert time.monotonic() - begun < 10, "it is not asked again"
    assert not (tmp_path / "log.staging").exists()
    assert store.journal.pending == ()


def test_damage_is_told_at_once_and_kept(store: stratalog.Store, tmp_path: Path) -> None:
    sink, message = staged(tmp_path, [bytes(500)])
    (file,) = message.files
    begun = time.monotonic()
    with pytest.raises(ControlError, match="records in .* bytes with CRC"):
        sink.commit("q", 0, [file._replace(crc=file.crc ^ 1)], job=False)
    assert time.monotonic() - begun < 10
    sink.commit("q", 0, [file], job=False)
    assert [record.value for record in store.topic("out").read(0)] == [bytes(500)]
