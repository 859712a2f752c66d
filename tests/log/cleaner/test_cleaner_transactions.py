"""Transactions and producers under compaction: what readers of committed data see never changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.format.batch.header_scan import BatchHeader
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.check.verify import verify_partition
from stratalog.log.clean.rules import CleanedTransactions
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.reader import read_records
from stratalog.testing import committed
from tests.log.cleaner.support import Log, Seen, compacted, latest

DAY_MS = 86_400_000


def committed_now(log: Log) -> list[Seen]:
    found = read_records(log.writer, 0, isolation="read_committed")
    return [Seen(each.offset, each.key, each.value) for each in found]


def markers(log: Log) -> list[tuple[int, str]]:
    return [(batch.header.base_offset, batch.marker) for batch in log.raw() if batch.marker is not None]


def test_aborted_data_goes_and_its_marker_follows() -> None:
    log = Log(compacted(delete_retention_ms=DAY_MS))
    log.put((b"a", b"kept"))
    log.produce(7, (b"a", b"aborted"), (b"b", b"aborted"), transactional=True)
    marker = log.end(7, commit=False)
    log.produce(7, (b"c", b"committed"), transactional=True)
    log.end(7, commit=True)
    log.put((b"d", b"1"))
    log.roll()
    log.clean()
    assert log.records() == [Seen(0, b"a", b"kept"), Seen(4, b"c", b"committed"), Seen(6, b"d", b"1")]
    assert markers(log) == [(marker, "abort"), (5, "commit")]
    assert [txn.last_offset for txn in log.writer.aborted(0, 100)] == [marker]
    log.clean()
    assert log.writer.aborted(0, 100) == [], "no data of it is left"
    assert markers(log) == [(marker, "abort"), (5, "commit")]
    log.clock.advance(DAY_MS)
    log.clean()
    assert markers(log) == [(5, "commit")], "its horizon has passed; the other still has data"
    log.reopen()
    assert committed_now(log) == log.records()


def test_nothing_past_the_last_stable_offset() -> None:
    log = Log()
    log.puts([(b"a", b"1"), (b"a", b"2")])
    log.roll()
    log.produce(7, (b"a", b"open"), transactional=True)
    log.puts([(b"a", b"3"), (b"b", b"1")])
    log.roll()
    log.puts([(b"a", b"4")])
    log.roll()
    log.clean()
    assert [record.offset for record in log.records()] == [1, 2, 3, 4, 5]
    assert log.saved == [2]
    log.end(7, commit=False)
    log.roll()
    log.clean()
    assert [record.offset for record in log.records()] == [4, 5]


def test_a_transaction_across_segments_and_passes() -> None:
    log = Log(compacted(segment_bytes=400))
    log.puts([(b"k%d" % n, b"old") for n in range(6)])
    for n in range(6):
        log.produce(7, (b"k%d" % n, b"aborted" * 5), transactional=True)
        log.put((b"x%d" % n, b"plain" * 5))
    log.end(7, commit=False)
    log.roll()
    wanted = latest(committed_now(log), log.writer.next_offset)
    report = log.clean(memory_bytes=160)
    assert report.passes > 2
    assert committed_now(log) == wanted
    assert not [record for record in log.records() if record.value == b"aborted" * 5]


def test_the_last_batch_of_every_active_producer_stays() -> None:
    log = Log()
    log.produce(1, (b"a", b"1"))
    log.produce(1, (b"a", b"2"), (b"b", b"2"))
    log.produce(2, (b"a", b"3"))
    log.puts([(b"a", b"4"), (b"b", b"4")])
    log.roll()
    log.clean()
    assert [record.offset for record in log.records()] == [4, 5]
    kept = [(batch.header.base_offset, batch.header.last_offset, batch.header.count) for batch in log.raw()]
    assert kept == [(1, 2, 0), (3, 3, 0), (4, 4, 1), (5, 5, 1)]
    for path in log.files(".snapshot"):
        log.fs.remove(f"{log.directory}/{path}")
    log.reopen()
    assert log.produce(1, (b"c", b"5")) == 6, "the sequence goes on"
    assert log.produce(2, (b"c", b"6")) == 7


def test_a_marker_that_alone_tells_a_producers_epoch_stays() -> None:
    log = Log(compacted(delete_retention_ms=0))
    marker = log.end(9, commit=True)
    log.put((b"a", b"1"))
    log.roll()
    for _ in range(3):
        log.clean()
        log.clock.advance(1)
    headers = [batch.header for batch in log.raw() if batch.header.is_control]
    assert [(header.base_offset, header.count) for header in headers] == [(marker, 0)]
    log.clock.advance(2 * DAY_MS)
    log.writer.producers.expire(log.clock.now_ms())
    log.clean()
    assert [batch.header.base_offset for batch in log.raw()] == [1]


def header(offset: int, producer_id: int, *, control: bool = False, count: int = 1) -> BatchHeader:
    attributes = 0x10 | (0x20 if control else 0)
    return BatchHeader(0, 70, offset, offset, count, 0, attributes, 0, 0, 0, 0, producer_id, 0, 0)


def test_nothing_is_concluded_past_what_was_not_seen() -> None:
    txn = AbortedTxn(7, 10, 20, 21)
    seen = CleanedTransactions([txn])
    assert seen.may_go(header(20, 7, control=True), "abort"), "none of its data was met"
    unsure = CleanedTransactions([txn])
    unsure.pass_over()
    assert not unsure.may_go(header(20, 7, control=True), "abort")
    assert unsure.entries == [txn]
    assert not unsure.may_go(header(30, 8, control=True), "commit")
    below = CleanedTransactions([txn], unseen_below=15)
    assert not below.may_go(header(20, 7, control=True), "abort")
    assert CleanedTransactions([txn], unseen_below=5).may_go(header(20, 7, control=True), "abort")


def test_a_transaction_whose_marker_was_not_seen_ends_at_it() -> None:
    seen = CleanedTransactions([AbortedTxn(7, 10, 20, 21)])
    assert seen.is_aborted(header(10, 7))
    assert not seen.is_aborted(header(12, 8))
    assert not seen.is_aborted(header(25, 7)), "another transaction by then"
    assert not seen.may_go(header(26, 7, control=True), "commit")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), memory=st.sampled_from([300, 1000, 1 << 20]))
def test_any_mixture_of_transactions(seed: int, memory: int) -> None:
    """What is committed is compacted as if the rest had never been there, whatever the passes."""
    rng = random.Random(seed)
    log = Log(compacted(segment_bytes=rng.choice([500, 1500])))
    busy: set[int] = set()
    for _ in range(rng.randint(5, 60)):
        key, value = b"k%d" % rng.randrange(6), rng.choice([None, b"v", b"w" * 20])
        producer = rng.randrange(1, 4)
        match rng.randrange(5):
            case 0 | 1:
                log.produce(producer, (key, value), (b"own", b"x"), transactional=True)
                busy.add(producer)
            case 2 if producer in busy:
                log.end(producer, commit=rng.random() < 0.5)
                busy.discard(producer)
            case 3:
                log.put((key, value))
            case _:
                log.roll()
    for producer in busy:
        log.end(producer, commit=rng.random() < 0.5)
    log.roll()
    everything = [Seen(each.offset, each.key, each.value) for each in committed(log.raw())]
    wanted = latest(everything, log.writer.next_offset)
    assert committed_now(log) == everything
    for _ in range(2):
        log.clean(memory_bytes=memory)
        assert committed_now(log) == wanted
        log.reopen()
        assert committed_now(log) == wanted


@pytest.mark.parametrize("snapshots", [True, False], ids=["with snapshots", "without"])
def test_a_transaction_that_lost_its_first_batch_to_the_cleaner_is_no_damage(snapshots: bool) -> None:
    """The transaction index of a later segment names the offset where the transaction began."""
    log = Log(compacted())
    log.produce(7, (b"k", b"1"), (b"l", b"1"), transactional=True)
    log.end(7, commit=True)
    log.produce(7, (b"k", b"2"), transactional=True)
    log.put((b"k", b"3"))
    log.roll()
    log.produce(7, (b"m", b"1"), transactional=True)
    log.end(7, commit=False)
    log.put((b"n", b"1"))
    log.roll()
    log.clean(end=log.bases()[1])
    if not snapshots:
        for name in log.files(".snapshot"):
            log.context.fs.remove(f"{log.directory}/{name}")
    damages = verify_partition(log.writer).damages
    assert [damage for damage in damages if damage.path.endswith("txnindex")] == []


@pytest.mark.parametrize("seed", range(20))
def test_healthy_logs_of_transactions_stay_healthy(seed: int) -> None:
    """Random transactions, cleaned between segments; the seed replays a failure."""
    rng = random.Random(seed)
    log = Log(compacted())
    for _ in range(rng.randint(3, 7)):
        for _ in range(rng.randint(1, 4)):
            producer = rng.randint(1, 3)
            pairs = [(b"k%d" % rng.randint(0, 3), rng.choice([b"v", None])) for _ in range(rng.randint(1, 3))]
            if rng.random() < 0.3:
                log.put(*pairs)
                continue
            log.produce(producer, *pairs, transactional=True)
            if rng.random() < 0.8:
                log.end(producer, commit=rng.random() < 0.5)
        log.roll()
        if rng.random() < 0.6:
            log.clean()
    assert verify_partition(log.writer).damages == ()
    assert verify_partition(PartitionFollower(log.writer.location)).damages == ()
