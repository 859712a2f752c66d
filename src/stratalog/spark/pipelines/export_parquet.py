"""An export to Parquet files: recover, plan, write, commit, merge.

The order of one run: commits that an earlier one could not finish are rolled forward; what is new is
planned and written to staging by the executors; the commit's object is created, and the commit is rolled
forward. See `export_log` for what a crash leaves at each point.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from stratalog.errors import CorruptionError, StoreError
from stratalog.spark.logs import opened
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.export_files import date_text
from stratalog.spark.pipelines.export_job import Job, Outcome, send_letters
from stratalog.spark.pipelines.export_log import Commit, CommitLog, DataFile, State
from stratalog.spark.pipelines.export_merge import Merging, merges
from stratalog.spark.pipelines.export_places import place_of, staging
from stratalog.spark.pipelines.export_plan import DAY_MS, Plan, plan, plan_again
from stratalog.spark.pipelines.export_tasks import COLUMNS, Staging, Written, tasks_of
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.spread import Piece, slots, spread


class ParquetExport:
    """One run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._place = place_of(job.output)
        self._log = CommitLog(self._place.objects)
        self._run = uuid.uuid4().hex

    def export(self, merge: bool | None, merge_bytes: int) -> Outcome:
        state, recovered = self._recover()
        with opened(self._job.where) as logs:
            if self._job.replace:
                doomed = self._doomed(state)
                planned = plan_again(logs, self._job.wanted, state.covered, _oldest(doomed))
            else:
                doomed = []
                planned = plan(logs, self._job.wanted, state.covered)
        counts = dict.fromkeys(
            ("records", "files", "bytes", "dead_letters", "replaced_files", "merged_files"), 0
        )
        if planned:
            written = self._write(planned, state.version + 1)
            commit = self._commit(state, "export", written, planned, [file.path for file in doomed])
            state = state.after(commit)
            counts |= _counted(commit) | {"replaced_files": len(doomed)}
        if merge is not False:
            state, counts["merged_files"] = self._merge(state, bool(merge), merge_bytes)
        notes = self._job.notes(planned)
        if recovered:
            notes = (f"finished commit {recovered[-1]}, which an earlier run could not", *notes)
        details: dict[str, object] = {
            "output": self._place.url,
            "version": state.version,
            "files_in_all": len(state.files),
            "records_in_all": sum(file.records for file in state.files.values()),
            "exported": [each.to_json() for each in planned.extents],
        }
        return counts, details, notes

    # -- commits -------------------------------------------------------------------------------------

    def _recover(self) -> tuple[State, list[int]]:
        """What the output holds, with every commit rolled forward."""
        state, pending = self._log.load()
        for commit in pending:
            self._roll_forward(commit)
        if pending:
            self._log.checkpoint(state)
        if not state.export_id:
            state = replace(state, export_id=uuid.uuid4().hex)
        return state, [commit.version for commit in pending]

    def _commit(
        self, state: State, kind: str, written: Sequence[Written], planned: Plan, remove: Sequence[str]
    ) -> Commit:
        version = state.version + 1
        files = sorted((file for each in written for file in each.files), key=lambda file: file.staged)
        commit = Commit(
            version,
            self._run,
            state.export_id,
            kind,
            self._job.now_ms,
            add=tuple(replace(file, path=final_path(file, version)) for file in files),
            remove=tuple(remove),
            covered=planned.extents,
            dead_letters=tuple(letters for each in written for letters in each.letters),
            dead_letters_to=self._job.letters_to,
        )
        self._log.commit(commit)
        self._roll_forward(commit)
        self._log.checkpoint(state.after(commit))
        return commit

    def _roll_forward(self, commit: Commit) -> None:
        """Do what a commit says; done before, or by another process at the same time, it changes nothing."""
        lost = self._place.publish([(file.staged, file.path) for file in commit.add])
        if lost:
            self._check_lost(commit, lost)
        if commit.dead_letters:
            target = Staging(self._job.output, staging(commit.version, commit.run))
            letters, to = commit.dead_letters, commit.dead_letters_to
            try:
                send_letters(self._job, target, commit.export_id, commit.version, letters, to)
            except Exception:
                if not self._log.is_applied(commit.version):
                    raise
        self._place.remove(commit.remove)
        self._log.applied(commit.version)
        self._place.sweep(commit.version)

    def _check_lost(self, commit: Commit, lost: Sequence[str]) -> None:
        state, _ = self._log.load()
        for name in lost:
            if name in state.files:
                raise CorruptionError(
                    f"commit {commit.version} names this file and it is neither here nor staged; write its"
                    " date again with replace",
                    path=self._place.address(name),
                )

    # -- work ----------------------------------------------------------------------------------------

    def _write(self, planned: Plan, version: int) -> list[Written]:
        target = Staging(self._job.output, staging(version, self._run))
        tasks = tasks_of(planned.ranges, slots(self._job.spark))
        return self._staged(tasks, self._job.exporting(planned, target, COLUMNS), "export", version)

    def _staged(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Written], what: str, version: int
    ) -> list[Written]:
        try:
            with watched(self._job.spark, self._job.progress, what):
                return spread(self._job.spark, pieces, work)
        except Exception as error:
            if self._log.exists(version):
                raise StoreError(
                    f"{self._place.url}: another export to this output made commit {version} first; run"
                    " this one again"
                ) from error
            with suppress(Exception):
                self._discard(version)
            raise

    def _discard(self, version: int) -> None:
        """What a run that failed has staged; whatever stays is swept with the commit of that number."""
        prefix = staging(version, self._run).partition("/")[2] + "/"
        self._place.objects.delete([info.key for info in self._place.objects.list(prefix)])

    def _merge(self, state: State, asked: bool, small_bytes: int) -> tuple[State, int]:
        topics = self._job.wanted.topics
        files = [file for file in state.files.values() if not topics or file.topic in topics]
        found = merges(files, asked=asked, small_bytes=small_bytes)
        if not found:
            return state, 0
        version = state.version + 1
        target = Staging(self._job.output, staging(version, self._run))
        written = self._staged(found, Merging(target, self._job.compression), "merge", version)
        old = [file.path for merge in found for file in merge.files]
        commit = self._commit(state, "merge", written, Plan(), old)
        return state.after(commit), len(old)

    def _doomed(self, state: State) -> list[DataFile]:
        """The files of the dates that are written again."""
        wanted = self._job.wanted
        first, last = (date_text(each // DAY_MS) for each in wanted.times)
        return [
            file
            for file in state.files.values()
            if first <= file.date < last and (not wanted.topics or file.topic in wanted.topics)
        ]


def final_path(file: DataFile, version: int) -> str:
    """Where a staged file belongs; the same for every attempt of its task."""
    task, _, number = file.staged.rpartition("/")[2].removesuffix(".staged").split("-")
    return f"topic={file.topic}/date={file.date}/v{version:08d}-{task}-{number}.parquet"


def _oldest(files: Sequence[DataFile]) -> dict[Pair, int]:
    oldest: dict[Pair, int] = {}
    for file in files:
        for held in file.held:
            pair = (file.topic, held.partition)
            oldest[pair] = min(oldest.get(pair, held.first), held.first)
    return oldest


def _counted(commit: Commit) -> dict[str, int]:
    return {
        "records": sum(file.records for file in commit.add),
        "files": len(commit.add),
        "bytes": sum(file.size_bytes for file in commit.add),
        "dead_letters": sum(records for _, _, records in commit.dead_letters),
    }
