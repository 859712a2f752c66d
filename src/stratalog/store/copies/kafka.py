"""Topics to and from a Kafka broker: `graduate` hands one over, `adopt` takes one over.

**graduate** fills the directories that the broker made for the topic. The operator creates the topic there
with as many partitions and `retention.ms=-1`, and stops the broker cleanly. Then the logs are copied, checked
batch by batch. The broker keeps its own `partition.metadata` and `leader-epoch-checkpoint`, and each copied
batch gets the leader epoch that the broker knows (it lies outside the batch's CRC). `.kafka_cleanshutdown` is
removed, so that the broker recovers the partitions at its next start and knows their producers again. Our own
sidecars are not copied. If seals allow offsets to be missing between segments, the partition gets an entry in
the broker's `cleaner-offset-checkpoint`: the log start, where its cleaner begins.

It is whole or not at all, also after a crash: everything is staged in the broker's log directory under
`stratalog.graduating`, a name that keeps a Kafka broker from starting. While that exists nothing counts; once
it holds the file `commit`, running `graduate` again finishes the rest. It is removed last. The broker's lock
is held all the while.

**adopt** copies a topic of a stopped broker, or of a copy of its log directories. Every batch is checked; the
broker's files are only read. Offsets, timestamps, producers, aborted transactions, leader epochs and the
topic's id are kept. Settings come from the cluster's metadata log if it lies in one of the directories.
Without one the topic keeps everything, so that no default retention deletes old records. A crash leaves no
topic (see `topic_import`).

**The metadata log** of a KRaft broker, `__cluster_metadata-0`, lies in its first log directory (or in
`metadata.log.dir`). It is a log like any other; each record is one change:

    frame version uvarint (1) · type uvarint · version uvarint · fields
    2  TopicRecord         name, id
    4  ConfigRecord        resource type int8 (2: topic), resource name, setting, value or null
    9  RemoveTopicRecord   id

Strings are a uvarint of their length plus one (0: null) and UTF-8. A `<offset>-<epoch>.checkpoint` file
holds, in the same form, everything before its offset. Other types, and newer versions, are skipped; a log
that cannot be read to its end is used as far as it can.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from stratalog.config import topic_config
from stratalog.errors import (
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
    StoreLockedError,
    TopicExistsError,
)
from stratalog.format import batch as batches
from stratalog.format import checkpoints
from stratalog.format.metadata import CLEAN_SHUTDOWN, META_PROPERTIES, id_to_text, new_id
from stratalog.fs import FileSystem
from stratalog.log import names
from stratalog.log.context import Clock, LogContext, PartitionLocation
from stratalog.log.names import LOCK, file_name, parse_file, parse_partition_dir, partition_dir
from stratalog.log.segment.segment import Segment, scan_file
from stratalog.log.segment.sidecars import Sidecars
from stratalog.model import Record
from stratalog.store.catalog import NO_POLICY
from stratalog.store.copies.building import (
    Meter,
    PartitionBuilder,
    PartitionCopy,
    Progress,
    Report,
    copy_partition,
)
from stratalog.store.copies.clone import take_lock
from stratalog.store.copies.clones import forget, remember
from stratalog.store.copies.cutting import newest_timestamp, pieces_before, uvarint
from stratalog.store.copies.source import Part, changed_too_often, open_source
from stratalog.store.copies.topic_file import ImportReport
from stratalog.store.logdir import LogDir
from stratalog.store.paths import Paths, path_list
from stratalog.store.store import Store
from stratalog.store.topic_import import ImportInto, open_target
from stratalog.wire.messages import codec

STAGING = "stratalog.graduating"
COMMIT = "commit"
REPLACED = ".replaced"
KEPT = (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT)
KAFKA_KINDS = ("index", "timeindex", "txnindex")
DAY_MS = 86_400_000
METADATA_DIR = "__cluster_metadata-0"
TOPIC_RESOURCE = 2
_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


@dataclass(frozen=True, slots=True)
class GraduateReport(Report):
    """What `graduate` did, or would do, and what is left for the operator."""

    topic: str
    log_dirs: tuple[str, ...]
    partitions: tuple[PartitionCopy, ...]
    patched_batches: int
    """Batches whose leader epoch the broker does not know, and that carry its own in the copy."""
    operator: tuple[str, ...]
    problems: tuple[str, ...] = ()
    dry_run: bool = False


# -- adopting


def adopt(
    target: ImportInto,
    kafka_log_dir: Paths,
    topic: str,
    *,
    name: str | None = None,
    settings: Mapping[str, object] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> ImportReport:
    """Take a topic over from a Kafka broker's log directories: all of them, when it has several.

    ``settings`` go over those found in the broker's metadata; ``dry_run`` only reports what would be done.
    """
    wanted = name or topic
    with ExitStack() as stack:
        into = stack.enter_context(open_target(target, fs, dry_run=dry_run))
        context = into.context
        paths = path_list(context.fs, kafka_log_dir)
        own = next((path for path in paths if path in into.paths), None)
        if own is not None:
            raise InvalidArgumentError(
                f"{own} is the store itself, its topics are here already; give a broker's log directories"
            )
        origin = stack.enter_context(open_source(paths, fs=context.fs, clock=context.clock))
        for path, pid in _holders(context.fs, paths):
            who = f"process {pid}" if pid is not None else "another process"
            raise StoreLockedError(
                f"{path} is in use by {who}; stop the broker first, or work on a copy of its log directories",
                pid=pid,
            )
        parts = origin.parts(topic)
        if wanted in into.topics:
            raise TopicExistsError(f"topic {wanted} already exists")
        known = _find_topic(context.fs, paths, topic)
        overrides, notes = into.settings({**NO_POLICY, **({} if known is None else known.config)}, settings)
        if known is None:
            note = "no metadata log of the cluster in the directories given: the topic keeps everything until"
            notes.insert(0, f"{note} its settings are changed")
        config = topic_config(into.broker, overrides)
        topic_id = parts[0].entry.id or new_id()
        if dry_run:
            copies = [
                PartitionCopy(topic, each.partition, each.log_start_offset, each.end_offset, each.end_offset)
                for each in parts
            ]
        else:
            meter = Meter(progress, sum(segment.size for part in parts for segment in part.segments))
            staged = stack.enter_context(into.staging(wanted, len(parts)))
            builders = [
                PartitionBuilder(
                    PartitionLocation(part.context, directory, wanted, part.partition),
                    config,
                    meter,
                    topic_id,
                )
                for part, directory in zip(parts, staged, strict=True)
            ]
            copies = [
                copy_partition(part, builder, lambda each: each.end_offset, anew=True)
                for part, builder in zip(parts, builders, strict=True)
            ]
            into.take_in(wanted, topic_id, overrides, copies, builders)
        return ImportReport(wanted, id_to_text(topic_id), overrides, tuple(copies), tuple(notes), dry_run)


def _holders(fs: FileSystem, paths: list[str]) -> Iterator[tuple[str, int | None]]:
    """Yield the log directories that a program holds, with its process id if known."""
    for path in paths:
        holder = fs.lock_holder(f"{path}/{LOCK}")
        if holder is not None:
            pid = holder.get("pid")
            yield path, pid if isinstance(pid, int) else None


# -- graduating


@dataclass(slots=True)
class _Plan:
    """Where the partitions lie at the broker, and what is in the way."""

    places: dict[int, str] = field(default_factory=dict)
    """The log directory of each partition."""
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
            problems = [
                f"{path} is in use by process {'unknown' if pid is None else pid}: stop the broker cleanly"
                for path, pid in _holders(context.fs, dirs)
            ]
        else:
            for path in dirs:
                lock = take_lock(context.fs, path, f"{path} is in use, stop the broker cleanly first")
                stack.callback(lock.release)
            _finish_earlier(context, dirs)
        parts = origin.parts(topic)
        plan = _inspect(context, parts, dirs, topic, allow_retention=allow_retention)
        problems += plan.problems
        if problems and not dry_run:
            error = InvalidArgumentError(f"{topic} cannot be handed over: " + "; ".join(problems))
            raise error.advising("dry_run=True only reports the problems")
        meter = Meter(progress, sum(segment.size for part in parts for segment in part.segments))
        copies, gapped, patched = [], set(), 0
        if not dry_run:
            entry, _ = remember(
                context.fs, origin.paths, "graduate", dirs[0], [topic], context.clock.now_ms()
            )
        try:
            for part in parts:
                where, epoch = plan.places.get(part.partition), plan.epochs.get(part.partition, 0)
                copy = _HandOver(part, epoch, meter, None if dry_run else where)
                copies.append(copy.run())
                patched += copy.patched
                if copy.has_gaps:
                    gapped.add(part.partition)
        except BaseException as error:
            if not dry_run:
                _finish_earlier(context, dirs)  # nothing of the topic is left there
                with suppress(StorageError, StoreLockedError):
                    forget(context.fs, origin.paths, entry)
            if isinstance(error, FileNotFoundError):
                raise changed_too_often(topic) from error
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
        if not fs.exists(f"{path}/{META_PROPERTIES}"):
            raise NotFoundError(
                f"{path} is not a log directory of a Kafka broker: it has no {META_PROPERTIES}; format"
                " it and start the broker once"
            )


def _inspect(
    context: LogContext, parts: list[Part], dirs: list[str], topic: str, *, allow_retention: bool
) -> _Plan:
    fs, plan = context.fs, _Plan()
    if any(fs.exists(f"{path}/{STAGING}") for path in dirs):
        plan.problems.append("an earlier hand-over was interrupted: run it again without dry_run")
    for path in dirs:
        for name in fs.list_dir(path):
            parsed = parse_partition_dir(name)
            if parsed is not None and parsed.topic == topic and not parsed.state:
                plan.places[parsed.partition] = path
    if sorted(plan.places) != list(range(len(parts))):
        there = f"it has {len(plan.places)}" if plan.places else "it does not exist"
        plan.problems.append(
            f"create the topic {topic} at the broker with {len(parts)} partitions and retention.ms=-1, then"
            f" stop the broker cleanly ({there})"
        )
        return plan
    for number, path in sorted(plan.places.items()):
        directory = f"{path}/{partition_dir(topic, number)}"
        if not fs.exists(f"{directory}/{names.PARTITION_METADATA}"):
            plan.problems.append(
                f"{directory} has no {names.PARTITION_METADATA}: start the broker, wait until the topic"
                " exists, and stop it cleanly"
            )
        size = sum(
            fs.stat(f"{directory}/{name}").size
            for name in fs.list_dir(directory)
            if (parsed_file := parse_file(name)) is not None and parsed_file.kind == names.LOG
        )
        if size:
            plan.problems.append(
                f"{directory} already holds {size} bytes of records: delete the topic there, create it again"
            )
        plan.epochs[number] = _latest_epoch(fs, directory)
    if not allow_retention:
        plan.problems += _retention_problem(context, parts, dirs, topic)
    return plan


def _latest_epoch(fs: FileSystem, directory: str) -> int:
    """Return the leader epoch that the broker knows."""
    try:
        epochs = checkpoints.parse_leader_epochs(fs.read_file(f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"))
    except (FileNotFoundError, FormatError):
        epochs = []
    return epochs[-1][0] if epochs else 0


def _retention_problem(context: LogContext, parts: list[Part], dirs: list[str], topic: str) -> list[str]:
    """Find records older than the topic's retention at the broker, which it would delete after the start."""
    known = _find_topic(context.fs, dirs, topic)
    if known is None or "delete" not in known.config.get("cleanup.policy", "delete"):
        return []
    limit = int(known.config.get("retention.ms", 7 * DAY_MS))
    now = context.clock.now_ms()
    for part in parts if limit >= 0 else ():
        for segment in part.segments:
            newest = newest_timestamp(segment)
            if newest is not None and newest < now - limit:
                problem = (
                    f"the oldest records of {part} are past the retention.ms={limit} that the topic has"
                    " at the broker: set retention.ms=-1 there first"
                )
                return [problem]
    return []


