"""Partitions lent to another process that compacts them elsewhere; the result is swapped in here.

The borrower (a Spark job) asks for a partition that is due and gets a `CleaningTask` with a directory of its
own beside the log directory. While it works the partition is not archived and not compacted here; an
operation that wants to erase, move, repair or delete takes it back, and the borrower's work is discarded. So
is that of a borrower that does not extend its loan within `LOAN_S`. Appends and reads are not affected.

Crash policy: until `take_in` nothing has happened to the log. That moves the new files beside the old ones as
``.cleaned`` and swaps group after group (`log.swap`): a crash leaves every group old or new, and of the rest
what the next start removes, as after a compaction that this process did by itself.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.errors import ControlError, FormatError, StorageError, StratalogError
from stratalog.fs import FileSystem
from stratalog.fs.contract import has_errno
from stratalog.log import names
from stratalog.log.clean import CleanReport
from stratalog.log.clean.remote_compaction import (
    Cleaned,
    CleaningTask,
    NewSegment,
    Replacement,
    describe_round,
)
from stratalog.log.clean.swap import swap_in
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.journal.staging import SUFFIX, Place, make_dir, owner_of, root_of
from stratalog.store.lifecycle.reports import LifecycleReport
from stratalog.store.moving import copy_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.store.lifecycle.lifecycle import Lifecycle

LOAN_S = 120.0
"""A borrower that was not heard of for so long has lost its partition."""
QUERY = "compact-"

_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,100}/[0-9]{6,10}")


@dataclass(frozen=True, slots=True)
class _Loan:
    token: str
    writer: PartitionWriter
    found: Cleanable
    work: str
    segments: dict[int, Segment]
    """The very segments that are being rewritten, by base offset."""

    @property
    def key(self) -> tuple[str, int]:
        return self.writer.topic, self.writer.partition


class Loans:
    """What a store has lent. Thread-safe; forgotten when the process ends, as the claims are."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._lock = locks.lock("loans")
        self._loans: dict[str, _Loan] = {}

    def lend(
        self, topic: str, partition: int, *, force: bool, beside: int = 1
    ) -> tuple[LifecycleReport, str, CleaningTask | None]:
        """Lend a partition if it is due: what was planned, the loan's token, and what there is to do.

        Without a task the report's notes say why, where it is not just that nothing is due. ``beside``: how
        many partitions are compacted in the same round, which share the memory for keys as they do here.
        """
        self._end_old_loans()
        lent: list[tuple[str, CleaningTask]] = []
        notes: list[str] = []

        def lend_one(due: Sequence[tuple[PartitionWriter, Cleanable]]) -> None:
            for writer, found in due:
                try:
                    made = self.lend_due(writer, found, beside)
                except (StratalogError, FileNotFoundError) as error:
                    notes.append(f"{writer.topic}-{writer.partition}: not lent: {error}")
                    continue
                if made is None:
                    notes.append(f"{writer.topic}-{writer.partition}: another operation is running on it")
                else:
                    lent.append(made)

        report = self._lifecycle.compact(topic, partition, force=force, compactor=lend_one)
        report = replace(report, notes=(*report.notes, *notes))
        return (report, *lent[0]) if lent else (report, "", None)

    def lend_due(
        self, writer: PartitionWriter, found: Cleanable, beside: int, *, inside: bool = False
    ) -> tuple[str, CleaningTask] | None:
        """Lend a partition of which it is known that it is due; None if another operation has it.

        ``inside``: the borrower writes in the log directory, which a service may be confined to; its
        directory has a name that the next start removes.
        """
        lifecycle, partitions = self._lifecycle, self._lifecycle.partitions
        token = uuid.uuid4().hex
        place = Place(f"{QUERY}{token}", 0, owner_of(os.getpid()))
        log_dir = partitions.place(writer.topic, writer.partition)[0]
        work = (
            log_dir.aside(writer.directory, "delete") if inside else f"{root_of(log_dir.path)}/{place.name}"
        )
        key = (writer.topic, writer.partition)
        if not lifecycle.claims.lend(key, token, LOAN_S):
            return None
        try:
            rate = partitions.config.get_float("log.cleaner.io.max.bytes.per.second")
            task, segments = describe_round(
                writer,
                found,
                work=work,
                memory_bytes=lifecycle.cleaning_memory(beside)[1],
                now_ms=lifecycle.observe_clock().now_ms,
                io_bytes_per_s=rate / max(beside, 1) if rate < 1e18 else None,
            )
            make_dir(writer.context.fs, work)
        except BaseException:
            lifecycle.claims.give_back(key, token)
            raise
        with self._lock:
            self._loans[token] = _Loan(token, writer, found, work, segments)
        return token, task

    def extend(self, tokens: Sequence[str]) -> list[str]:
        """Extend the loans of a borrower that is alive; return those that are still valid."""
        claims = self._lifecycle.claims
        with self._lock:
            known = [self._loans[token] for token in tokens if token in self._loans]
        return [loan.token for loan in known if claims.extend(loan.key, loan.token, LOAN_S)]

    def is_lent(self, token: str) -> bool:
        """Return True if a loan is still valid."""
        with self._lock:
            loan = self._loans.get(token)
        return loan is not None and self._lifecycle.claims.is_lent(loan.key, token)

    def give_back(self, token: str) -> None:
        """End a loan without a result; what the borrower wrote is removed."""
        with self._lock:
            loan = self._loans.pop(token, None)
        if loan is not None:
            self._lifecycle.claims.give_back(loan.key, token)
            self._remove(loan)

    def take_in(self, token: str, cleaned: Cleaned) -> CleanReport:
        """Swap in what a borrower made; its report, with what became of it. The loan is over then.

        ``stopped`` says when nothing, or not all, of it was taken in, because the log is another by now.
        """
        with self._lock:
            loan = self._loans.pop(token, None)
        if loan is None:
            raise ControlError(
                "this compaction was not lent by this store, or its loan has expired: start it again"
            )
        lifecycle, partitions = self._lifecycle, self._lifecycle.partitions
        try:
            with lifecycle.claims.redeem(loan.key, token) as ours:
                if not ours or partitions.registry.view(*loan.key) is not loan.writer:
                    return _untouched(loan, cleaned.report, "another operation took the partition meanwhile")
                if not loan.writer.config.compact:
                    return _untouched(loan, cleaned.report, "the topic is no longer compacted")
                for damage in cleaned.report.quarantined:
                    loan.writer.context.warn(
                        f"{damage.path}: {damage.reason}; compaction leaves this segment as it is"
                    )
                for at, each in enumerate(cleaned.replacements):
                    if not self._swap(loan, each):
                        why = f"the log changed meanwhile: {loan.segments[each.olds[0]].path()} is gone"
                        return self._after(loan, cleaned.report, why, touched=at > 0)
                if cleaned.next_dirty_offset is not None:
                    partitions.save_first_dirty_offset(*loan.key, cleaned.next_dirty_offset)
        except (StratalogError, OSError):
            lifecycle.failed(loan.key)
            raise
        finally:
            self._remove(loan)
        unfinished = cleaned.report.next_dirty_offset < loan.found.first_uncleanable_offset
        lifecycle.cleaned(cleaned.report, loan.found.cleanable_bytes if unfinished else 0)
        return cleaned.report

    def _swap(self, loan: _Loan, made: Replacement) -> bool:
        olds = [loan.segments.get(base) for base in made.olds]
        if not olds or None in olds or not made.news:
            raise ControlError(f"{made.olds} are not segments of this loan")
        news = [self._move(loan, each) for each in made.news]
        return swap_in(loan.writer, [each for each in olds if each is not None], news)

    def _move(self, loan: _Loan, new: NewSegment) -> Segment:
        """Bring the files of a new segment into the partition's directory, where a swap expects them."""
        writer, fs = loan.writer, loan.writer.context.fs
        if not _FOLDER.fullmatch(new.folder) or new.base_offset not in range(2**63):
            raise ControlError(f"{new} is not a segment that was written for a loan")
        segment = Segment(
            writer.location,
            new.base_offset,
            size=new.size,
            next_offset=new.next_offset,
            suffix=names.CLEANED,
        )
        segment.forget()
        for kind in names.SEGMENT_KINDS:
            with suppress(FileNotFoundError):
                fs.remove(segment.path(kind))  # what a round that was stopped may have left
            source = f"{loan.work}/{new.folder}/{names.file_name(new.base_offset, kind)}"
            with suppress(FileNotFoundError):
                move(fs, source, segment.path(kind))
        try:
            sound = fs.stat(segment.path()).size == new.size and segment.seal is not None
        except (FileNotFoundError, FormatError):
            sound = False
        if not sound:
            raise StorageError(
                f"{loan.work}/{new.folder}: not the segment of {new.size} bytes that was reported; is that"
                " directory the same one where it was written?"
            )
        return segment

    def _after(self, loan: _Loan, report: CleanReport, why: str, *, touched: bool) -> CleanReport:
        if not touched:
            return _untouched(loan, report, why)
        segments = [each for each in loan.writer.local_segments()[:-1] if each.base_offset < report_end(loan)]
        return replace(
            report,
            next_dirty_offset=loan.found.first_dirty_offset,
            segments_after=len(segments),
            bytes_after=sum(each.size for each in segments),
            stopped=why,
        )

    def _end_old_loans(self) -> None:
        claims = self._lifecycle.claims
        with self._lock:
            over = [loan for loan in self._loans.values() if not claims.is_lent(loan.key, loan.token)]
            for loan in over:
                del self._loans[loan.token]
        for loan in over:
            self._remove(loan)

    def _remove(self, loan: _Loan) -> None:
        fs = loan.writer.context.fs
        try:
            if fs.exists(loan.work):
                fs.remove_tree(loan.work)
        except (FileNotFoundError, StorageError) as error:
            loan.writer.context.warn(f"{loan.work}: {error}; removed at the next start")
        root = loan.work.rpartition("/")[0]
        if root.endswith(SUFFIX):
            with suppress(FileNotFoundError, StorageError):
                fs.remove_dir(root)


def has_room(fs: FileSystem, task: CleaningTask) -> bool:
    """Return True if there is room for a copy of all and as much again.

    A round here needs less: the room of a group at a time.
    """
    try:
        return fs.free_bytes(task.work) >= 2 * task.size_bytes
    except (FileNotFoundError, StorageError):
        return False


def report_end(loan: _Loan) -> int:
    """Return where the round that was lent ends."""
    return max((each.next_offset or base for base, each in loan.segments.items()), default=0)


def _untouched(loan: _Loan, report: CleanReport, why: str) -> CleanReport:
    return replace(
        report,
        next_dirty_offset=loan.found.first_dirty_offset,
        segments_after=report.segments_before,
        bytes_after=report.bytes_before,
        records_after=report.records_before,
        tombstones_dropped=0,
        groups=0,
        stopped=why,
    )


def move(fs: FileSystem, source: str, target: str) -> None:
    """Rename; where that is another disk after all, copy, sync and remove."""
    try:
        fs.rename(source, target)
        return
    except StorageError as error:
        if not has_errno(error, {errno.EXDEV}):
            raise
    copy_file(fs, source, target)
    fs.remove(source)
