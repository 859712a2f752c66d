"""Watching the jobs a pipeline starts: how many of their tasks are done.

The jobs of a block run in a job group of their own. A thread asks Spark's status tracker now and then; it
changes nothing, and a tracker that does not answer only costs the progress. Interrupting the block cancels
its jobs. Spark Connect has no tracker on this side: nothing is told there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from stratalog.spark.pipelines.result import Progress

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

POLL_S = 0.2
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_INTERRUPT = "spark.job.interruptOnCancel"


@contextmanager
def watched(spark: SparkSession, progress: Progress | None, what: str) -> Iterator[None]:
    """Tell ``progress(what, done, total)`` in tasks while the block's jobs run; the total grows with them.

    The jobs also carry ``what`` as their description in Spark's own pages. Blocks may be nested.
    """
    context = _context(spark)
    if context is None:
        yield
        return
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION, _INTERRUPT)}
    group = f"stratalog-{uuid.uuid4()}"
    context.setJobGroup(group, what)
    poller = None if progress is None else _Poller(context, group, progress, what)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Py4JError, OSError):
            context.cancelJobGroup(group)
        raise
    finally:
        if poller is not None:
            poller.stop()
        for name, value in before.items():
            with suppress(Py4JError, OSError):
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away


class _Poller:
    def __init__(self, context: SparkContext, group: str, progress: Progress, what: str) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._progress = progress
        self._what = what
        self._told = (-1, -1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {what}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._tell()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._tell()

    def _tell(self) -> None:
        try:
            told = tasks(self._tracker, self._group)
        except (Py4JError, OSError):
            return  # the session is being stopped: nothing to tell any more
        if told[1] and told != self._told:
            self._told = told
            self._progress(self._what, *told)


def tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Tasks done and tasks in all, over the jobs of a group so far.

    Stages a finished job did not need (their output was there) leave with it.
    """
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        if job is None:
            continue
        over = job.status in ("SUCCEEDED", "FAILED")
        for stage_id in job.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is None:
                continue
            done += stage.numCompletedTasks
            total += stage.numCompletedTasks if over else stage.numTasks
    return done, total


def _context(spark: SparkSession) -> SparkContext | None:
    if getattr(spark, "_jsparkSession", None) is None:
        return None  # Spark Connect
    return spark.sparkContext
