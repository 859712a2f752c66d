"""`graduate`: a topic is handed to a real Kafka broker, by filling the directories the broker made for it.

The operator makes the topic there with as many partitions and `retention.ms=-1`, and stops the broker
cleanly. Then the logs are copied, checked batch by batch; the broker keeps its own `partition.metadata` and
`leader-epoch-checkpoint`, and each copied batch gets the leader epoch that the broker knows (it lies outside
the batch's CRC). `.kafka_cleanshutdown` goes, so that the broker recovers the partitions at its next start
and knows their producers again. Our own sidecars stay behind: the broker has no use for them.

Where seals allow offsets to be missing between segments, the partition gets an entry in the broker's
`cleaner-offset-checkpoint`: the log start, where its cleaner begins.

Whole or not at all, also after a crash: everything is staged in the broker's log directory under
`stratalog.graduating`, a name that keeps a Kafka broker from starting. While it is there nothing counts; once
it holds the file `commit`, running `graduate` again finishes what is left. It is removed last of all. The
broker's lock is held all the while.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from stratalog.errors import FormatError, InvalidArgumentError, NotFoundError, StorageError, StoreLockedError
from stratalog.format import batch as batches
from stratalog.format import checkpoints
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import FileSystem
from stratalog.log import names
from stratalog.log.context import Clock, LogContext
from stratalog.log.names import file_name, parse_file, parse_partition_dir, partition_dir
from stratalog.log.segment.segment import Segment
from stratalog.log.segment.sidecars import Sidecars
from stratalog.store import logdir
from stratalog.store.copies.copying import check_part
from stratalog.store.copies.cutting import newest_timestamp, pieces_before
from stratalog.store.copies.kafka_metadata import read_topics
from stratalog.store.copies.registry import CopyEntry, remember
from stratalog.store.copies.reports import GraduateReport, Meter, PartitionCopy, Progress
from stratalog.store.copies.source import SourcePartition, open_source
from stratalog.store.logdir import LogDir
from stratalog.store.paths import Paths, path_list
from stratalog.store.store import Store

STAGING = "stratalog.graduating"
COMMIT = "commit"
REPLACED = ".replaced"
KEPT = (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT)
KAFKA_KINDS = ("index", "timeindex", "txnindex")
DAY_MS = 86_400_000


@dataclass(slots=True)
class _Plan:
    """What the broker's directories look like, and what stands in the way."""

    places: dict[int, str] = field(default_factory=dict)
    """Partition -> the log directory it lies in."""
    epochs: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def graduate(
    source: Store | Paths,
    topic: str,
    kafka_log_dir: Paths,
    *,
    dry_run: bool = False,
    allow_retention: bool = False,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> GraduateReport:
    """Hand a topic to a stopped Kafka broker: its log directories, all of them where it has several.

    ``dry_run`` changes nothing and reports every problem; else a problem is an error that names all of them.
    ``allow_retention`` goes on where the topic's retention over there would delete records at once.
    """
    with open_source(source, config, fs=fs, clock=clock) as origin, ExitStack() as stack:
        context = origin.context
        dirs = path_list(context.fs, kafka_log_dir)
        _check_dirs(context.fs, dirs, origin.paths)
        problems = []
        if dry_run:
            problems = _held(context.fs, dirs)
        else:
            _take_locks(context.fs, dirs, stack)
            _finish_earlier(context, dirs)
        parts = origin.complete(topic)
        plan = _inspect(context, parts, dirs, topic, allow_retention=allow_retention)
        problems += plan.problems
        if problems and not dry_run:
            error = InvalidArgumentError(f"{topic} cannot be handed over: " + "; ".join(problems))
            raise error.advising("dry_run=True only looks")
        meter = Meter(progress, sum(segment.size for part in parts for segment in part.segments))
        copies, gapped, patched = [], set(), 0
        if not dry_run:
            made_ms = context.clock.now_ms()
            entry = CopyEntry(id_to_text(new_id()), "graduate", dirs[0], made_ms, (topic,))
            remember(context.fs, origin.paths, entry)
        try:
            for part in parts:
                where, epoch = plan.places.get(part.partition), plan.epochs.get(part.partition, 0)
                copy = _Handed(part, epoch, meter, None if dry_run else where)
                copies.append(copy.run())
                patched += copy.patched
                if copy.has_gaps:
                    gapped.add(part.partition)
        except BaseException as error:
            if not dry_run:
                _finish_earlier(context, dirs)
            if isinstance(error, FileNotFoundError):
                raise StorageError(
                    f"{topic}: its segments were replaced or removed while they were copied; try again when"
                    " no cleanup is running"
                ) from error
            raise
        if not dry_run:
            _commit(context, dirs, plan.places, topic, copies, gapped)
        steps = _operator(topic, copies, dirs)
        return GraduateReport(topic, tuple(dirs), tuple(copies), patched, steps, tuple(problems), dry_run)


# -- looking


def _check_dirs(fs: FileSystem, dirs: list[str], ours: list[str]) -> None:
    for path in dirs:
        if path in ours:
            raise InvalidArgumentError(
                f"{path} is the store itself; give the log directory of a Kafka broker"
            )
        if not fs.exists(f"{path}/{logdir.META_PROPERTIES}"):
            raise NotFoundError(
                f"{path} is no log directory of a Kafka broker: it has no {logdir.META_PROPERTIES}; format it"
                " and start the broker once"
            )


def _held(fs: FileSystem, dirs: list[str]) -> list[str]:
    return [
        f"{path} is in use by process {holder.get('pid', 'unknown')}: stop the broker cleanly"
        for path in dirs
        if (holder := fs.lock_holder(f"{path}/{logdir.LOCK}")) is not None
    ]


def _take_locks(fs: FileSystem, dirs: list[str], stack: ExitStack) -> None:
    for path in dirs:
        try:
            lock = fs.lock(f"{path}/{logdir.LOCK}", {"pid": os.getpid(), "started": int(time.time())})
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{path} is in use: stop the broker cleanly first ({error})",
                pid=error.pid,
                control=error.control,
            ) from error
        stack.callback(lock.release)