# -- copying


class _HandOver:
    """Copies one partition to the staging directory in ``where``; without one it only reads."""

    def __init__(self, part: Part, epoch: int, meter: Meter, where: str | None) -> None:
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
        start, end = part.log_start_offset, part.end_offset
        if self._where is not None:
            self._fs.make_dir(self._staged)
        count, first = 0, -1
        for segment, stop, _ in part.segments_below(end):
            self.has_gaps |= segment.batches_end_offset() < stop
            # An empty segment, after compaction, is kept at the head of the log: the log begins there.
            if self._segment(segment, stop, keep_empty=first < 0 and stop < end):
                count += 1
                first = segment.base_offset if first < 0 else first
        if self._where is not None:
            self._finish(end if first < 0 else first, end)
        return PartitionCopy(
            part.topic, part.partition, start, end, end, segments=max(count, 1), copied_bytes=self._bytes
        )

    def _segment(self, segment: Segment, stop: int, *, keep_empty: bool) -> bool:
        """Copy a segment up to ``stop``; return False if it is empty and not kept."""
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
                    batches.write_field(buffer, "partitionLeaderEpoch", self._epoch, header.position)
                    self.patched += 1
            yield buffer

    def _finish(self, first: int, end: int) -> None:
        """Add the producers' state at the start and the broker's own two files; sync the directory."""
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
            fs.remove(f"{path}/{CLEAN_SHUTDOWN}")
        fs.sync_dir(f"{path}/{STAGING}")
        fs.sync_dir(path)
    for path in dirs:
        if fs.exists(f"{path}/{STAGING}"):
            fs.write_atomic(f"{path}/{STAGING}/{COMMIT}", f"{topic}\n".encode())
    _roll_forward(context, dirs)


