"""``compact``: the lifecycle's compaction, partitions side by side on Spark's executors.

The store, opened here or reached through the program that holds it, says which partitions are due and lends
them one by one (`stratalog.store.lifecycle.remote_compaction`); a task reads the partition's segments where
they lie, and the kernel writes what stays of them beside the log directory; the store swaps that in. The
files are those that ``store.compact()`` would have made, byte for byte. Programs go on appending and reading.

Executors must see the log directories and what lies beside them under the same paths. Each takes as much
memory for keys as a cleaner thread of the store (``log.cleaner.dedupe.buffer.size``).

Crash policy: until the store swaps, nothing has happened; a swap that is cut short is finished or undone by
the store's next start. A driver that dies loses its loans after two minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from stratalog import kernel
from stratalog.errors import ArchiveError, ConfigError, StratalogError
from stratalog.fs import HandleCache, RealFileSystem
from stratalog.log.clean import CleanReport
from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask, clean_elsewhere
from stratalog.log.clean.rules import MayBeBelow
from stratalog.log.context import LogContext
from stratalog.log.policy.preview import Step
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.spark.logs import opened
from stratalog.spark.options import Where
from stratalog.spark.pipelines import PipelineResult, Progress
from stratalog.spark.pipelines.executors import (
    Path,
    attempt_name,
    cancel_jobs,
    names_of,
    ours,
    paths_of,
    slots,
    spread,
    watched,
)
from stratalog.store.admin.admin import AdminClient, connect
from stratalog.store.lifecycle.remote_compaction import LOAN_S
from stratalog.store.settings import remembered
from stratalog.store.tier.tiers import keys_in

COUNTS = (
    "segments_before",
    "segments_after",
    "records_before",
    "records_after",
    "tombstones_dropped",
    "bytes_before",
    "bytes_after",
)
OPEN_FILES = 64
_ARCHIVE = "log.archive.url"


def compact(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | str | None = None,
    partition: int | None = None,
    force: bool = False,
    preview: bool = False,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> PipelineResult:
    """Compact the partitions that are due, or with ``force`` all that can be compacted.

    ``preview`` only says which. ``archive`` is needed only where the store does not know its own. Not ``ok``
    when a partition could not be compacted, or a damaged segment was left as it is; the rest is done then.
    """
    began = time.monotonic()
    paths = paths_of(path)
    if not paths:
        raise ConfigError(
            "compact: an archive alone is not compacted; pass path, the log directories of a store"
        )
    chosen: tuple[str | None, ...] = names_of(topics) or (None,)
    if partition is not None and (len(chosen) != 1 or chosen[0] is None):
        raise ConfigError("compact: partition needs exactly one topic beside it")
    config: dict[str, str] | None = None
    if archive:
        config = remembered(RealFileSystem(), paths).explicit | {_ARCHIVE: archive}
    with connect(list(paths), config, remember=False, timeout_s=timeout_s) as client:
        previews = [client.compact(each, partition, preview=True, force=force) for each in chosen]
        steps = [step for report in previews for step in report.steps if step.action == "compact"]
        where = Where(paths, config=((_ARCHIVE, archive),) if archive else ())
        run = _Run(spark, client, Rewriting(where), force, progress)
        run.notes += [note for report in previews for note in report.notes]
        if not preview:
            run.compact([step for step in steps if step.due])
    return run.result(steps, preview, time.monotonic() - began)


def _itself(spark: Any) -> SparkSession:
    """Return the session itself: the command line passes a stand-in that starts one when it is used."""
    found: SparkSession = spark if isinstance(spark, SparkSession) else spark.getActiveSession()
    return found


@dataclass
class _Run:
    """One round, on the driver."""

    spark: SparkSession
    client: AdminClient
    work: Rewriting
    force: bool
    progress: Progress | None
    notes: list[str] = field(default_factory=list)
    reports: list[CleanReport] = field(default_factory=list)
    failed: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _tokens: set[str] = field(default_factory=set)
    _done: int = 0

    def compact(self, due: Sequence[Step]) -> None:
        """Compact partitions side by side, each swapped in as soon as its task is done."""
        if not due:
            return
        threads = min(len(due), slots(self.spark))

        def one(step: Step) -> None:
            self._one(step, len(due))
            with self._counting:
                self._done += 1
                if self.progress is not None:
                    self.progress("compact", self._done, len(due))

        with watched(self.spark, None, "stratalog compact"), self._kept_alive():
            inheriting = inheritable_thread_target(_itself(self.spark))(one)
            with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-compact") as pool:
                running = [pool.submit(inheriting, step) for step in due]
                try:
                    for future in running:
                        future.result()
                except BaseException:
                    for future in running:
                        future.cancel()
                    cancel_jobs(self.spark)
                    raise

    def _one(self, step: Step, beside: int) -> None:
        name = f"{step.topic}-{step.partition}"
        token = ""
        try:
            lent, token, task = self.client.lend_compaction(
                step.topic, step.partition, force=self.force, beside=beside
            )
            if task is None:
                self.notes += lent.notes or (f"{name}: no longer due",)
                return
            self._tokens.add(token)  # its loan is extended from now on
            (answer,) = spread(self.spark, [task], self.work)
            report = self.client.take_in_compaction(token, answer)
            self._tokens.discard(token)
            token = ""
            if report is not None:
                self.reports.append(report)
                if report.stopped is not None:
                    self.notes.append(f"{name}: not finished: {report.stopped}")
        except Exception as error:
            known = ours(error)
            if known is None and not isinstance(error, OSError):
                raise
            with self._counting:
                self.failed += 1
            self.notes.append(f"{name}: compaction failed: {known or error}")
        finally:
            if token:
                self._tokens.discard(token)
                with suppress(StratalogError):
                    self.client.take_in_compaction(token, None)

    @contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """Extend the loans while the block runs."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(LOAN_S / 4):
                with suppress(StratalogError):
                    self.client.extend_loans(sorted(self._tokens.copy()))

        thread = threading.Thread(target=run, name="stratalog-loans", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def result(self, steps: Sequence[Step], preview: bool, seconds: float) -> PipelineResult:
        reports = sorted(
            (each.to_json() for each in self.reports), key=lambda r: (r["topic"], r["partition"])
        )
        counts = {"due" if preview else "partitions": sum(s.due for s in steps) if preview else len(reports)}
        if not preview:
            counts |= {name: sum(int(each[name]) for each in reports) for name in COUNTS}
        damaged = [damage for each in reports for damage in each["quarantined"]]
        notes = [f"{each['path']}: damaged, left as it is: {each['reason']}" for each in damaged]
        if self.failed:
            counts["failed"] = self.failed
        details: dict[str, Any] = {
            "steps": [step.to_json() | {"due": step.due} for step in steps],
            "compactions": reports,
        }
        return PipelineResult(
            "compact",
            counts,
            details,
            (*self.notes, *notes),
            ok=not damaged and not self.failed,
            seconds=seconds,
        )


@dataclass(frozen=True)
class Rewriting:
    """The work of a task on a partition; travels to the executors."""

    where: Where

    def __call__(self, task: CleaningTask) -> Cleaned:
        fs = RealFileSystem()
        context = LogContext(fs, HandleCache(fs, OPEN_FILES))
        with ExitStack() as stack:
            stack.callback(context.handles.close)
            below: MayBeBelow | None = None
            if task.archived_end:
                cold = self._archived(task, stack)
                below = lambda keys: keys_in(context, cold, keys, kernel.hash64)  # noqa: E731
            return clean_elsewhere(task, context, attempt=attempt_name(), may_be_below=below)

    def _archived(self, task: CleaningTask, stack: ExitStack) -> list[ArchivedSegment]:
        """Return the archived segments below the round: tombstones of keys that may be in them must stay."""
        view = stack.enter_context(opened(self.where)).view(task.topic, task.partition)
        view.refresh()
        found = [
            each
            for each in view.segments()
            if isinstance(each, ArchivedSegment) and each.base_offset < task.archived_end
        ]
        if not found or (found[-1].next_offset or 0) < task.archived_end:
            raise ArchiveError(
                f"{task.topic}-{task.partition}: offsets below {task.archived_end} are in an archive that"
                " is not known here; pass its URL as archive",
                url=dict(self.where.config).get(_ARCHIVE, ""),
            )
        return found
