"""Compaction of a partition that another process writes: the rewriting is done here, the swap there.

The process that holds the partition describes a round as a `CleaningTask`: the sealed segments, the
producers, the transactions aborted above. Another process reads those segments where they lie, writes their
replacements into a directory of its own, and answers with a `Cleaned`: which new segments replace which old
ones. Both are JSON. The holder swaps them in (`stratalog.store.lifecycle.remote_compaction`).

A round here makes what `clean` would have made of the same segments at the same time, byte for byte. Passes
after the first read the segments that the pass before has made.

Crash policy: nothing of the log is touched. Leftovers are removed with the task's directory.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from stratalog.config import TopicConfig
from stratalog.errors import StorageError
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.log import names
from stratalog.log.check.damage import Damage
from stratalog.log.clean.compact import Aborted, Cleaning, CleanReport, WriterPlace, round_end
from stratalog.log.clean.rewriting import Pace, RewriteTarget, VanishedSegmentError, aborted_of
from stratalog.log.clean.rules import MayBeBelow
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter


class SegmentPlan(NamedTuple):
    """A sealed segment as the holder knows it."""

    base_offset: int
    size: int
    next_offset: int | None


class NewSegment(NamedTuple):
    """A segment that was written, in a folder of the task's work directory."""

    folder: str
    base_offset: int
    size: int
    next_offset: int | None