def _inspect(
    context: LogContext, parts: list[SourcePartition], dirs: list[str], topic: str, *, allow_retention: bool
) -> _Plan:
    fs, plan = context.fs, _Plan()
    if any(fs.exists(f"{path}/{STAGING}") for path in dirs):
        plan.problems.append("an earlier hand-over was cut short: run it again without dry_run")
    for path in dirs:
        for name in fs.list_dir(path):
            parsed = parse_partition_dir(name)
            if parsed is not None and parsed.topic == topic and not parsed.state:
                plan.places[parsed.partition] = path
    if sorted(plan.places) != list(range(len(parts))):
        there = f"it has {len(plan.places)}" if plan.places else "it is not there"
        plan.problems.append(
            f"create the topic {topic} at the broker with {len(parts)} partitions and retention.ms=-1, then"
            f" stop the broker cleanly ({there})"
        )
        return plan
    for number, path in sorted(plan.places.items()):
        directory = f"{path}/{partition_dir(topic, number)}"
        if not fs.exists(f"{directory}/{names.PARTITION_METADATA}"):
            plan.problems.append(
                f"{directory} has no {names.PARTITION_METADATA}: start the broker, wait until the topic is"
                " there, and stop it cleanly"
            )
        size = sum(
            fs.stat(f"{directory}/{name}").size
            for name in fs.list_dir(directory)
            if (parsed_file := parse_file(name)) is not None and parsed_file.kind == names.LOG
        )
        if size:
            plan.problems.append(
                f"{directory} already holds {size} bytes of records: delete the topic there, create it anew"
            )
        plan.epochs[number] = _latest_epoch(fs, directory)
    if not allow_retention:
        plan.problems += _retention_problem(context, parts, dirs, topic)
    return plan


