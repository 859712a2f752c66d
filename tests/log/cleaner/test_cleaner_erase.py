"""Erasing keys: no trace of them stays in the directory, and nothing else moves."""

from __future__ import annotations

import pytest

from stratalog.format import batch as batches
from stratalog.log import names
from stratalog.log.clean import EraseReport, RewriteTarget, count_keys, erase_keys, erase_segment
from stratalog.log.read.reader import read_records
from stratalog.model import Record, SegmentState
from tests.log.cleaner.support import Log, Seen, compacted
from tests.log.cleaner.test_cleaner_quarantine import flip

PLAIN = {"cleanup_policy": frozenset({"delete"})}


def filled(**settings: object) -> Log:
    """Three sealed segments and an active one; ``secret`` in the first and the third."""
    log = Log(compacted(**{**PLAIN, "segment_bytes": 1 << 16, **settings}))
    log.put((b"a", b"1"), (b"secret", b"hidden-1"), (b"b", None))
    log.put((b"secret", b"hidden-2"))
    log.roll()
    log.put((b"a", b"2"), (None, b"no key"))
    log.roll()
    log.put((b"c", b"3"), (b"secret", None), (b"secretive", b"stays"))
    log.put((b"secret", b"hidden-3"))
    log.roll()
    return log


def everything_on_disk(log: Log) -> bytes:
    return b"".join(log.fs.read_file(f"{log.directory}/{name}") for name in log.files())


@pytest.mark.parametrize("keyed", [False, True])
def test_every_record_of_a_key_goes(keyed: bool) -> None:
    log = filled(key_index_enable=keyed)
    before, bases, end = log.records(), log.bases(), log.writer.next_offset
    untouched = log.writer.segments()[1]
    report = erase_keys(log.writer, {b"secret"})
    assert log.records() == [record for record in before if record.key != b"secret"]
    assert (report.records_erased, report.segments_rewritten, report.keys) == (4, 2, 1)
    assert report.bytes_before > report.bytes_after > 0
    assert report.unreachable == ()
    assert log.bases() == bases
    assert log.writer.next_offset == end
    assert log.writer.segments()[1] is untouched
    assert b"hidden" not in everything_on_disk(log)
    assert log.fs.exists(untouched.path())
    states = {each.state for each in log.writer.segment_infos()[:-1]}
    assert states == {SegmentState.SEALED}, "that is not compaction"
    log.reopen()
    assert [each.offset for each in read_records(log.writer, 0)] == [0, 2, 4, 5, 6, 8]
    assert log.writer.next_offset == end
    again = erase_keys(log.writer, {b"secret"})
    assert (again.records_erased, again.segments_rewritten) == (0, 0)


def test_an_emptied_batch_goes_but_for_the_last_of_the_log() -> None:
    log = filled()
    erase_keys(log.writer, {b"secret"})
    shapes = [(batch.header.base_offset, batch.header.count) for batch in log.raw()]
    assert shapes == [(0, 2), (4, 2), (6, 2), (9, 0)]


def test_a_producers_last_batch_stays_empty() -> None:
    log = Log(compacted(**PLAIN))
    log.produce(5, (b"secret", b"1"))
    log.produce(5, (b"secret", b"2"))
    log.put((b"a", b"1"))
    log.roll()
    erase_keys(log.writer, {b"secret"})
    assert [(batch.header.base_offset, batch.header.count) for batch in log.raw()] == [(1, 0), (2, 1)]
    log.reopen()
    assert log.produce(5, (b"x", b"3")) == 3


def test_tombstones_markers_and_horizons_are_not_touched() -> None:
    log = Log(compacted(delete_retention_ms=0))
    log.puts([(b"a", b"1"), (b"a", None), (b"b", b"1")])
    log.produce(7, (b"secret", b"1"), (b"c", b"aborted"), transactional=True)
    log.end(7, commit=False)
    log.put((b"d", b"1"))
    log.roll()
    erase_keys(log.writer, {b"secret"})
    assert [record.offset for record in log.records()] == [0, 1, 2, 4, 6]
    assert [txn.producer_id for txn in log.writer.aborted(0, 100)] == [7]
    assert not any(batch.header.has_delete_horizon for batch in log.raw())
    committed = read_records(log.writer, 0, isolation="read_committed")
    assert [record.offset for record in committed] == [0, 1, 2, 6]