class Replacement(NamedTuple):
    """Base offsets of neighbours, and the segments that replace them."""

    olds: tuple[int, ...]
    news: tuple[NewSegment, ...]


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """One round over one partition, for another process."""

    topic: str
    partition: int
    directory: str
    work: str
    """An empty directory on the disk of the partition; it is the task's alone."""
    segments: tuple[SegmentPlan, ...]
    """The sealed ones that the round may touch, in order."""
    above: tuple[tuple[int, Aborted], ...]
    """Of every segment behind them: its base offset and what was aborted in it."""
    producers: tuple[ProducerEntry, ...]
    span: tuple[int, int]
    """The first dirty offset, and the base offset where the round ends."""
    archived_end: int
    """Below it records lie in the archive; 0 when there are none."""
    config: TopicConfig
    memory_bytes: int
    now_ms: int
    io_bytes_per_s: float | None = None

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.segments)

    def to_json(self) -> dict[str, Any]:
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "segments": [list(each) for each in self.segments],
            "above": [[base, _aborted_to_json(found)] for base, found in self.above],
            "producers": [list(each) for each in self.producers],
            "span": list(self.span),
            "config": _config_to_json(self.config),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CleaningTask:
        first_dirty, end = value["span"]
        return cls(
            **{
                **value,
                "segments": tuple(SegmentPlan(*each) for each in value["segments"]),
                "above": tuple((base, _aborted_from_json(found)) for base, found in value["above"]),
                "producers": tuple(ProducerEntry(*each) for each in value["producers"]),
                "span": (first_dirty, end),
                "config": _config_from_json(value["config"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a task."""

    report: CleanReport
    replacements: tuple[Replacement, ...]
    """From the lowest up."""
    next_dirty_offset: int | None
    """For the cleaner's checkpoint, once all of it is swapped in; None when not one pass was finished."""

    def to_json(self) -> dict[str, Any]:
        return {
            "report": self.report.to_json(),
            "replacements": [[list(olds), [list(each) for each in news]] for olds, news in self.replacements],
            "next_dirty_offset": self.next_dirty_offset,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cleaned:
        return cls(
            CleanReport.from_json(value["report"]),
            tuple(
                Replacement(tuple(olds), tuple(NewSegment(*each) for each in news))
                for olds, news in value["replacements"]
            ),
            value["next_dirty_offset"],
        )


def describe_round(
    writer: PartitionWriter,
    cleanable: Cleanable,
    *,
    work: str,
    memory_bytes: int,
    now_ms: int,
    io_bytes_per_s: float | None = None,
) -> tuple[CleaningTask, dict[int, Segment]]:
    """Describe what `clean` would do now; return the task and its segments by base offset.

    The caller keeps the partition from being rewritten until the answer has arrived.
    """
    writer.make_usable()
    place = WriterPlace(writer)
    end = round_end(writer, cleanable)
    sealed = {each.base_offset: each for each in place.sealed() if each.base_offset < end}
    task = CleaningTask(
        topic=writer.topic,
        partition=writer.partition,
        directory=writer.directory,
        work=work,
        segments=tuple(SegmentPlan(base, each.size, each.next_offset) for base, each in sealed.items()),
        above=tuple((base, found) for base, found in place.transactions() if base not in sealed),
        producers=tuple(place.producers()),
        span=(cleanable.first_dirty_offset, end),
        archived_end=place.archived_end(),
        config=writer.config,
        memory_bytes=memory_bytes,
        now_ms=now_ms,
        io_bytes_per_s=io_bytes_per_s,
    )
    return task, sealed


def clean_elsewhere(
    task: CleaningTask,
    context: LogContext,
    *,
    attempt: str,
    may_be_below: MayBeBelow | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Cleaned:
    """Carry out a task in the folder ``attempt`` of its work directory, which no other attempt may use.

    Raise StorageError when this machine does not see the holder's files.
    """
    _check_seen(context, task)
    place = StagedPlace(task, context, attempt)
    pace = Pace(task.io_bytes_per_s, progress)
    saved: list[int] = []
    try:
        cleaning = Cleaning(place, task.span, task.memory_bytes, task.now_ms, may_be_below, pace)
        report = cleaning.run(saved.append)
        return Cleaned(report, place.replacements(), saved[-1] if saved else None)
    except BaseException:
        with suppress(StorageError, FileNotFoundError):
            context.fs.remove_tree(f"{task.work}/{attempt}")
        raise


def _check_seen(context: LogContext, task: CleaningTask) -> None:
    for path in (task.directory, task.work):
        if not context.fs.exists(path):
            raise StorageError(
                f"{path} is not seen from {socket.gethostname()}: compaction rewrites segments where they"
                " lie, so every executor must see the log directory and the directory it is in, under the"
                " same path; a store on one machine's disk is compacted there (--master 'local[*]')"
            )
    for each in task.segments:
        path = f"{task.directory}/{names.file_name(each.base_offset, names.LOG)}"
        with suppress(FileNotFoundError):  # then the log changed meanwhile, which a round knows how to tell
            if context.fs.stat(path).size != each.size:
                raise StorageError(f"{path} is another file on {socket.gethostname()}: not {each.size} bytes")


class StagedPlace:
    """The partition of a task: its segments, replaced by the ones made so far."""

    def __init__(self, task: CleaningTask, context: LogContext, attempt: str) -> None:
        self._task = task
        self._attempt = attempt
        self._folders = 0
        self.location = PartitionLocation(context, task.directory, task.topic, task.partition)
        self.context, self.directory, self.topic, self.partition = self.location
        self.config = task.config
        self._segments = [
            Segment(
                self.location,
                each.base_offset,
                size=each.size,
                next_offset=each.next_offset,
            )
            for each in task.segments
        ]
        self._runs: list[tuple[list[int], list[Segment]]] = []
        """Old base offsets and the segments in their place, ascending."""

    def sealed(self) -> Sequence[Segment]:
        return self._segments

    def transactions(self) -> Iterator[tuple[int, Aborted]]:
        for segment in self._segments:
            yield segment.base_offset, aborted_of(segment)
        yield from self._task.above

    def archived_end(self) -> int:
        return self._task.archived_end

    def producers(self) -> Sequence[ProducerEntry]:
        return self._task.producers

    def target(self, group: Sequence[Segment]) -> RewriteTarget:
        self._folders += 1
        directory = f"{self._task.work}/{self._attempt}/{self._folders:06d}"
        if not self.context.fs.exists(self._task.work):
            raise VanishedSegmentError(self._task.work)  # the holder has given the partition to another
        self.context.fs.make_dir(directory)
        return RewriteTarget(
            self.location._replace(directory=directory),
            self.config,
            suffix="",
            home=self.directory,
        )

    def swap(self, group: Sequence[Segment], made: Sequence[Segment]) -> bool:
        at = self._segments.index(group[0])
        self._segments[at : at + len(group)] = made
        touched = [run for run in self._runs if any(each in run[1] for each in group)]
        staged = {id(each) for run in touched for each in run[1]}
        olds = [base for run in touched for base in run[0]]
        olds += [each.base_offset for each in group if id(each) not in staged]
        kept = [each for run in touched for each in run[1] if each not in group]
        news = sorted((*kept, *made), key=lambda each: each.base_offset)
        self._runs = [run for run in self._runs if run not in touched]
        self._runs.append((sorted(olds), news))
        self._runs.sort(key=lambda run: run[0][0])
        for each in group:
            if id(each) in staged:
                each.forget()
                self.context.fs.remove_tree(each.directory)
        return True

    def replacements(self) -> tuple[Replacement, ...]:
        """Return which segments replace which, from the lowest up."""
        return tuple(
            Replacement(
                tuple(olds),
                tuple(
                    NewSegment(
                        each.directory.removeprefix(f"{self._task.work}/"),
                        each.base_offset,
                        each.size,
                        each.next_offset,
                    )
                    for each in news
                ),
            )
            for olds, news in self._runs
        )


# -- JSON ------------------------------------------------------------------------------------------------


def _aborted_to_json(found: Aborted) -> Any:
    return asdict(found) if isinstance(found, Damage) else [list(each) for each in found]


def _aborted_from_json(value: Any) -> Aborted:
    return Damage(**value) if isinstance(value, dict) else tuple(AbortedTxn(*each) for each in value)


def _config_to_json(config: TopicConfig) -> dict[str, Any]:
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    return {
        name: sorted(value) if isinstance(value, (frozenset, tuple)) else value
        for name, value in values.items()
    }


def _config_from_json(value: Mapping[str, Any]) -> TopicConfig:
    kinds = {each.name: getattr(TopicConfig(), each.name) for each in fields(TopicConfig)}
    return TopicConfig(
        **{name: type(kinds[name])(each) if isinstance(each, list) else each for name, each in value.items()}
    )
