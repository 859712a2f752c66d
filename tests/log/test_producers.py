"""Producer state by Kafka's rules: retries, fencing, sequences, transactions, snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.write.producers import (
    MAX_SEQUENCE,
    CompletedTxn,
    Duplicate,
    MarkerType,
    ProducerBatch,
    ProducerState,
    increment_sequence,
)


def data(
    offset: int, sequence: int, *, n: int = 1, pid: int = 7, epoch: int = 0, txn: bool = False, ts: int = 0
) -> ProducerBatch:
    last_sequence = increment_sequence(sequence, n - 1)
    return ProducerBatch(pid, epoch, sequence, last_sequence, offset, offset + n - 1, ts, transactional=txn)


def marker(
    offset: int, kind: MarkerType, *, pid: int = 7, epoch: int = 0, coordinator: int = 0, ts: int = 0
) -> ProducerBatch:
    return ProducerBatch(pid, epoch, -1, -1, offset, offset, ts, True, True, kind, coordinator)


def state_after(*batches: ProducerBatch) -> ProducerState:
    state = ProducerState()
    for batch in batches:
        state.validate(batch)
        state.update(batch)
    return state


# -- retries and sequences ------------------------------------------------------------------------------


def test_a_retry_is_found_among_the_last_five() -> None:
    state = state_after(*(data(10 * i, 10 * i, n=10, ts=i) for i in range(6)))
    assert state.find_duplicate(data(99, 0, n=10)) is None, "six batches ago"
    for i in range(1, 6):
        assert state.find_duplicate(data(99, 10 * i, n=10)) == Duplicate(10 * i, 10 * i + 9, i)
    assert state.find_duplicate(data(99, 50, n=9)) is None, "the range must be the same"
    assert state.find_duplicate(data(99, 50, n=10, epoch=1)) is None
    assert state.find_duplicate(data(99, 50, n=10, pid=8)) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.validate(data(99, 0, n=10))


def test_sequences_must_follow() -> None:
    state = state_after(data(0, 0, n=3))
    state.validate(data(3, 3))
    for wrong in (0, 2, 4, MAX_SEQUENCE):
        with pytest.raises(OutOfOrderSequenceError, match="cannot follow 2"):
            state.validate(data(3, wrong))


def test_sequences_start_over_after_the_last() -> None:
    state = state_after(data(0, MAX_SEQUENCE - 1, n=2))
    state.validate(data(2, 0))
    state = state_after(data(0, MAX_SEQUENCE - 1, n=5))
    assert state.to_entries()[0].last_sequence == 2
    assert state.find_duplicate(data(9, MAX_SEQUENCE - 1, n=5)) == Duplicate(0, 4, 0)
    state.validate(data(5, 3))


def test_an_unknown_producer_may_begin_anywhere() -> None:
    state_after(data(0, 1234))


def test_a_new_epoch_begins_at_zero() -> None:
    state = state_after(data(0, 0, n=3))
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 1"):
        state.validate(data(3, 3, epoch=1))
    state.update(data(3, 0, epoch=1))
    assert state.find_duplicate(data(9, 0, n=3)) is None
    with pytest.raises(InvalidProducerEpochError, match="fenced"):
        state.validate(data(4, 3, epoch=0))


def test_clients_need_a_sequence_and_coordinators_do_not() -> None:
    state = ProducerState()
    with pytest.raises(InvalidRecordError, match="no sequence"):
        state.validate(data(0, -1))
    state.validate(data(0, -1, txn=True), origin="coordinator")
    state.update(data(0, -1, txn=True, n=3))
    assert state.to_entries()[0].last_sequence == -1
    assert state.find_duplicate(data(9, -1, n=3)) is None
    state.validate(data(3, -1, txn=True), origin="coordinator")


def test_batches_without_a_producer_are_nobodys() -> None:
    state = state_after(data(0, -1, pid=-1), data(1, -1, pid=-1))
    assert len(state) == 0
    assert len(state_after(data(0, 0))) == 1


def test_several_batches_of_one_append_are_judged_in_order_and_change_nothing() -> None:
    state = state_after(data(0, 0))
    before = state.to_entries()
    state.validate(data(1, 1, n=2), data(3, 3, pid=8), data(4, 3))
    with pytest.raises(OutOfOrderSequenceError):
        state.validate(data(1, 1, n=2), data(3, 2))
    with pytest.raises(InvalidTxnStateError):
        state.validate(data(1, 1, txn=True), data(2, 2))
    state.validate(data(1, 1, txn=True), marker(2, "commit"), data(3, 2))
    assert state.to_entries() == before
    assert len(state) == 1


# -- transactions ----------------------------------------------------------------------------------------


def test_a_committed_transaction() -> None:
    state = state_after(data(0, 0), data(1, 1, txn=True, n=2), data(3, 3, txn=True))
    assert state.first_unstable_offset == 1
    assert state.last_stable_offset(4) == 1
    assert state.last_stable_offset(1) == 1
    assert state.last_stable_offset(0) == 0
    assert state.open_txns() == {1: 7}
    state.validate(marker(4, "commit"))
    assert state.update(marker(4, "commit")) == CompletedTxn(7, 1, 4, aborted=False, last_stable_offset=5)
    assert state.last_stable_offset(4) == 1, "the high watermark has not passed the marker"
    assert state.last_stable_offset(5) == 5
    assert state.first_unstable_offset is None
    state.validate(data(5, 4))


def test_an_abort_names_the_last_stable_offset_of_the_others() -> None:
    state = state_after(data(0, 0, pid=1, txn=True), data(1, 0, pid=2, txn=True), data(2, 0, pid=3, txn=True))
    first = state.update(marker(3, "abort", pid=2))
    assert first is not None
    assert first.aborted_txn() == AbortedTxn(2, 1, 3, 0)
    second = state.update(marker(4, "abort", pid=1))
    assert second is not None
    assert second.aborted_txn() == AbortedTxn(1, 0, 4, 2)
    third = state.complete_txn(marker(5, "abort", pid=3))
    assert third is not None
    assert third.aborted_txn() == AbortedTxn(3, 2, 5, 6)


def test_a_marker_without_a_transaction_is_remembered_and_completes_nothing() -> None:
    state = ProducerState()
    state.validate(marker(0, "abort", epoch=3, coordinator=2))
    assert state.update(marker(0, "abort", epoch=3, coordinator=2, ts=55)) is None
    assert state.to_entries() == [ProducerEntry(7, 3, -1, -1, 0, 55, 2, -1)]
    assert state.last_stable_offset(1) == 1


def test_a_marker_keeps_sequences_in_its_epoch_and_ends_them_in_the_next() -> None:
    state = state_after(data(0, 0, txn=True), marker(1, "commit"))
    assert state.find_duplicate(data(9, 0)) == Duplicate(0, 0, 0)
    state.validate(data(2, 1, txn=True))
    state.update(marker(2, "commit", epoch=1))  # KIP-890: the epoch goes up with every transaction
    assert state.find_duplicate(data(9, 0)) is None
    state.validate(data(3, 0, epoch=1, txn=True))
    with pytest.raises(OutOfOrderSequenceError):
        state.validate(data(3, 1, epoch=1, txn=True))


def test_a_sequence_from_before_the_marker_is_no_retry() -> None:
    """librdkafka gives an unanswered batch up with its transaction and uses the sequence again (Kafka answers
    that it has it: an acknowledged record that is not there)."""
    state = state_after(data(0, 0, txn=True), data(1, 1, txn=True), marker(2, "abort"))
    assert state.find_duplicate(data(9, 1, txn=True)) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.validate(data(3, 1, txn=True))
    state.update(data(3, 2, txn=True))
    assert state.find_duplicate(data(9, 1, txn=True)) is None
    assert state.find_duplicate(data(9, 2, txn=True)) == Duplicate(3, 3, 0)


def test_plain_batches_do_not_fit_into_a_transaction() -> None:
    state = state_after(data(0, 0, txn=True))
    with pytest.raises(InvalidTxnStateError, match="open since offset 0"):
        state.validate(data(1, 1))


def test_old_markers_are_refused() -> None:
    state = state_after(data(0, 0, epoch=2, txn=True), marker(1, "commit", epoch=2, coordinator=5))
    with pytest.raises(InvalidProducerEpochError):
        state.validate(marker(2, "abort", epoch=1, coordinator=5))
    with pytest.raises(InvalidTxnStateError, match="coordinator epoch 4"):
        state.validate(marker(2, "abort", epoch=2, coordinator=4))


def test_an_empty_control_batch_changes_nothing() -> None:
    state = state_after(data(0, 0, txn=True))
    before = state.to_entries()
    husk = marker(1, "abort")._replace(marker=None)
    state.validate(husk)
    assert state.update(husk) is None
    assert state.complete_txn(husk) is None
    assert state.to_entries() == before


def test_replay_takes_what_the_log_holds() -> None:
    state = state_after(data(0, 0, epoch=4, txn=True))
    state.update(data(1, 17, epoch=3), replay=True)
    assert state.update(marker(2, "abort", epoch=2), replay=True) == CompletedTxn(7, 0, 2, True, 3)
    assert state.to_entries() == [ProducerEntry(7, 2, -1, -1, 0, 0, 0, -1)]


# -- time, head, snapshots -------------------------------------------------------------------------------


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    state = ProducerState(expiration_ms=100)
    for batch in (data(0, 0, pid=1, ts=50), data(1, 0, pid=2, ts=51), data(2, 0, pid=3, ts=0, txn=True)):
        state.update(batch)
    assert state.expire(149) == []
    assert state.expire(150) == [1]
    assert state.expire(10_000) == [2]
    assert [entry.producer_id for entry in state.to_entries()] == [3]


def test_the_head_goes() -> None:
    state = state_after(
        data(0, 0, pid=1, txn=True), data(1, 0, txn=True), marker(2, "abort"), data(3, 0, pid=9)
    )
    state.truncate_head(3)
    assert state.first_unstable_offset == 3, "open below the start: unstable from the start on"
    assert len(state) == 3, "producers stay known"
    state.update(marker(4, "commit", pid=1))
    assert state.last_stable_offset(5) == 5


def test_snapshots_hold_the_last_batch_of_each() -> None:
    state = state_after(
        data(0, 0, n=4, ts=5), data(4, 4, n=2, ts=3), data(6, 0, pid=3, epoch=2, txn=True, ts=9)
    )
    entries = state.to_entries()
    assert entries == [ProducerEntry(3, 2, 0, 6, 0, 9, -1, 6), ProducerEntry(7, 0, 5, 5, 1, 3, -1, -1)]
    again = ProducerState.from_entries(reversed(entries))
    assert again.to_entries() == entries
    assert again.find_duplicate(data(9, 4, n=2)) == Duplicate(4, 5, 3)
    assert again.find_duplicate(data(9, 0, n=4)) is None
    assert again.first_unstable_offset == 6


# -- any traffic -----------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # producer
        st.sampled_from(["plain", "txn", "txn", "commit", "abort", "bump"]),
        st.integers(1, 4),  # records
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 60), st.integers(0, 60))
def test_live_and_replayed_agree_with_a_plain_account(
    steps: list[tuple[int, str, int]], cut: int, lag: int
) -> None:
    live = ProducerState()
    log: list[ProducerBatch] = []
    offset = 0
    epochs = dict.fromkeys(range(4), 0)
    sequences = dict.fromkeys(range(4), 0)
    open_since: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    for pid, what, n in steps:
        if what in ("commit", "abort"):
            batch = marker(offset, "commit" if what == "commit" else "abort", pid=pid, epoch=epochs[pid])
        else:
            if what == "bump":
                epochs[pid], sequences[pid] = epochs[pid] + 1, 0
            txn = what == "txn" or pid in open_since
            batch = data(offset, sequences[pid], n=n, pid=pid, epoch=epochs[pid], txn=txn, ts=offset)
        live.validate(batch)
        assert live.find_duplicate(batch) is None
        completed = live.update(batch)
        assert (completed is not None) is (batch.control and pid in open_since)
        if batch.control and pid in open_since:
            first = open_since.pop(pid)
            ended.append((first, offset))
            assert completed == CompletedTxn(
                pid, first, offset, what == "abort", min(open_since.values(), default=offset + 1)
            )
        elif not batch.control:
            assert live.find_duplicate(batch) == Duplicate(offset, batch.last_offset, offset)
            sequences[pid] += n
            if batch.transactional:
                open_since.setdefault(pid, offset)
        log.append(batch)
        offset = batch.last_offset + 1
    high_watermark = max(0, offset - lag)
    unstable = [*open_since.values(), *(first for first, last in ended if last >= high_watermark)]
    assert live.last_stable_offset(high_watermark) == min([high_watermark, *unstable])
    assert live.last_stable_offset(offset) == min([offset, *open_since.values()])

    half = ProducerState()
    for batch in log[:cut]:
        half.update(batch, replay=True)
    resumed = ProducerState.from_entries(half.to_entries())
    for batch in log[cut:]:
        resumed.update(batch, replay=True)
    assert resumed.to_entries() == live.to_entries()
    assert resumed.open_txns() == live.open_txns()
    assert resumed.last_stable_offset(offset) == live.last_stable_offset(offset)
