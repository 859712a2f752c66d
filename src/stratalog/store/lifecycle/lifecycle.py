"""Carrying out what the policies decide: retention, compaction, archiving; by hand or by the janitor.

Every round looks at each partition once, turns what it sees into steps by a pure function (`planning`) and
carries the due ones out, in order; a preview stops before that. Long work holds no lock of a partition:
it claims it, stops when another thread wants it, and ends when the store closes.

The janitor of an open store begins rounds when they are due, by the monotonic clock. They wait for disks and
object stores, so none runs on the background thread: retention has a thread for its time, compaction and
archiving have another. Rounds of one kind never overlap.

Crash policy: each step is safe by itself (see `log.clean.swap`, `log.segment.deletion`, `archive`). Other
state of this module (how much time cleaning took, what the clocks did) starts fresh with the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.errors import ClosedError, ConfigError, StorageError, StratalogError, UnknownTopicError
from stratalog.fs import RealFileSystem
from stratalog.log.clean import CleanReport, DuplicateEstimates, Pace, clean
from stratalog.log.context import logger
from stratalog.log.policy.cleaning import Backoff, Cleanable, Effort
from stratalog.log.policy.clock import ClockGuard
from stratalog.log.policy.preview import Step
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.admin.control import Progress
from stratalog.store.background import Troubles
from stratalog.store.catalog import TopicEntry, View
from stratalog.store.lifecycle import remote_compaction
from stratalog.store.lifecycle.children import ChildProcess, Children
from stratalog.store.lifecycle.planning import (
    Situation,
    cleanable_of,
    compact_plan,
    facts_of,
    plan,
    retain_steps,
)
from stratalog.store.lifecycle.remote_compaction import Loans, has_room
from stratalog.store.lifecycle.reports import LifecycleReport
from stratalog.store.moving import missing

if TYPE_CHECKING:
    from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask
    from stratalog.store.partitions import Partitions
    from stratalog.store.tier.tiering import Tiering

WORTH_A_CHILD_BYTES = 4 << 20
"""Less is compacted in a thread, also beside a broker: it is done before a process is there."""
_NO_CHILD = "compacting in a thread of the broker, which slows it down"

Compactor = Callable[[Sequence[tuple[PartitionWriter, Cleanable]]], None]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of work: ``plan`` makes the steps for each partition.

    ``cleaning``: look at what compaction needs, too. ``compactor`` gets the partitions that are due for
    compaction; without one they are compacted here.
    """

    plan: Callable[[Situation], list[Step]]
    topic: str | None = None
    partition: int | None = None
    preview: bool = False
    cleaning: bool = False
    force: bool = False
    progress: Progress | None = None
    compactor: Compactor | None = None