def _finish_earlier(context: LogContext, dirs: list[str]) -> None:
    """Finish an earlier hand-over if it was committed, else remove what it left."""
    fs = context.fs
    staging = [f"{path}/{STAGING}" for path in dirs if fs.exists(f"{path}/{STAGING}")]
    if any(fs.exists(f"{each}/{COMMIT}") for each in staging):
        _roll_forward(context, dirs)
    else:
        for each in staging:
            fs.remove_tree(each)


def _roll_forward(context: LogContext, dirs: list[str]) -> None:
    """Rename the staged directories; those of the broker, without records, are moved away."""
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
        "With more than one replica: stop the other brokers too, and start this one first. If a replica"
        " without records becomes the leader, these records are truncated."
    )
    start = (
        f"Start the broker over {', '.join(dirs)}. It recovers the partitions, as after a crash, and"
        " restores the state of their producers."
    )
    check = f"Check that each partition ends where it should (kafka-get-offsets): {ends}."
    after = (
        f"When old records may go, set the topic's retention.ms again; then delete {topic} here, or stop"
        " writing to it: what is appended here from now on does not reach the broker."
    )
    return before, replicas, start, check, after


# -- the metadata log


@dataclass(slots=True)
class KafkaTopic:
    """A topic in the metadata log of a Kafka cluster."""

    name: str
    id: uuid.UUID
    config: dict[str, str] = field(default_factory=dict)


