"""A log whose every offset tells what must be there, so that any reader, in any process, can judge it.

Of each ten offsets 0 to 5 and 9 are records of their own, 6 and 7 an aborted transaction, 8 its marker; the
value is the offset. Offset 3 of each ten is superseded: swaps may drop it, and nothing else. As a program:
``swap_script.py DIRECTORY`` reads it beside its writer, in every way there is, until its input ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

import stratalog
from stratalog import Record

ALWAYS = frozenset({0, 1, 2, 4, 5, 9})
ABORTED = frozenset({6, 7})
KEYS = 7


class Wrong(Exception):  # noqa: N818 - what it is
    """A reader was shown what is not so."""


def key_of(offset: int) -> bytes:
    return b"k%d" % (offset % KEYS)


def may_be_there(offset: int, *, committed: bool) -> bool:
    return offset % 10 in ALWAYS or offset % 10 == 3 or (offset % 10 in ABORTED and not committed)


def must_be_there(offset: int, *, committed: bool) -> bool:
    return offset % 10 in ALWAYS or (offset % 10 in ABORTED and not committed)


def check(door: str, offsets: Iterable[int], start: int, end: int, *, committed: bool = False) -> None:
    """Offsets that were shown for [start, end); more may have come meanwhile."""
    shown = list(offsets)
    if shown != sorted(set(shown)):
        raise Wrong(f"{door}: not in order: {shown}")
    for offset in shown:
        if offset < start or not may_be_there(offset, committed=committed):
            raise Wrong(f"{door} from {start}: offset {offset} is shown")
    missing = {at for at in range(start, end) if must_be_there(at, committed=committed)} - set(shown)
    if missing:
        raise Wrong(f"{door}: of {start} to {end}, {sorted(missing)} are not shown")


def check_record(door: str, record: Record) -> None:
    if record.value != b"%d" % record.offset or record.key != key_of(record.offset):
        raise Wrong(f"{door}: offset {record.offset} holds {record.key!r}: {record.value!r}")


def read_all_ways(topic: stratalog.Topic, turn: int) -> None:
    """Once through every door, each time from somewhere else."""
    start = topic.log_start_offset()
    end = topic.high_watermark(isolation="read_committed")
    begin = start + (turn * 37) % max(end - start, 1)
    for isolation in ("read_uncommitted", "read_committed"):
        committed = isolation == "read_committed"
        records = list(topic.read(0, begin, isolation=isolation))
        for record in records:
            check_record(isolation, record)
        check(f"read {isolation}", [r.offset for r in records], begin, end, committed=committed)
    table = topic.scan([0], ["offset", "value"], start=begin, end=end, isolation="read_committed").read_all()
    found = table.to_pydict()
    check("scan", found["offset"], begin, end, committed=True)
    if found["value"] != [b"%d" % offset for offset in found["offset"]]:
        raise Wrong("scan: a value is not its offset")
    if turn % 4:
        return
    history = list(topic.history(key_of(turn), isolation="read_committed"))
    wanted = [
        at for at in range(start, end) if must_be_there(at, committed=True) and at % KEYS == turn % KEYS
    ]
    missing = set(wanted) - {record.offset for record in history}
    if missing:
        raise Wrong(f"history: {sorted(missing)} are not shown")
    for record in history:
        check_record("history", record)
    latest = topic.get(key_of(turn), isolation="read_committed")
    if wanted and (latest is None or latest.offset < wanted[-1]):
        raise Wrong(f"get: {latest} where {wanted[-1]} is there")
    at = topic.offset_for_time(0, begin)  # timestamps are offsets
    if end > begin and (at is None or not begin <= at <= begin + 1):
        raise Wrong(f"time {begin}: offset {at}")


def main() -> None:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    with stratalog.open(sys.argv[1], read_only=True) as store:
        topic, turn = store.topic("t"), 0
        print("ready", flush=True)
        while not ended.is_set():
            read_all_ways(topic, turn)
            turn += 1
    print(turn, flush=True)


if __name__ == "__main__":
    main()