class Lifecycle:
    """Runs rounds of lifecycle work, and keeps what the next one needs. Thread-safe.

    A read-only store gets previews and numbers, from its directories and their copies of archive manifests.
    """

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self._context = partitions.context
        config = partitions.config
        self._effort = Effort(config.get_float("log.cleaner.max.time.ratio"))
        self._backoff_ms = config.get_int("log.cleaner.backoff.ms")
        self._backoffs: dict[tuple[str, int], Backoff] = {}
        self._clock = ClockGuard()
        self._estimates = DuplicateEstimates()
        self._lock = locks.lock("lifecycle")
        self.auditing = locks.lock("audit")
        """Held to add a line to the audit file."""
        self.claims = partitions.claims
        self.loans = Loans(self)
        self.stopping = False
        """Set when the store closes. Not an `Event`: an interrupt while one is set leaves it locked."""
        self.troubles = Troubles(self._context)
        self.quarantined: dict[tuple[str, int], tuple[str, ...]] = {}
        self.observe_clock()

    def compact(
        self,
        topic: str | None,
        partition: int | None,
        *,
        force: bool,
        preview: bool = False,
        progress: Progress | None = None,
        compactor: Compactor | None = None,
    ) -> LifecycleReport:
        """Compact what is due or, with ``force``, whatever can be compacted.

        A dirty partition that is left alone is a ``skip`` step that says why.
        """
        plan = partial(compact_plan, force=force)
        return self.run(Round(plan, topic, partition, preview, True, force, progress, compactor))

    def take_over_archive(self, topic: str) -> None:
        """Become the writer of a topic's archive."""
        for number in range(self.partitions.entry(topic).partitions):
            if self.tiering is None:
                raise ConfigError(f"{topic} has no archive: set remote.storage.enable first")
            with self.claims.claim((topic, number)):
                writer = self.partitions.registry.view(topic, number)
                if isinstance(writer, PartitionWriter):
                    self.tiering.take_over(writer)

    def accept_clock(self) -> None:
        """Believe the wall clock as it is: a person says that it is right."""
        with self._lock:
            self._clock = self._observed().accept()

    # -- looking ---------------------------------------------------------------------------------------

    def observe_clock(self) -> ClockGuard:
        """Compare the two clocks; the more often, the better a jump is seen."""
        with self._lock:
            self._clock = self._observed()
            return self._clock

    def _observed(self) -> ClockGuard:
        clock = self._context.clock
        return self._clock.observe(clock.now_ms(), clock.monotonic_s())

    def situation(self, entry: TopicEntry, view: View, *, cleaning: bool, force: bool = False) -> Situation:
        """Read everything that the policies need; with ``force`` fresh segments may be cleaned too."""
        partitions, name, number = self.partitions, view.topic, view.partition
        config = view.config if isinstance(view, PartitionWriter) else entry.config(partitions.config)
        if force:
            config = replace(config, cleaner_min_segment_age_ms=0)
        guard = self.observe_clock()
        at = Situation(
            topic=name,
            partition=number,
            config=config,
            segments=facts_of(view, partitions.archives.copies_of(view)),
            now_ms=guard.wall_ms,
            log_start_offset=view.log_start_offset,
            high_watermark=view.end_offset(),
            last_stable_offset=view.end_offset("read_committed"),
            first_dirty_offset=partitions.first_dirty_offset(name, number),
            cleaner_enable=partitions.config.get_bool("log.cleaner.enable"),
            clock=guard,
        )
        if not (cleaning and config.compact):
            return at
        found = cleanable_of(at)
        return at._replace(
            duplicate_ratio=self._estimate(view, found, config.min_cleanable_dirty_ratio),
            cleaner_wait_s=self._wait_s((name, number), found),
        )

    def _estimate(self, view: View, found: Cleanable, dirty_ratio: float) -> float | None:
        """Return the share of duplicates, where the share of dirty bytes alone does not decide."""
        if found.must_clean or not found.cleanable_bytes:
            return None
        if found.dirty_ratio > dirty_ratio:
            return None
        try:
            return self._estimates.ratio(view, found)
        except (StratalogError, FileNotFoundError) as error:
            self._context.warn(f"{view.directory}: no estimate of duplicates: {error}")
            return None

    def _wait_s(self, key: tuple[str, int], found: Cleanable) -> float:
        now_s = self._context.clock.monotonic_s()
        with self._lock:
            backoff = self._backoffs.get(key)
            wait_s = self._effort.may_start(now_s)
        if backoff is not None:
            wait_s = max(wait_s, backoff.may_start(now_s, dirty_bytes=found.cleanable_bytes))
        return wait_s

    def views(self, topic: str | None, partition: int | None = None) -> Iterator[tuple[TopicEntry, View]]:
        """Return the partitions with a policy, in order. A foreign topic has none until one is set."""
        partitions = self.partitions
        if topic is not None and partition is not None:
            partitions.view(topic, partition)  # raises for one that is not there
        names = sorted(partitions.entries) if topic is None else [partitions.entry(topic).name]
        for name in names:
            entry = partitions.entries.get(name)
            if entry is None or (entry.foreign and topic is None):
                continue
            numbers = range(entry.partitions) if partition is None else [partition]
            for number in numbers:
                read_only = partitions.read_only
                view = self._follow(name, number) if read_only else partitions.registry.view(name, number)
                if view is not None:
                    yield entry, view

    def _follow(self, name: str, number: int) -> View | None:
        """Return a partition of a read-only store as it is now; None, with a warning, when it is offline."""
        try:
            view = self.partitions.view(name, number)
            view.refresh()
        except (StratalogError, FileNotFoundError) as error:
            self._context.warn(f"{name}-{number}: left alone: {error}")
            return None
        return view

    # -- rounds ----------------------------------------------------------------------------------------

    def run(self, asked: Round) -> LifecycleReport:
        """Plan for every partition and, unless it is a preview, carry out what is due."""
        self.partitions.settle_changes()
        work = _Work(self, asked.progress)
        steps: list[Step] = []
        to_compact: list[tuple[PartitionWriter, Cleanable]] = []
        for entry, view in self.views(asked.topic, asked.partition):
            if self.stopping:
                break
            writer = view if isinstance(view, PartitionWriter) else None
            if writer is not None and isinstance(writer.unusable, ClosedError):
                work.busy(writer)
                continue
            if writer is not None and writer.unusable is not None:
                work.notes.append(f"{view.topic}-{view.partition}: left alone: {writer.unusable}")
                continue
            try:
                at = self.situation(entry, view, cleaning=asked.cleaning, force=asked.force)
                planned = asked.plan(at)
            except Exception as error:  # noqa: BLE001 - the other partitions have their round
                work.note(view, "left alone", error)
                continue
            self.troubles.clear(f"{view.topic}-{view.partition}: left alone")
            steps += planned
            if asked.preview or writer is None:
                continue
            due = [step for step in planned if step.due]
            work.carry_out(writer, due)
            if any(step.action == "compact" for step in due):
                to_compact.append((writer, cleanable_of(at)))
        notice = self._clock.notice
        if not asked.preview and to_compact:
            (asked.compactor or work.compact)(to_compact)
        notes = ([notice] if notice is not None else []) + work.notes
        compactions = tuple(report.to_json() for report in work.compactions)
        return LifecycleReport(asked.preview, tuple(steps), tuple(notes), compactions)

    def cleaning_memory(self, partitions: int) -> tuple[int, int]:
        """Return how many of these partitions are cleaned at a time, and the memory of each."""
        config = self.partitions.config
        threads = min(max(config.get_int("log.cleaner.threads"), 1), max(partitions, 1))
        return threads, config.get_int("log.cleaner.dedupe.buffer.size") // threads

    def cleaned(self, report: CleanReport, dirty_left_bytes: int) -> None:
        """Derive from a cleaning when the next one is worthwhile."""
        key = (report.topic, report.partition)
        now_s = self._context.clock.monotonic_s()
        with self._lock:
            self._backoffs[key] = self._backoffs.get(key, Backoff(self._backoff_ms)).after(
                bytes_before=report.bytes_before,
                bytes_after=report.bytes_after,
                now_s=now_s,
                dirty_left_bytes=dirty_left_bytes,
            )
            self.quarantined[key] = tuple(damage.path for damage in report.quarantined)

    def failed(self, key: tuple[str, int]) -> None:
        """Count a cleaning that ended in an error as one that removed nothing."""
        with self._lock:
            backoff = self._backoffs.get(key, Backoff(self._backoff_ms))
            self._backoffs[key] = backoff.after(
                bytes_before=0, bytes_after=0, now_s=self._context.clock.monotonic_s()
            )

    def forget(self, key: tuple[str, int]) -> None:
        """Forget a partition that was deleted: one that gets its name starts from scratch."""
        with self._lock:
            self._backoffs.pop(key, None)
            self.quarantined.pop(key, None)

    def is_stopping(self) -> bool:
        """Return True when the store closes and long work should end."""
        return self.stopping

    def stop_for(self, key: tuple[str, int]) -> Callable[[], bool]:
        """Return a check for long work on a partition: stop if the store closes or a thread waits for it."""
        return lambda: self.stopping or self.claims.wanted(key)

    def spent(self, seconds: float) -> None:
        with self._lock:
            self._effort = self._effort.after(seconds, self._context.clock.monotonic_s())

    @property
    def tiering(self) -> Tiering | None:
        """The way to the archive; None while no topic has one."""
        return self.partitions.archives.tiering


