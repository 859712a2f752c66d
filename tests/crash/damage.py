"""Accidents that are no crash, each with what must then be true: damage below the synced end, a wrong index,
a swap cut short, a sync that failed.

Each function raises `HistoryError` when the store does something else.
"""

from __future__ import annotations

import random
import struct
from itertools import pairwise

from stratalog.errors import CorruptionError, ReadOnlyError, SyncFailedError
from stratalog.log.names import segment_name
from stratalog.testing import Fact, FailingFileSystem, Fault, HistoryError, MemoryFileSystem
from tests.crash.campaign import MODES, Tally
from tests.crash.driver import Driver, Log

LOG: Log = ("plain", 0)


def written(count: int = 30) -> Driver:
    """A closed store with a few small segments."""
    driver = Driver()
    driver.open()
    driver.create_topic("plain", segment_bytes=900, index_interval_bytes=50, retention_ms=-1)
    for _ in range(count):
        driver.append(LOG, driver.fact(LOG, b"k", 60))
    driver.close()
    return driver


def overwrite(fs: MemoryFileSystem, path: str, position: int, data: bytes) -> None:
    with fs.open(path, "w") as file:
        file.pwrite(data, position)
        file.sync()


def logs_of(driver: Driver) -> list[str]:
    directory = driver.directory(LOG)
    return [f"{directory}/{name}" for name in driver.fs.list_dir(directory) if name.endswith(".log")]


def flipped_record(*, sealed: bool) -> None:
    """A record below the synced end was changed on disk: named, not served, and nothing is cut."""
    driver = written()
    end = driver.logs[LOG].end
    path = logs_of(driver)[0 if sealed else -1]
    data = driver.fs.read_file(path)
    overwrite(driver.fs, path, data.rindex(b"vvvv"), b"w")
    # The stop was not clean either: recovery looks, and must leave alone what was synced.
    driver.fs.remove("/data/log/.kafka_cleanshutdown")
    driver.fs.sync_dir("/data/log")
    driver.open()
    topic = driver.topic(LOG)
    if topic.log_end_offset() < end or driver.fs.stat(path).size < len(data):
        raise HistoryError("the log was cut below its synced end")
    try:
        shown = list(topic.read())
    except CorruptionError as error:
        if error.path != path:
            raise HistoryError(f"damage in {path} was named {error}") from error
    else:
        raise HistoryError(f"{len(shown)} records were shown, one of them damaged")
    good = list(topic.read(skip_damaged=True))
    given = driver.logs[LOG].given
    if any(given[record.offset] != Fact.of(record) for record in good):
        raise HistoryError("a damaged record was shown as good")
    if len(good) < end - 1:
        raise HistoryError(f"only {len(good)} of {end - 1} good records can be read")


def wrong_index() -> None:
    """Index entries that point at the wrong batches cost a rebuild, not records."""
    driver = written()
    for path in logs_of(driver)[:-1]:
        name = path.replace(".log", ".index")
        entries = list(struct.iter_unpack(">ii", driver.fs.read_file(name)))
        moved = [(offset, position) for (offset, _), (_, position) in pairwise(entries)]
        assert moved
        driver.fs.write_file(name, b"".join(struct.pack(">ii", *entry) for entry in moved), sync=True)
    driver.restart()
    driver.check_doors()
    for offset in range(driver.logs[LOG].end):
        found = next(driver.topic(LOG).read(0, offset)).offset
        if found != offset:
            raise HistoryError(f"reading from {offset} began with {found}")


def swap_cut_short(tally: Tally) -> None:
    """Two segments were merged into a `.swap`; the start that finishes the swap is crashed at every call."""
    driver = written()
    first, second = logs_of(driver)[:2]
    driver.fs.write_file(f"{first}.swap", driver.fs.read_file(first) + driver.fs.read_file(second), sync=True)
    driver.fs.sync_dir(driver.directory(LOG))
    rng = random.Random(1)

    def look(call: str) -> None:
        for mode in MODES:
            tally.points += 1
            try:
                after = driver.branch(driver.fs.survivor(mode, rng), power_cut=mode != "kill")
                after.restart()
                after.check_doors()
                after.close()
                after.restart()
                after.check_doors()
            except Exception as error:  # noqa: BLE001 - every failure is gathered
                tally.fail(f"{call} {mode}", error)

    driver.fs.before_call = look
    driver.restart()
    driver.fs.before_call = None
    driver.check_doors()
    merged = f"{driver.directory(LOG)}/{segment_name(0)}.log"
    if driver.fs.exists(second) or driver.fs.exists(f"{merged}.swap"):
        raise HistoryError("the swap was not finished")


def failed_sync() -> None:
    """After a failed fsync nothing more is acknowledged, though the next one would succeed."""
    failing = FailingFileSystem(MemoryFileSystem())
    driver = Driver()
    driver.fs = failing  # type: ignore[assignment]
    driver.open()
    driver.create_topic("plain")
    driver.append(LOG, sync=True)
    failing.inject(Fault("sync", "*.log", times=1))
    acknowledged = 0
    for _ in range(3):
        try:
            driver.topic(LOG).append(b"not safe", sync=True)
            acknowledged += 1
        except (SyncFailedError, ReadOnlyError):
            failing._unsyncable.clear()  # as Linux does: the second fsync says yes
    if acknowledged:
        raise HistoryError("acknowledged after a failed sync")
