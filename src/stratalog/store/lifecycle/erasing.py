"""Erasing keys from a topic: log, archive and leftovers, with an account of it in an audit file.

`stratalog.audit` in the root of the first log directory gets a JSON line when an erasure begins and another
when it ends, synced; it tells the topic, the reason given, how many keys and records, and the files that were
rewritten. The keys themselves are not in it: they are what had to go.

Crash policy: an erasure that was cut short leaves its first line without a second; erasing again finishes it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from stratalog.errors import InvalidArgumentError
from stratalog.log.clean import EraseReport as PartitionErased
from stratalog.log.clean import RewriteTarget, count_keys, erase_keys, erase_segment
from stratalog.log.segment.segment import Segment
from stratalog.store.admin.control import Progress
from stratalog.store.lifecycle.reports import EraseReport
from stratalog.store.moving import or_missing, unmoved

if TYPE_CHECKING:
    from stratalog.log.write.writer import PartitionWriter
    from stratalog.store.catalog import View
    from stratalog.store.lifecycle.lifecycle import Lifecycle
    from stratalog.store.topic import Topic

AUDIT = "stratalog.audit"


def erase(
    lifecycle: Lifecycle,
    topic: Topic,
    keys: Collection[bytes],
    *,
    reason: str,
    dry_run: bool,
    progress: Progress | None,
) -> EraseReport:
    """Remove every record of ``keys``; active segments are sealed first, and no other offset moves."""
    wanted = frozenset(keys)
    if not wanted or not all(isinstance(key, bytes) for key in wanted):
        raise InvalidArgumentError("erase takes the keys to erase, as bytes; there were none")
    erasing = _Erasing(lifecycle, topic, wanted, dry_run, progress)
    if not dry_run:
        erasing.audit({"event": "begin", "reason": reason})
    for number in range(topic.partitions):
        erasing.partition(number)
    return erasing.report(reason)


class _Erasing:
    def __init__(
        self,
        lifecycle: Lifecycle,
        topic: Topic,
        keys: frozenset[bytes],
        dry_run: bool,
        progress: Progress | None,
    ) -> None:
        self._lifecycle = lifecycle
        self._partitions = lifecycle.partitions
        self._topic = topic
        self._keys = keys
        self._dry_run = dry_run
        self._progress = progress
        self._records = 0
        self._segments: list[str] = []
        self._archived: list[str] = []
        self._leftovers: list[str] = []
        self._damaged: list[str] = []
        self._notes: list[str] = []

    def partition(self, number: int) -> None:
        name, lifecycle, progress = self._topic.name, self._lifecycle, self._progress
        label, stop = f"{name}-{number}", lifecycle.is_stopping
        report = None if progress is None else lambda at, total: progress(label, at, total)
        with lifecycle.claims.claim((name, number)):
            if self._dry_run:
                view = self._partitions.view(name, number)
                view.refresh()
                if view.local_segments():
                    done = unmoved(self._partitions, view, count_keys, self._keys, progress=report, stop=stop)
                    self._add(label, done)
                    self._count_unreached(view)
                return
            writer = self._partitions.writer(name, number)
            with or_missing(writer):
                writer.roll()
                self._add(label, erase_keys(writer, self._keys, progress=report, stop=stop))
                self._in_archive(writer)

    def _add(self, label: str, done: PartitionErased) -> None:
        self._records += done.records_erased
        self._segments += [f"{label}: {done.segments_rewritten}"] if done.segments_rewritten else []
        self._leftovers += done.files_removed
        self._damaged += [damage.path for damage in done.unreachable]
        if done.stopped is not None:
            self._notes.append(f"{label}: not finished, {done.stopped}; erase again")

    def _in_archive(self, writer: PartitionWriter) -> None:
        """Return the segments that only the archive has, and its copies of local ones that were rewritten."""
        tiering = self._lifecycle.tiering
        if tiering is None:
            return
        erased = 0

        def engine(source: Segment, directory: str) -> Sequence[Segment]:
            nonlocal erased
            location = source.location._replace(directory=directory)
            target = RewriteTarget(location, writer.config, home=writer.directory)
            made = erase_segment(source, target, self._keys)
            erased += made.records_in - made.records_out if made.segments else 0
            return made.segments

        entries = tiering.rewrite(
            writer,
            engine,
            wanted=lambda segment: tiering.may_hold(segment, self._keys),
            progress=self._progress,
            stop=self._lifecycle.is_stopping,
        )
        self._records += erased
        self._archived += [f"{writer.topic}-{writer.partition}: {entry.name}" for entry in entries]

    def _count_unreached(self, view: View) -> None:
        """Count the keys where `count_keys` does not look: in the archive and in the active segment."""
        local, start, end = view.local_segments(), view.log_start_offset, view.end_offset()
        self._records += self._count(view.partition, start, min(local[0].base_offset, end))
        self._records += self._count(view.partition, max(start, local[-1].base_offset), end)

    def _count(self, partition: int, start: int, end: int) -> int:
        import pyarrow as pa
        import pyarrow.compute as pc

        if start >= end:
            return 0
        wanted = pa.array(sorted(self._keys), pa.binary())
        batches = self._topic.scan([partition], ["key"], start=start, end=end)
        return sum(pc.sum(pc.is_in(batch.column(0), wanted)).as_py() or 0 for batch in batches)

    def report(self, reason: str) -> EraseReport:
        from stratalog.store.copies.clones import clones  # it opens stores itself

        roots = [where.path for where in self._partitions.dirs.online()]
        copies, unreadable = clones(roots, topic=self._topic.name, fs=self._partitions.context.fs)
        if unreadable:
            self._notes.append(f"{unreadable} lines in the list of clones cannot be read: there may be more")
        report = EraseReport(
            topic=self._topic.name,
            keys=len(self._keys),
            dry_run=self._dry_run,
            records=self._records,
            segments=tuple(self._segments),
            archived=tuple(self._archived),
            leftovers=tuple(self._leftovers),
            clones=tuple(dict.fromkeys(copy.target for copy in copies)),
            quarantined=tuple(self._damaged),
            audit=None if self._dry_run else self._audit_path,
            notes=tuple(self._notes),
        )
        if not self._dry_run:
            self.audit({"event": "end", "reason": reason, **report.to_json()})
        return report

    @property
    def _audit_path(self) -> str:
        return self._partitions.dirs.online()[0].file(AUDIT)

    def audit(self, entry: dict[str, Any]) -> None:
        """Add a line, durable on return; a line that a crash or a full disk cut short stays by itself."""
        context = self._partitions.context
        line = {
            "time_ms": context.clock.now_ms(),
            "topic": self._topic.name,
            "keys": len(self._keys),
            **entry,
        }
        with self._lifecycle.auditing:
            with context.fs.open(self._audit_path, "a") as file:
                end = file.size()
                cut_short = end > 0 and file.pread(1, end - 1) != b"\n"
                file.pwrite(b"\n" * cut_short + json.dumps(line).encode() + b"\n", end)
                file.sync()
            context.fs.sync_dir(self._partitions.dirs.online()[0].path)