def test_a_dry_run_counts_and_changes_nothing() -> None:
    log = filled()
    calls = list(log.fs.calls)  # type: ignore[attr-defined]
    report = count_keys(log.writer, {b"secret"})
    assert log.fs.calls == calls  # type: ignore[attr-defined]
    done = erase_keys(log.writer, {b"secret"})
    assert report.dry_run
    assert (report.records_erased, report.segments_rewritten) == (
        done.records_erased,
        done.segments_rewritten,
    )
    assert report.bytes_after == done.bytes_after
    assert EraseReport.from_json(done.to_json()) == done


def test_leftovers_of_earlier_lives_go() -> None:
    log = filled()
    log.fs.write_file(f"{log.directory}/{3:020d}.log.deleted", b"whatever", sync=True)
    torn = {
        "holds the key": encoded(b"secret") + b"rest",
        "is free of it": encoded(b"other")[:-3],
        "is cut in a header": encoded(b"other") + b"\0" * 5,
        "is compressed": encoded(b"other", codec=4),
        "is garbage": b"\xff" * 100,
    }
    for at, data in enumerate(torn.values()):
        log.fs.write_file(f"{log.directory}/{names.torn_name(0, 1000 + at)}", data, sync=True)
    report = erase_keys(log.writer, {b"secret"})
    left = log.files()
    assert [names.torn_name(0, 1000 + at) in left for at in range(5)] == [False, True, True, False, False]
    assert not log.files(names.DELETED)
    assert f"{log.directory}/{3:020d}.log.deleted" in report.files_removed


def encoded(key: bytes, codec: int = 0) -> bytes:
    records = [Record(b"value" * 10, key, (), 1)]
    made, _ = batches.encode_records(
        records,
        options=batches.BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=1 << 20, codec=codec),
    )
    return bytes(made.data)


def test_a_damaged_segment_is_named_as_out_of_reach() -> None:
    log = filled()
    flip(log, 0)
    report = erase_keys(log.writer, {b"secret"})
    assert [damage.first_offset for damage in report.unreachable] == [0]
    assert report.segments_rewritten == 1
    flip(log, 0)
    secret = [record for record in log.records() if record.key == b"secret"]
    assert secret == [Seen(1, b"secret", b"hidden-1"), Seen(3, b"secret", b"hidden-2")]


def test_many_keys() -> None:
    log = Log(compacted(**PLAIN, key_index_enable=True))
    log.puts((b"key-%d" % n, b"value") for n in range(500))
    log.roll()
    report = erase_keys(log.writer, [b"key-%d" % n for n in range(0, 500, 2)])
    assert report.records_erased == 250
    assert [record.offset for record in log.records()] == list(range(1, 500, 2))


def test_one_segment_into_another_directory() -> None:
    log = filled()
    source = log.writer.segments()[0]
    log.fs.make_dir("/elsewhere")
    target = RewriteTarget(log.writer.location._replace(directory="/elsewhere"), log.config, suffix="")
    made = erase_segment(source, target, [b"secret"])
    [segment] = made.segments
    assert (segment.directory, segment.base_offset, segment.next_offset) == ("/elsewhere", 0, 4)
    assert (made.records_in, made.records_out) == (4, 2)
    assert segment.seal is not None
    assert segment.seal.size_bytes == segment.size
    assert log.fs.list_dir("/elsewhere") == [
        f"{0:020d}.{kind}" for kind in ("index", "log", "seal", "timeindex")
    ]
    assert not erase_segment(source, target, [b"nobody"]).segments
    assert log.fs.exists(source.path())
