"""The life of segments, as a store's users see it: retention, compaction, archive, erasing, numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stratalog.format.journal import Entry, StagedFile
from stratalog.log.arguments import check_number, check_optional
from stratalog.log.clean import CleanReport
from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask
from stratalog.store.admin.control import Progress
from stratalog.store.journal.journal import Committed, Journal
from stratalog.store.lifecycle.erasing import erase
from stratalog.store.lifecycle.lifecycle import Lifecycle
from stratalog.store.lifecycle.numbers import partition_numbers
from stratalog.store.lifecycle.reports import EraseReport, LifecycleReport, PartitionNumbers

if TYPE_CHECKING:
    from stratalog.store.partitions import Partitions
    from stratalog.store.topic import Topic


class Upkeep(ABC):
    """The part of `Store` that keeps its segments in order; `open(janitor=True)` does the same by itself."""

    _partitions: Partitions
    _lifecycle: Lifecycle
    _journal: Journal

    @abstractmethod
    def topic(self, name: str) -> Topic:
        """A topic by name."""

    @abstractmethod
    def _check_writable(self) -> None:
        """Raise when the store is closed or read-only."""

    def _check(self, *, only_looks: bool) -> None:
        """Raise when the store is closed, or read-only unless it is only looked at."""
        if not only_looks:
            self._check_writable()
        self._partitions.check_open()
        if self._partitions.read_only:
            self._partitions.opening.load()

    def retain(self, topic: str | None = None, *, preview: bool = False) -> LifecycleReport:
        """Delete the segments that retention says; ``preview`` only tells which, and what comes next.

        Every preview and trial run works on a read-only store too.
        """
        self._check(only_looks=preview)
        return self._lifecycle.retain(topic, preview=preview)

    def compact(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        preview: bool = False,
        force: bool = False,
        progress: Progress | None = None,
    ) -> LifecycleReport:
        """Compact the partitions that are due, or with ``force`` whatever can be compacted.

        ``progress(what, done_bytes, total_bytes)`` is called now and then.
        """
        self._check(only_looks=preview)
        partition = check_optional("partition", partition)
        return self._lifecycle.compact(topic, partition, preview=preview, force=force, progress=progress)

    def lend_compaction(
        self, topic: str, partition: int, *, force: bool = False, beside: int = 1
    ) -> tuple[LifecycleReport, str, CleaningTask | None]:
        """Let somebody else compact a partition that is due; see `remote_compaction`."""
        self._check_writable()
        partition, beside = check_number("partition", partition), check_number("beside", beside, 1)
        return self._lifecycle.loans.lend(topic, partition, force=force, beside=beside)

    def extend_loans(self, tokens: Sequence[str]) -> list[str]:
        """The borrower of these loans lives; which of them still stand."""
        self._check_writable()
        return self._lifecycle.loans.extend(tokens)

    def take_in_compaction(self, token: str, cleaned: Cleaned | None) -> CleanReport | None:
        """Swap in what was made of a partition that was lent; with None the borrower gives up."""
        self._check_writable()
        if cleaned is None:
            self._lifecycle.loans.give_back(token)
            return None
        return self._lifecycle.loans.take_in(token, cleaned)

    def archive(
        self, topic: str | None = None, *, preview: bool = False, progress: Progress | None = None
    ) -> LifecycleReport:
        """Copy sealed segments to the archive, and let local copies go whose time is up."""
        self._check(only_looks=preview)
        return self._lifecycle.archive(topic, preview=preview, progress=progress)

    def janitor(
        self, topic: str | None = None, *, preview: bool = False, progress: Progress | None = None
    ) -> LifecycleReport:
        """One round of everything: what `open(janitor=True)` does by itself."""
        self._check(only_looks=preview)
        return self._lifecycle.everything(topic, preview=preview, progress=progress)

    def erase(
        self,
        topic: str,
        keys: Iterable[bytes],
        *,
        reason: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> EraseReport:
        """Remove every record of these keys from the log and its archive; no other offset moves.

        What was done is written to an audit file; the report names clones that still hold the keys.
        """
        self._check(only_looks=dry_run)
        chosen = self.topic(topic)
        return erase(
            self._lifecycle, chosen, frozenset(keys), reason=reason, dry_run=dry_run, progress=progress
        )

    def take_over_archive(self, topic: str) -> None:
        """Make this store the one that writes a topic's archive, whoever did before.

        For a store that was rebuilt from its archive. The other one, should it still live, is fenced off.
        """
        self._check_writable()
        self._lifecycle.take_over_archive(topic)

    def commit_staged(
        self,
        query: str,
        batch: int,
        files: Iterable[StagedFile],
        *,
        job: bool = False,
        progress: Progress | None = None,
    ) -> Committed:
        """Take staged files in as one commit, exactly once for each (query, batch); durable on return."""
        self._check_writable()
        return self._journal.commit(Entry(query, batch, tuple(files), job), progress)

    def accept_clock(self) -> None:
        """The wall clock is right after all: deletion, paused because it jumped, goes on."""
        self._check_writable()
        self._lifecycle.accept_clock()

    def lifecycle(self) -> list[PartitionNumbers]:
        """Segments, bytes and files of every partition by state, and what retention should have taken."""
        self._check(only_looks=True)
        return partition_numbers(self._lifecycle)