def read_topics(fs: FileSystem, log_dir: str) -> dict[str, KafkaTopic] | None:
    """Return the topics by name; None if there is no metadata log in this directory."""
    directory = f"{log_dir}/{METADATA_DIR}"
    try:
        listing = fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    topics: dict[str, KafkaTopic] = {}
    configs: dict[str, dict[str, str]] = {}
    for record in _records(fs, directory, listing):
        try:
            _apply(memoryview(record.value or b""), topics, configs)
        except CorruptionError:
            continue
    for name, topic in topics.items():
        topic.config = configs.get(name, {})
    return topics


def _find_topic(fs: FileSystem, log_dirs: list[str], topic: str) -> KafkaTopic | None:
    """Look a topic up in the first metadata log that has it."""
    for path in log_dirs:
        topics = read_topics(fs, path)
        if topics is not None and topic in topics:
            return topics[topic]
    return None


def _records(fs: FileSystem, directory: str, listing: list[str]) -> Iterator[Record]:
    """Yield the records of the newest checkpoint, then those of the log behind it."""
    checkpoints = sorted(name for name in listing if _CHECKPOINT.fullmatch(name))
    start = 0
    if checkpoints:
        start = int(checkpoints[-1][:20])
        yield from _file(fs, f"{directory}/{checkpoints[-1]}", 0)
    for name in listing:
        parsed = parse_file(name)
        if parsed is not None and parsed.kind == "log" and not parsed.suffix:
            yield from _file(fs, f"{directory}/{name}", start)


def _file(fs: FileSystem, path: str, start: int) -> Iterator[Record]:
    with fs.open(path) as file:
        try:
            for _, data, scan in scan_file(file, 0, file.size(), check_crc=True):
                yield from batches.decode_records(
                    data, scan, topic="", partition=0, bounds=batches.Bounds(start)
                )
        except FormatError:
            return


def _apply(data: memoryview, topics: dict[str, KafkaTopic], configs: dict[str, dict[str, str]]) -> None:
    frame, at = uvarint(data, 0)
    kind, at = uvarint(data, at)
    version, at = uvarint(data, at)
    name = {_TOPIC: "TopicRecord", _REMOVE_TOPIC: "RemoveTopicRecord", _CONFIG: "ConfigRecord"}.get(kind)
    if frame not in (0, 1) or name is None:
        return
    try:
        record = codec(name, "cluster-metadata").decode(data, version, at)[0]
    except ValueError as error:
        raise CorruptionError(f"a {name} is cut short or garbled: {error}", position=at) from error
    if kind == _TOPIC:
        topics[record.name] = KafkaTopic(record.name, uuid.UUID(bytes=record.topic_id))
    elif kind == _REMOVE_TOPIC:
        gone = uuid.UUID(bytes=record.topic_id)
        for name in [each.name for each in topics.values() if each.id == gone]:
            del topics[name]
            configs.pop(name, None)
    elif record.resource_type == TOPIC_RESOURCE:
        known = configs.setdefault(record.resource_name, {})
        if record.value is None:
            known.pop(record.name, None)
        else:
            known[record.name] = record.value
