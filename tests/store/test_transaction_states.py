"""The pure life of a transaction: in any order of events no epoch has two owners and no outcome changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.errors import InvalidProducerEpochError, ProducerError
from stratalog.store.transactions import state as states
from stratalog.store.transactions.state import (
    FIRST,
    LAST_EPOCH,
    SECOND,
    Status,
    TransactionState,
)

AT = ("orders", 0)
ENDED = (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
CLIENTS = st.integers(0, 1)
PROGRAMS = -1
"""Who owns the epochs of programs."""
VERSIONS = st.sampled_from([FIRST, SECOND])


def state_of(epoch: int, status: Status = Status.EMPTY, version: int = FIRST) -> TransactionState:
    partitions = frozenset([AT] if status in (Status.ONGOING, Status.PREPARE_COMMIT) else [])
    return TransactionState("t", 5, epoch, 60_000, status, partitions, 1, 1, version)


def fenced(state: TransactionState) -> TransactionState:
    return states.complete(states.fence(state, 2), 3)


# -- one by one ----------------------------------------------------------------------------------------------


def test_the_abort_of_the_last_epoch_is_no_end_of_the_client() -> None:
    """It was told the epoch of the fence, and could go on with that."""
    found = fenced(state_of(LAST_EPOCH, Status.ONGOING, SECOND))
    assert found.epoch == LAST_EPOCH + 1
    assert not states.was_ended(found, 5, LAST_EPOCH, SECOND, commit=False)
    with pytest.raises(InvalidProducerEpochError):
        states.check_client(found, 5, LAST_EPOCH)


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_a_client_never_gets_the_epoch_that_only_fences(version: int) -> None:
    found = fenced(state_of(LAST_EPOCH, Status.ONGOING, version))
    for _ in range(2):  # the answer was lost
        found = states.init(found, "t", 6, 60_000, 4, (5, LAST_EPOCH))
        assert (found.producer_id, found.epoch) == (6, 0)


def test_another_client_takes_the_id_when_its_epochs_are_used_up() -> None:
    """The one before asked to go on and got the producer id and epoch of the other."""
    found = states.init(state_of(LAST_EPOCH), "t", 6, 60_000, 2)
    assert (found.producer_id, found.epoch) == (6, 0)
    with pytest.raises(InvalidProducerEpochError):
        states.init(found, "t", 7, 60_000, 3, (5, LAST_EPOCH))
    with pytest.raises(ProducerError):
        states.check_client(found, 5, LAST_EPOCH)


def test_an_end_of_another_client_is_not_told_to_a_zombie() -> None:
    """A client of the second version took the end of its successor, of the first, for its own."""
    other = states.init(state_of(3, version=SECOND), "t", -1, 60_000, 2)
    other = states.add(other, [AT], 3, FIRST)
    other = states.complete(states.prepare(other, commit=True, now_ms=4, version=FIRST), 5)
    assert not states.was_ended(other, 5, 3, SECOND, commit=True)
    assert states.was_ended(other, 5, 4, FIRST, commit=True)


# -- any events ----------------------------------------------------------------------------------------------


class Life(RuleBasedStateMachine):
    """One transactional id with two clients and programs, near the end of its epochs.

    The steps come in the coordinator's order. A crash may come between any two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: TransactionState | None = None
        self.record: tuple[bytes, bytes] | None = None
        self.clients = [(-1, -1)] * 2
        """The producer id and epoch that each one was told."""
        self.owners: dict[tuple[int, int], int] = {}
        self.now_ms = self.last_id = 0

    @initialize(epoch=st.sampled_from([-1, LAST_EPOCH - 2, LAST_EPOCH - 1]))
    def begin(self, epoch: int) -> None:
        if epoch >= 0:
            self.write(replace(state_of(epoch), producer_id=0))

    def fresh(self) -> int:
        self.last_id += 1
        return self.last_id

    def write(self, made: TransactionState) -> None:
        before, self.known = self.known, made
        if before is not None:
            assert (made.producer_id, made.epoch) >= (before.producer_id, before.epoch)
            if before.prepared:
                assert (made.committing, made.status in ENDED) == (before.committing, True)
        assert made.status not in ENDED or not made.partitions
        self.record = states.pack_key(made.id), states.pack(made)

    def own(self, who: int, made: TransactionState, *, hears: bool) -> None:
        mine = made.producer_id, made.epoch
        assert made.epoch <= LAST_EPOCH
        assert self.owners.setdefault(mine, who) == who, "another one has this epoch"
        if hears:
            self.clients[who] = mine

    def settle(self) -> None:
        if self.known is not None and self.known.status == Status.ONGOING:
            self.write(states.fence(self.known, self.now_ms))
            self.complete()

    def complete(self) -> None:
        assert self.known is not None
        self.write(states.complete(self.known, self.now_ms))

    @rule()
    def crash(self) -> None:
        """What is read again is what was written; only an unheard answer's epoch is forgotten."""
        if self.record is not None and self.known is not None:
            found = states.parse(*self.record)
            assert found == replace(self.known, retry_epoch=-1)
            self.known = found

    @rule(late=st.booleans())
    def time_out(self, late: bool) -> None:
        self.now_ms += 60_000 if late else 10_000
        if self.known is not None and self.known.expired(self.now_ms):
            self.settle()

    @rule(who=CLIENTS, goes_on=st.booleans(), hears=st.booleans())
    def init(self, who: int, goes_on: bool, hears: bool) -> None:
        expected = self.clients[who] if goes_on and self.clients[who][0] >= 0 else None
        try:
            if self.known is not None and expected is not None:
                states.asks_again(self.known, expected)
            self.settle()
            fresh = self.fresh() if states.needs_id(self.known) else -1
            made = states.init(self.known, "t", fresh, 60_000, self.now_ms, expected)
        except InvalidProducerEpochError:
            return
        self.write(made)
        self.own(who, made, hears=hears)

    @rule(who=CLIENTS, version=VERSIONS)
    def add(self, who: int, version: int) -> None:
        try:
            state = states.check_client(self.known, *self.clients[who])
        except ProducerError:
            return
        self.own(who, state, hears=True)
        self.write(states.add(state, [AT], self.now_ms, version))

    @rule(who=CLIENTS, commit=st.booleans(), version=VERSIONS, cut=st.booleans(), hears=st.booleans())
    def end(self, who: int, commit: bool, version: int, cut: bool, hears: bool) -> None:
        known, mine = self.known, self.clients[who]
        try:
            if known is not None and states.was_ended(known, *mine, version, commit=commit):
                assert known.committing == commit
                self.own(who, known, hears=hears and version == SECOND)
                return
            state = states.check_client(known, *mine)
            fresh = self.fresh() if version == SECOND and states.needs_id(state) else -1
            self.write(
                states.prepare(state, commit=commit, now_ms=self.now_ms, version=version, fresh_id=fresh)
            )
        except ProducerError:
            return
        if cut:
            self.crash()
        self.complete()
        assert self.known is not None
        self.own(who, self.known, hears=hears and version == SECOND)

    @rule(commit=st.booleans())
    def run_program(self, commit: bool) -> None:
        self.settle()
        fresh = self.fresh() if states.needs_id(self.known) else -1
        made = states.begin(self.known, "t", fresh, 60_000)
        assert (made.producer_id, made.epoch) not in self.owners
        self.owners[made.producer_id, made.epoch] = PROGRAMS
        self.write(states.add(made, [AT], self.now_ms))
        assert self.known is not None
        self.write(states.prepare(self.known, commit=commit, now_ms=self.now_ms))
        self.complete()

    @invariant()
    def a_fenced_client_can_do_nothing(self) -> None:
        """Those that may go on have the epoch themselves."""
        for who, mine in enumerate(self.clients):
            if self.known is not None and mine == (self.known.producer_id, self.known.epoch):
                assert self.owners.get(mine) == who


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