class _Work:
    """One round being carried out; what goes wrong in one partition is noted and does not stop the rest."""

    def __init__(self, lifecycle: Lifecycle, progress: Progress | None) -> None:
        self._lifecycle = lifecycle
        self._partitions = lifecycle.partitions
        self._progress = progress
        self._lock = locks.lock("round")
        self._children = Children(lifecycle.is_stopping)
        self.notes: list[str] = []
        self.compactions: list[CleanReport] = []

    def note(self, writer: View, what: str, error: Exception) -> None:
        """Note what went wrong; a partition that is closed in an open store is being moved or deleted."""
        registered = self._partitions.registry.view(writer.topic, writer.partition) is writer
        gone = isinstance(error, FileNotFoundError | UnknownTopicError) and not registered
        if (gone or isinstance(error, ClosedError)) and self._partitions.closed is None:
            self.busy(writer)
            return
        if isinstance(error, FileNotFoundError):
            error = missing(writer, error)
        line = f"{writer.topic}-{writer.partition}: {what}: {error if str(error) else type(error).__name__}"
        self._lifecycle.troubles.report(f"{writer.topic}-{writer.partition}: {what}", error)
        with self._lock:
            self.notes.append(line)

    @contextmanager
    def _claimed(self, writer: PartitionWriter) -> Iterator[bool]:
        """Claim a partition for the block; False, with a note, if it is taken or was moved since the plan."""
        key = (writer.topic, writer.partition)
        with self._lifecycle.claims.attempt(key) as free:
            ours = free and self._partitions.registry.view(*key) is writer
            if not ours:
                self.busy(writer)
            yield ours

    def busy(self, writer: View) -> None:
        """Note that something else has the partition: another rewrite, or a move, which closes it."""
        with self._lock:
            name = f"{writer.topic}-{writer.partition}"
            self.notes.append(f"{name}: another operation is running on it; left for the next round")

    def carry_out(self, writer: PartitionWriter, steps: Sequence[Step]) -> None:
        """Carry out all steps but compaction, which comes last, several partitions at a time."""
        try:
            for step in steps:
                if step.action == "roll":
                    writer.roll_idle(step.next_offset)
            self._delete(writer, [step for step in steps if step.action == "delete"])
            tiering = self._lifecycle.tiering
            others = [step for step in steps if step.action in ("archive", "drop-local", "drop-archive")]
            if tiering is not None and others:
                with self._claimed(writer) as ours:
                    if ours:
                        stop = self._lifecycle.stop_for((writer.topic, writer.partition))
                        tiering.carry_out(writer, others, progress=self._progress, stop=stop)
        except Exception as error:  # noqa: BLE001 - the other partitions have their round
            self.note(writer, "not finished", error)

    def _delete(self, writer: PartitionWriter, steps: Sequence[Step]) -> None:
        if not steps:
            return
        end = steps[-1].next_offset
        for segment in writer.segments():
            if segment.base_offset >= end:
                end = segment.base_offset  # past what a power cut left without records
                break
            if segment.is_active or (segment.next_offset or 0) > end:
                break  # compaction merged the last one with a neighbour that stays
        self._partitions.delete_records_of(writer, end)

    def compact(self, work: Sequence[tuple[PartitionWriter, Cleanable]]) -> None:
        """Clean partitions, as many at a time as ``log.cleaner.threads`` says."""
        clock = self._partitions.context.clock
        began_s = clock.monotonic_s()
        threads, memory = self._lifecycle.cleaning_memory(len(work))
        try:
            if threads == 1:
                for writer, found in work:
                    self._compact_one(writer, found, memory, threads)
            else:
                with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-cleaner") as pool:
                    list(pool.map(lambda each: self._compact_one(each[0], each[1], memory, threads), work))
        finally:
            self._children.close()
        self._lifecycle.spent(clock.monotonic_s() - began_s)

    def _compact_one(self, writer: PartitionWriter, found: Cleanable, memory: int, threads: int) -> None:
        lifecycle, partitions = self._lifecycle, self._partitions
        key = (writer.topic, writer.partition)
        if self._wants_child(found):
            try:
                if self._compact_in_child(writer, found, threads):
                    return
            except Exception as error:  # noqa: BLE001 - the other partitions have their round
                self.note(writer, "compaction failed", error)
                return
        rate = partitions.config.get_float("log.cleaner.io.max.bytes.per.second")
        name = f"{writer.topic}-{writer.partition}"
        progress = self._progress
        with self._claimed(writer) as ours:
            if not ours:
                return
            try:
                report = clean(
                    writer,
                    found,
                    memory_bytes=memory,
                    now_ms=lifecycle.observe_clock().now_ms,
                    pace=Pace(
                        rate / threads if rate < 1e18 else None,
                        None if progress is None else lambda done, total: progress(name, done, total),
                        lifecycle.stop_for(key),
                    ),
                    may_be_below=lifecycle.tiering.may_be_below(writer) if lifecycle.tiering else None,
                    save=lambda offset: partitions.save_first_dirty_offset(*key, offset),
                )
            except Exception as error:  # noqa: BLE001 - the other partitions have their round
                lifecycle.failed(key)
                self.note(writer, "compaction failed", error)
                return
        # A damaged segment holds the checkpoint back: what lies behind it stays dirty, and is no news.
        unfinished = report.next_dirty_offset < found.first_uncleanable_offset
        lifecycle.cleaned(report, found.cleanable_bytes if unfinished else 0)
        with self._lock:
            self.compactions.append(report)

    def _wants_child(self, found: Cleanable) -> bool:
        partitions = self._partitions
        return (
            partitions.served
            and type(partitions.context.fs) is RealFileSystem  # another one is this process's alone
            and found.clean_bytes + found.cleanable_bytes >= WORTH_A_CHILD_BYTES
        )

    def _compact_in_child(self, writer: PartitionWriter, found: Cleanable, beside: int) -> bool:
        """Compact in a process of its own; False where that is to be done here."""
        lifecycle, loans = self._lifecycle, self._lifecycle.loans
        try:
            lent = loans.lend_due(writer, found, beside, inside=True)
        except StorageError as error:
            lifecycle.troubles.report(_NO_CHILD, error)
            return False
        if lent is None:
            return False
        token, task = lent
        process = None
        try:
            if task.archived_end or not has_room(writer.context.fs, task):
                return False
            process = self._child()
            if process is None:
                return False
            cleaned = self._cleaned_by(process, token, task)
            if cleaned is None:
                self.busy(writer)
                return True
            self._children.put_back(process)
            process = None
            report = loans.take_in(token, cleaned)
        finally:
            if process is not None:
                process.close()
            loans.give_back(token)  # nothing is left of it where it was taken in
        with self._lock:
            self.compactions.append(report)
            if report.stopped is not None:
                self.notes.append(f"{task.topic}-{task.partition}: not finished: {report.stopped}")
        return True

    def _child(self) -> ChildProcess | None:
        """Return a process that compacts; None, with one warning, if there can be none."""
        lifecycle = self._lifecycle
        try:
            process = self._children.take()
        except StorageError as error:
            if not lifecycle.stopping:
                lifecycle.troubles.report(_NO_CHILD, error)
            return None
        lifecycle.troubles.clear(_NO_CHILD)
        return process

    def _cleaned_by(self, process: ChildProcess, token: str, task: CleaningTask) -> Cleaned | None:
        """Return the result of a child process; None if it is no longer wanted."""
        lifecycle, loans, progress = self._lifecycle, self._lifecycle.loans, self._progress
        name = f"{task.topic}-{task.partition}"
        heard_s = time.monotonic()

        def heard(now: bool) -> bool:
            nonlocal heard_s
            if lifecycle.stopping:
                return False
            if not now:
                return loans.is_lent(token)
            heard_s = time.monotonic()
            return bool(loans.extend([token]))

        told = None if progress is None else lambda done, total: progress(name, done, total)
        try:
            cleaned = process.clean(task, heard, told)
        except StorageError:
            if lifecycle.stopping or not loans.is_lent(token):
                return None  # what it worked on was taken from it
            lifecycle.failed((task.topic, task.partition))
            raise
        silent_s = time.monotonic() - heard_s
        if cleaned is None and silent_s >= remote_compaction.LOAN_S and not lifecycle.stopping:
            lifecycle.failed((task.topic, task.partition))
            raise StorageError(f"the process that compacts was silent for {silent_s:.0f} s: it was killed")
        return cleaned