def _latest_epoch(fs: FileSystem, directory: str) -> int:
    """The leader epoch the broker knows: what its batches are expected to carry."""
    try:
        epochs = checkpoints.parse_leader_epochs(fs.read_file(f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"))
    except (FileNotFoundError, FormatError):
        epochs = []
    return epochs[-1][0] if epochs else 0


def _retention_problem(
    context: LogContext, parts: list[SourcePartition], dirs: list[str], topic: str
) -> list[str]:
    """Records older than the topic's retention over there would be gone within minutes of the start."""
    for path in dirs:
        topics = read_topics(context.fs, path)
        if topics is None or topic not in topics:
            continue
        found = topics[topic].config
        if "delete" not in found.get("cleanup.policy", "delete"):
            return []
        limit = int(found.get("retention.ms", 7 * DAY_MS))
        now = context.clock.now_ms()
        for part in parts:
            for segment in part.segments:
                newest = newest_timestamp(segment)
                if limit >= 0 and newest is not None and newest < now - limit:
                    problem = (
                        f"the oldest records of {part} are past the retention.ms={limit} that the topic has"
                        " at the broker: set retention.ms=-1 there first"
                    )
                    return [problem]
        return []
    return []


# -- copying


class _Handed:
    """One partition on its way; without ``where`` it is only read."""

    def __init__(self, part: SourcePartition, epoch: int, meter: Meter, where: str | None) -> None:
        self._part = part
        self._fs = part.context.fs
        self._epoch = epoch
        self._meter = meter
        self._where = where
        self._staged = (
            "" if where is None else f"{where}/{STAGING}/{partition_dir(part.topic, part.partition)}"
        )
        self.patched = 0
        self.has_gaps = False
        self._bytes = 0

    def run(self) -> PartitionCopy:
        part = self._part
        end, start = part.end_offset, part.log_start_offset
        segments = part.segments
        check_part(part, start, end)
        if self._where is not None:
            self._fs.make_dir(self._staged)
        count, first = 0, -1
        for at, segment in enumerate(segments):
            following = segments[at + 1].base_offset if at + 1 < len(segments) else end
            if segment.base_offset >= end or (following <= start and at + 1 < len(segments)):
                continue
            self.has_gaps |= segment.batches_end_offset() < min(following, end)
            # One that compaction emptied stays at the head of the log: it is where the log begins.
            if self._segment(segment, min(following, end), keep_empty=first < 0 and following < end):
                count += 1
                first = segment.base_offset if first < 0 else first
        if self._where is not None:
            self._finish(end if first < 0 else first, end)
        return PartitionCopy(
            part.topic, part.partition, start, end, end, segments=max(count, 1), copied_bytes=self._bytes
        )

    def _segment(self, segment: Segment, stop: int, *, keep_empty: bool) -> bool:
        """Copy what lies below ``stop``; False when there is nothing and an empty segment is not kept."""
        base, size = segment.base_offset, 0
        made = Sidecars(base, self._part.config.index_interval_bytes, keyed=False)
        path = f"{self._staged}/{file_name(base, 'log')}"
        with ExitStack() as stack:
            file = None
            if self._where is not None:
                file = stack.enter_context(self._fs.open(path, "x"))
            for data in self._patched(segment, stop):
                if file is not None:
                    file.pwrite(data, size)
                    made.add(size, data, batches.scan(data, check_crc=False))
                size += len(data)
                self._meter.done(len(data))
            if file is not None:
                file.sync()
        self._bytes += size
        if self._where is None:
            return size > 0 or keep_empty
        if not size and not keep_empty:
            self._fs.remove(path)
            return False
        with suppress(FileNotFoundError, NotADirectoryError):
            self._fs.set_mtime_ns(path, self._fs.stat(segment.path()).mtime_ns)
        aborted = self._part.view.aborted(base, stop)
        made.aborted = [txn for txn in aborted if base <= txn.last_offset < stop]
        for kind in KAFKA_KINDS:
            content = made.pack(kind)
            if content is not None:
                self._fs.write_file(f"{self._staged}/{base:020d}.{kind}", content, sync=True)
        return True

    def _patched(self, segment: Segment, stop: int) -> Iterator[bytearray]:
        for data, scan in pieces_before(segment, stop):
            buffer = bytearray(data)
            for header in scan:
                if header.leader_epoch != self._epoch:
                    struct.pack_into(">i", buffer, header.position + 12, self._epoch)
                    self.patched += 1
            yield buffer

    def _finish(self, first: int, end: int) -> None:
        """The producers' state at the start, the broker's own two files, and everything synced."""
        fs, part = self._fs, self._part
        if first == end:
            fs.write_file(f"{self._staged}/{file_name(end, 'log')}", b"", sync=True)
        if first in part.snapshots and first > 0:
            with suppress(FileNotFoundError):
                data = fs.read_file(f"{part.directory}/{file_name(first, 'snapshot')}")
                fs.write_file(f"{self._staged}/{file_name(first, 'snapshot')}", data, sync=True)
        theirs = f"{self._where}/{partition_dir(part.topic, part.partition)}"
        for name in KEPT:
            with suppress(FileNotFoundError):
                fs.write_file(f"{self._staged}/{name}", fs.read_file(f"{theirs}/{name}"), sync=True)
        fs.sync_dir(self._staged)


# -- handing over


def _commit(
    context: LogContext,
    dirs: list[str],
    places: Mapping[int, str],
    topic: str,
    copies: list[PartitionCopy],
    gapped: Collection[int],
) -> None:
    fs = context.fs
    for path in dirs:
        mine = {copy.partition: copy for copy in copies if places[copy.partition] == path}
        if not mine:
            continue
        checkpoints = LogDir(context, path).checkpoints
        checkpoints.forget([(topic, number) for number in mine])
        starts = {(topic, number): copy.log_start_offset for number, copy in mine.items()}
        checkpoints.log_start.update(starts)
        checkpoints.cleaner_offset.update({key: at for key, at in starts.items() if key[1] in gapped})
        with suppress(FileNotFoundError):
            fs.remove(f"{path}/{logdir.CLEAN_SHUTDOWN}")
        fs.sync_dir(f"{path}/{STAGING}")
        fs.sync_dir(path)
    for path in dirs:
        if fs.exists(f"{path}/{STAGING}"):
            fs.write_atomic(f"{path}/{STAGING}/{COMMIT}", f"{topic}\n".encode())
    _roll_forward(context, dirs)


def _finish_earlier(context: LogContext, dirs: list[str]) -> None:
    """What an earlier hand-over left: finished when it was committed, else removed."""
    fs = context.fs
    staging = [f"{path}/{STAGING}" for path in dirs if fs.exists(f"{path}/{STAGING}")]
    if any(fs.exists(f"{each}/{COMMIT}") for each in staging):
        _roll_forward(context, dirs)
    else:
        for each in staging:
            fs.remove_tree(each)


def _roll_forward(context: LogContext, dirs: list[str]) -> None:
    """Give the staged directories their names; the broker's own, without records, step aside."""
    fs = context.fs
    staging = [path for path in dirs if fs.exists(f"{path}/{STAGING}")]
    for path in staging:
        for name in fs.list_dir(f"{path}/{STAGING}"):
            parsed = parse_partition_dir(name)
            if parsed is None:
                continue
            final, staged = f"{path}/{name}", f"{path}/{STAGING}/{name}"
            if fs.exists(final):
                fs.rename(final, f"{staged}{REPLACED}")
            fs.rename(staged, final)
            fs.sync_dir(f"{path}/{STAGING}")
            fs.sync_dir(path)
    for path in staging:
        fs.remove_tree(f"{path}/{STAGING}")
        fs.sync_dir(path)


def _operator(topic: str, copies: list[PartitionCopy], dirs: list[str]) -> tuple[str, ...]:
    ends = ", ".join(f"{copy.partition}: {copy.end_offset}" for copy in copies)
    before = (
        f"Before: the topic {topic} exists at the broker with {len(copies)} partitions and retention.ms=-1,"
        " and the broker was stopped cleanly."
    )
    replicas = (
        "With more than one replica: stop the other brokers too, and start this one first. A replica without"
        " records that becomes the leader would have these cut off."
    )
    start = (
        f"Start the broker over {', '.join(dirs)}. It recovers the partitions, as after a crash, and knows"
        " their producers again."
    )
    check = f"Check that each partition ends where it should (kafka-get-offsets): {ends}."
    after = (
        f"When old records may go, set the topic's retention.ms again; then delete {topic} here, or stop"
        " writing to it: what is appended here from now on does not reach the broker."
    )
    return before, replicas, start, check, after
