"""A stateful machine: a store driven at random, crashed at random, against a plain list of what it was told.

Every step is noted in a `LogHistory` before and after, and every crash is judged by it (what that means is
written there). ``STRATALOG_MACHINE=n`` runs n examples instead of the few of a normal run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stratalog.errors import OffsetOutOfRangeError
from stratalog.testing import SimulatedCrash
from tests.crash.driver import Driver, Log, last_batches, open_transactions

EXAMPLES = int(os.environ.get("STRATALOG_MACHINE", "150"))
STEPS = 60

LOGS: tuple[Log, ...] = (("m", 0), ("m", 1))
logs = st.sampled_from(LOGS)
keys = st.sampled_from([None, b"a", b"b", b"c"])
sizes = st.integers(10, 150)
modes = st.sampled_from(["kill", "drop", "torn", "reorder"])
seeds = st.integers(0, 2**32)
IDEMPOTENT, TRANSACTIONAL = (1, 2), (11, 12)


class Machine(RuleBasedStateMachine):
    """Each rule is something a program may do to a store, or an accident."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.planned: tuple[str, int] = ("kill", 0)

    @initialize(waits=st.booleans(), keyed=st.booleans(), segment_bytes=st.sampled_from([600, 1500]))
    def begin(self, waits: bool, keyed: bool, segment_bytes: int) -> None:
        self.driver.open()
        config: dict[str, object] = {"flush_messages": 1} if waits else {}
        self.driver.create_topic(
            "m",
            2,
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            key_index_enable=keyed,
            file_delete_delay_ms=1000,
            segment_ms=3_600_000,
            retention_ms=-1,
            **config,
        )

    def do(self, step: Callable[[], object]) -> None:
        """A step that a planned crash may cut short."""
        try:
            step()
        except SimulatedCrash:
            self.boot(*self.planned)

    def boot(self, mode: str, seed: int) -> None:
        """Go on with what a crash of this kind leaves."""
        rng = random.Random(seed)
        self.driver = self.driver.branch(self.driver.fs.survivor(mode, rng), power_cut=mode != "kill")  # type: ignore[arg-type]
        self.driver.restart()
        self.driver.check_doors(arrow=False)

    # -- writing ---------------------------------------------------------------------------------------

    @rule(log=logs, key=keys, size=sizes, sync=st.booleans(), lag_ms=st.integers(0, 5000))
    def append(self, log: Log, key: bytes | None, size: int, sync: bool, lag_ms: int) -> None:
        self.do(lambda: self.driver.append(log, self.driver.fact(log, key, size, lag_ms), sync=sync))

    @rule(log=logs, key=keys, size=sizes, count=st.integers(1, 12), sync=st.booleans(), arrow=st.booleans())
    def append_many(
        self, log: Log, key: bytes | None, size: int, count: int, sync: bool, arrow: bool
    ) -> None:
        facts = [self.driver.fact(log, key, size, lag_ms=at * 3) for at in range(count)]
        self.do(lambda: self.driver.append_many(log, facts, sync=sync, arrow=arrow))

    @rule(
        log=logs,
        key=keys,
        count=st.integers(1, 3),
        producer=st.sampled_from(IDEMPOTENT + TRANSACTIONAL),
        sync=st.booleans(),
    )
    def append_batch(self, log: Log, key: bytes | None, count: int, producer: int, sync: bool) -> None:
        last = last_batches(self.driver.raw(log)).get(producer)
        if last is None and self.driver.logs[log].start:
            return  # deleted with the head; what the log still knows of it is its own business
        sequence = 0 if last is None else last.header.last_sequence + 1
        facts = [self.driver.fact(log, key) for _ in range(count)]
        self.do(
            lambda: self.driver.append_batch(
                log, facts, producer, sequence, transactional=producer in TRANSACTIONAL, sync=sync
            )
        )

    @rule(log=logs)
    def send_again(self, log: Log) -> None:
        for batch in last_batches(self.driver.raw(log)).values():
            self.do(lambda batch=batch: self.driver.resend(log, batch))  # type: ignore[misc]

    @rule(log=logs, commit=st.booleans(), sync=st.booleans())
    def end_transaction(self, log: Log, commit: bool, sync: bool) -> None:
        still_open = open_transactions(self.driver.raw(log))
        if still_open:
            self.do(lambda: self.driver.end_transaction(log, still_open[0], commit=commit, sync=sync))

    # -- the rest of its life --------------------------------------------------------------------------

    @rule(log=logs)
    def roll(self, log: Log) -> None:
        self.do(lambda: self.driver.roll(log))

    @rule(log=logs)
    def flush(self, log: Log) -> None:
        self.do(lambda: self.driver.flush(log))

    @rule(ms=st.sampled_from([1, 50, 1100, 61_000, 3_700_000]))
    def tick(self, ms: int) -> None:
        self.do(lambda: self.driver.tick(ms))

    @rule(log=logs, share=st.floats(0, 1))
    def delete_head(self, log: Log, share: float) -> None:
        topic = self.driver.topic(log)
        start, end = topic.log_start_offset(log[1]), topic.high_watermark(log[1])
        before = start + int((end - start) * share)
        if before > start and not open_transactions(self.driver.raw(log)):
            self.do(lambda: self.driver.delete_records(log, before))

    @rule(
        change=st.sampled_from(
            [
                {"segment_bytes": 500},
                {"segment_bytes": 2000},
                {"key_index_enable": True},
                {"key_index_enable": False},
                {"flush_messages": 1},
                {"flush_messages": 3},
                {"compression_type": "lz4"},
                {"compression_type": "producer"},
            ]
        )
    )
    def alter(self, change: dict[str, object]) -> None:
        self.do(lambda: self.driver.alter_topic("m", **change))

    @rule()
    def stop_and_start(self) -> None:
        self.do(self._stop_and_start)

    def _stop_and_start(self) -> None:
        self.driver.close()
        self.driver.restart()

    # -- accidents -------------------------------------------------------------------------------------

    @rule(mode=modes, seed=seeds)
    def crash(self, mode: str, seed: int) -> None:
        self.driver.fs.crash()
        self.boot(mode, seed)

    @precondition(lambda self: not self.driver.fs._calls_left)
    @rule(calls=st.integers(1, 25), half=st.booleans(), mode=modes, seed=seeds)
    def plan_crash(self, calls: int, half: bool, mode: str, seed: int) -> None:
        self.planned = (mode, seed)
        self.driver.fs.crash_at(calls, half=half)

    # -- reading ---------------------------------------------------------------------------------------

    @rule(arrow=st.booleans())
    def read(self, arrow: bool) -> None:
        self.do(lambda: self.driver.check_doors(arrow=arrow))

    @rule()
    def read_beside(self) -> None:
        self.do(self.driver.check_follower)

    @rule(log=logs, away=st.integers(1, 50))
    def read_outside(self, log: Log, away: int) -> None:
        topic = self.driver.topic(log)
        end = topic.high_watermark(log[1])
        with pytest.raises(OffsetOutOfRangeError) as caught:
            topic.read(log[1], end + away)
        assert (caught.value.first, caught.value.end) == (topic.log_start_offset(log[1]), end)

    def teardown(self) -> None:
        if self.driver.store is None:
            return
        self.driver.fs.crash_at(1_000_000)
        self.driver.check_doors()
        self.driver.close()
        self.driver.restart()
        self.driver.check_doors()
        self.driver.close()


def test_the_log_keeps_its_promises() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_reader_beside_goes_on_after_a_power_cut_took_the_tail_of_a_change() -> None:
    """Found by the machine: by the tail acknowledgements wait for the disk, by the settings no longer."""
    machine, log = Machine(), ("m", 1)
    machine.begin(waits=True, keyed=False, segment_bytes=600)
    machine.append_batch(log=log, key=b"b", count=3, producer=2, sync=True)
    machine.delete_head(log=log, share=0.8664785530958479)
    machine.append_batch(log=("m", 0), key=None, count=1, producer=12, sync=False)
    machine.roll(log=log)
    machine.crash(mode="kill", seed=142367933)
    machine.append_batch(log=log, key=b"a", count=3, producer=2, sync=True)
    machine.delete_head(log=log, share=0.7408487287398869)
    machine.roll(log=log)
    machine.crash(mode="torn", seed=383149)
    machine.roll(log=log)
    machine.crash(mode="reorder", seed=565)
    machine.alter(change={"flush_messages": 3})
    machine.crash(mode="drop", seed=1554)
    machine.read_beside()
    machine.teardown()