SWEEP_EVERY_S = 3600.0
"""How often the archive is swept; that lists all of it."""


class _Rounds:
    """One kind of round: when the next is due, and the thread of the one that runs."""

    def __init__(self, name: str, work: Callable[[], object], every_s: float, first_s: float) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._next_s = first_s
        self._thread: threading.Thread | None = None

    def begin_if_due(self, now_s: float) -> None:
        """Start a round in a thread of its own, unless it is too early or the last one still runs."""
        if now_s < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = now_s + self._every_s
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread  # only once it can be joined

    def _run(self) -> None:
        try:
            self._work()
        except StratalogError as error:
            logger.warning("%s: the round ended early: %s", self._name, error)
        except Exception:  # noqa: BLE001 - the next round must come
            logger.exception("%s: the round failed", self._name)

    def join(self) -> None:
        """Wait for the round that runs."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


class Janitor:
    """Called with every tick of the store."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        partitions = lifecycle.partitions
        self._clock = partitions.context.clock
        now_s = self._clock.monotonic_s()
        retain_every_s = partitions.config.get_int("log.retention.check.interval.ms") / 1000
        clean_every_s = max(partitions.config.get_int("log.cleaner.backoff.ms") / 1000, 0.1)
        retain = partial(lifecycle.run, Round(retain_steps))
        self._retention = _Rounds("stratalog-retention", retain, retain_every_s, now_s)
        self._long = _Rounds("stratalog-janitor", self._long_round, clean_every_s, now_s)
        self._next_sweep_s = now_s

    def tick(self) -> None:
        """Begin what is due."""
        lifecycle, now_s = self._lifecycle, self._clock.monotonic_s()
        lifecycle.observe_clock()
        if not lifecycle.stopping:
            self._retention.begin_if_due(now_s)
            self._long.begin_if_due(now_s)

    def wait_for_retention(self) -> None:
        """Wait for a round of retention under way."""
        self._retention.join()

    def _long_round(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_EVERY_S
            self._lifecycle.partitions.archives.sweep()
        self._lifecycle.run(Round(plan, cleaning=True))

    def join(self) -> None:
        """Wait for rounds under way; they end soon once the store is stopping."""
        self._retention.join()
        self._long.join()
