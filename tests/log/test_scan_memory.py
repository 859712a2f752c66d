"""A scan holds a bounded number of decoded bytes, however far the batches are compressed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record
from stratalog.format import codecs
from stratalog.fs import MemoryFileSystem
from stratalog.log.read import arrow_scan

MIB = 1 << 20
BATCHES = 120


PIECE = 9 * MIB
"""What is decoded into one record batch: 8 MiB, and the batch that passes them."""


@pytest.mark.parametrize(
    ("threads", "pieces"),
    [
        (1, 1),  # the one that is delivered
        (2, 4),  # one in each thread, one that waits in the window, one that is delivered
    ],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_decoded_bytes_in_flight_are_bounded(
    threads: int, pieces: int, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_scan, "WINDOW_BYTES", 4 * MIB)
    monkeypatch.setattr(arrow_scan, "PIECE_BYTES", 4096)
    decoded = [0]
    plain = codecs.decompress

    def counted(*args: Any, **options: Any) -> Any:
        body = plain(*args, **options)
        decoded[0] += len(body)
        return body

    with stratalog.open("/d", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t", config={"compression.type": "zstd", "max.message.bytes": 2 * MIB})
        for _ in range(BATCHES):
            topic.append_many([Record(bytes(MIB - 1000), None)])
        if sealed:
            topic.roll()
        stored = sum(info.size_bytes for info in topic.segments())
        assert stored < MIB, "small on disk, large in memory"
        monkeypatch.setattr(codecs, "decompress", counted)
        delivered = rows = 0
        for batch in topic.scan(threads=threads):
            assert decoded[0] - delivered <= pieces * PIECE
            delivered += batch.nbytes
            rows += batch.num_rows
            assert batch.nbytes <= PIECE
        assert rows == BATCHES
        assert decoded[0] >= (BATCHES - 1) * MIB


def test_a_scan_that_is_given_up_ends_its_threads() -> None:
    with stratalog.open("/d", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t", config={"compression.type": "zstd"})
        for _ in range(100):
            topic.append_many([Record(bytes(MIB - 1000), None)])
        reader = topic.scan(threads=2)
        first = reader.read_next_batch()
        assert first.num_rows > 0
        reader.close()
        assert topic.append(b"next").offset == 100


@pytest.mark.parametrize("closed", [False, True])
def test_a_scan_that_is_not_read_to_its_end_lets_the_program_end(tmp_path: Path, closed: bool) -> None:
    """The threads of the scan wait for room when the program ends."""
    script = f"""
import stratalog
from stratalog.log.read import arrow_scan
arrow_scan.WINDOW_BYTES = arrow_scan.PIECE_BYTES = 1000
store = stratalog.open({str(tmp_path / "data")!r}, background=False)
topic = store.create_topic("t")
for _ in range(20):
    topic.append_many([stratalog.Record(bytes(500))] * 10)
    topic.roll()
reader = topic.scan(threads=4)
print(reader.read_next_batch().num_rows)
if {closed}:
    store.close()
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, check=True)
    assert done.stdout == b"10\n"
    assert done.stderr == b""


@pytest.mark.parametrize("when", ["start", "end"])
def test_an_interrupted_scan_leaves_no_thread(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_scan, "PIECE_BYTES", 4096)
    start, join = threading.Thread.start, threading.Thread.join

    def start_then_stop(thread: threading.Thread) -> None:
        start(thread)
        if when == "start" and thread.name.startswith("stratalog-scan"):
            raise KeyboardInterrupt

    def stop(threads: object, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_then_stop)
    if when == "end":
        monkeypatch.setattr(arrow_scan._Threads, "__exit__", stop)
    with stratalog.open("/data", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t", 1)
        for _ in range(20):
            topic.append_many([Record(bytes(1000))] * 10)
        try:
            topic.scan(threads=2).read_all()
            pytest.fail("no interrupt came")
        except KeyboardInterrupt as error:
            error.__traceback__ = None
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("stratalog-scan"):
            join(thread, 10)
            assert not thread.is_alive()
