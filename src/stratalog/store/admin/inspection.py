"""Look at log directories whose history is not known: a dead broker's, a copy from a backup, half of a store.

Each partition is looked at by itself, and one that cannot be read is a row with its reason: nothing here
needs the whole to be in order. Takes no lock, reads no archive and changes nothing, not even a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from stratalog.errors import FormatError, InvalidArgumentError, NotFoundError, StratalogError
from stratalog.format import checkpoints, metadata
from stratalog.format import settings as settings_format
from stratalog.format.metadata import CLEAN_SHUTDOWN, META_PROPERTIES
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.check.damage import Damage, derived_damage, reason_of
from stratalog.log.check.headers import HeaderFacts, inspect_partition
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.names import (
    LOCK,
    MARKS,
    PARTITION_FILES,
    TAIL,
    PartitionDir,
    is_partition_file,
    parse_file,
    parse_partition_dir,
)
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.reader import read_records
from stratalog.store.groups.offsets import OFFSETS_TOPIC, offsets_in
from stratalog.store.logdir import OUR_BROKER_EPOCH, RESERVE

BROKER, OURS, UNKNOWN_WRITER = "kafka", "stratalog", "unknown"
CHECKPOINTS = (
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.HIGH_WATERMARK,
    checkpoints.CLEANER,
)
_ROOT_FILES = {LOCK, CLEAN_SHUTDOWN, META_PROPERTIES, RESERVE, settings_format.FILE_NAME, *CHECKPOINTS}
_ROOT_FILES |= {"bootstrap.checkpoint", "lost+found"}
_OUR_PREFIXES = ("stratalog.", ".stratalog.")

Key = tuple[str, int]
T = TypeVar("T")


@dataclass(slots=True)
class DirectoryFacts:
    """One log directory. Times are epoch milliseconds."""

    path: str
    written_by: str = UNKNOWN_WRITER
    """Who stopped or wrote last: ``kafka``, ``stratalog`` or ``unknown``."""
    version: str = ""
    """What the form of the files says of the version that wrote them; empty when nothing."""
    cluster_id: str | None = None
    node_id: int | None = None
    clean: bool = False
    held: bool = False
    holder_pid: int | None = None
    changed_path: str = ""
    changed_ms: int | None = None
    """The log file that was written last, and when."""
    deleting: list[str] = field(default_factory=list)
    future: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    """Directories that Kafka set aside as stray, and files of no known name."""
    damages: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class PartitionFacts:
    """One partition; ``error`` says why it could not be read, and then ``log`` has at most damages."""

    topic: str
    partition: int
    directory: str
    start: int = 0
    end: int = 0
    cleanup_policy: str | None = None
    error: str | None = None
    log: HeaderFacts = field(default_factory=HeaderFacts)


@dataclass(slots=True)
class Inspection:
    """What was found in some log directories."""

    directories: list[DirectoryFacts] = field(default_factory=list)
    partitions: list[PartitionFacts] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    """Consumer groups, and for how many partitions each has a committed offset."""
    full: bool = False

    @property
    def damages(self) -> list[Damage]:
        return [
            *(damage for each in self.directories for damage in each.damages),
            *(damage for each in self.partitions for damage in each.log.damages),
        ]

    @property
    def ok(self) -> bool:
        return not self.damages and all(each.error is None for each in self.partitions)

    @property
    def newest(self) -> PartitionFacts | None:
        """The partition with the newest record, among those that have times; internal topics do not count."""
        timed = [each for each in self.partitions if each.log.last_timestamp is not None]
        timed = [each for each in timed if not each.topic.startswith("__")] or timed
        return max(timed, key=lambda each: each.log.last_timestamp or 0, default=None)


def inspect(
    paths: Sequence[str],
    topic: str | None = None,
    *,
    full: bool = False,
    fs: FileSystem | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> Inspection:
    """Look at log directories; NotFoundError if one is none, or if ``topic`` is in none of them.

    ``full`` checks every byte. ``progress`` gets the bytes as they are read.
    """
    fs = fs or RealFileSystem()
    context = LogContext(
        fs, HandleCache(fs, None), warn=lambda text: None
    )  # all that it warns of is found here
    found = Inspection(full=full)
    places: dict[Key, str] = {}
    try:
        for path in dict.fromkeys(map(fs.absolute, paths)):
            root = _Root(fs, path)
            found.directories.append(root.facts)
            for name, parsed in sorted(root.partitions.items(), key=lambda each: each[1]):
                if topic in (None, parsed.topic):
                    looked = root.look(context, name, parsed, full, progress)
                    twin = places.setdefault((parsed.topic, parsed.partition), path)
                    if twin != path and looked.error is None:
                        looked.error = f"also found in {twin}: it is unknown which copy is valid"
                    found.partitions.append(looked)
                    if parsed.topic == OFFSETS_TOPIC and looked.error is None:
                        _add_groups(found, root, context, looked)
    finally:
        context.handles.close()
    if topic is not None and not found.partitions:
        raise NotFoundError(f"no topic {topic!r} in {', '.join(paths)}")
    return found


class _Root:
    """The root of one log directory: its small files, and the names of what is in it."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.facts = DirectoryFacts(path)
        names = _names(fs, path)
        self.partitions: dict[str, PartitionDir] = {}
        self.settings = self._parsed(settings_format.FILE_NAME, settings_format.parse)
        self.offsets = {name: self._parsed(name, checkpoints.parse_offsets) or {} for name in CHECKPOINTS}
        self._sort(names)
        self._find_writer(names)

    def _parsed(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Read a file of the root; one that cannot be read is damage of the directory."""
        path = f"{self.facts.path}/{name}"
        try:
            return parse(self.fs.read_file(path))
        except FileNotFoundError:
            return None
        except FormatError as error:
            self.facts.damages.append(derived_damage(path, reason_of(error)))
        except (StratalogError, OSError) as error:
            self.facts.damages.append(derived_damage(path, _why(error)))
        return None

    def _sort(self, names: Sequence[str]) -> None:
        facts = self.facts
        for name in names:
            parsed = parse_partition_dir(name)
            is_dir = False
            with suppress(StratalogError, OSError):  # gone, or a link to nowhere
                is_dir = self.fs.stat(f"{facts.path}/{name}").is_dir
            if parsed is not None and is_dir:
                sets = {"delete": facts.deleting, "future": facts.future, "stray": facts.stray}
                if parsed.state:
                    sets[parsed.state].append(name)
                else:
                    self.partitions[name] = parsed
            elif name not in _ROOT_FILES and not name.startswith(_OUR_PREFIXES):
                facts.stray.append(name)

    def _find_writer(self, names: Sequence[str]) -> None:
        facts = self.facts
        meta = self._parsed(META_PROPERTIES, metadata.parse_meta_properties)
        if meta is not None:
            facts.cluster_id, facts.node_id = meta.cluster_id, meta.node_id
        epoch: int | None = None
        with suppress(FileNotFoundError, StratalogError, OSError):
            epoch = metadata.parse_clean_shutdown(self.fs.read_file(f"{facts.path}/{CLEAN_SHUTDOWN}"))
            facts.clean = True
        ours = settings_format.FILE_NAME in names or any(
            self.fs.exists(f"{facts.path}/{name}/{TAIL}") for name in self.partitions
        )
        if facts.clean and epoch is not None:
            ours = epoch == OUR_BROKER_EPOCH
        if ours or meta is not None or self.partitions:
            facts.written_by = OURS if ours else BROKER
        if not ours and meta is not None:
            facts.version = _version(meta)
        with suppress(StratalogError, OSError):
            holder = self.fs.lock_holder(f"{facts.path}/{LOCK}")
            facts.held = holder is not None
            pid = None if holder is None else holder.get("pid")
            facts.holder_pid = pid if isinstance(pid, int) else None

    def follower(self, context: LogContext, name: str, parsed: PartitionDir) -> PartitionFollower:
        """Return a view of one partition."""
        start = self.offsets[checkpoints.LOG_START].get((parsed.topic, parsed.partition), 0)
        location = PartitionLocation(context, f"{self.facts.path}/{name}", parsed.topic, parsed.partition)
        return PartitionFollower(location, log_start=lambda: start)

    def look(
        self,
        context: LogContext,
        name: str,
        parsed: PartitionDir,
        full: bool,
        progress: Callable[[int], None],
    ) -> PartitionFacts:
        """Look at one partition; an error is one of its facts."""
        key = (parsed.topic, parsed.partition)
        found = PartitionFacts(*key, f"{self.facts.path}/{name}", cleanup_policy=self._policy(key))
        try:
            self._look_at_files(name)
            view = self.follower(context, name, parsed)
            found.start, found.end = view.log_start_offset, view.next_offset
            found.log = inspect_partition(
                view,
                clean=self.facts.clean,
                recovery_point=self.offsets[checkpoints.RECOVERY_POINT].get(key),
                full=full,
                progress=progress,
            )
            if not found.log.segments:
                found.error = "the directory has no log file"
        except (StratalogError, OSError) as error:
            found.error = _why(error)
        return found

    def _look_at_files(self, name: str) -> None:
        """Note files of no known name, and the log that was written last."""
        facts, directory = self.facts, f"{self.facts.path}/{name}"
        for each in self.fs.list_dir(directory):
            parsed = parse_file(each)
            if parsed is None and each not in PARTITION_FILES | MARKS and not _is_temporary(each):
                facts.stray.append(f"{name}/{each}")
            if parsed is not None and parsed.kind == "log":
                with suppress(StratalogError, OSError):
                    changed_ms = self.fs.stat(f"{directory}/{each}").mtime_ns // 1_000_000
                    if facts.changed_ms is None or changed_ms > facts.changed_ms:
                        facts.changed_ms, facts.changed_path = changed_ms, f"{directory}/{each}"

    def _policy(self, key: Key) -> str | None:
        """Return the cleanup policy if the settings tell it, or if the cleaner has been here."""
        known = None if self.settings is None else self.settings.topics.get(key[0])
        policy = None if known is None else known.config.get("cleanup.policy", "delete")
        return policy or ("compact" if key in self.offsets[checkpoints.CLEANER] else None)


def _names(fs: FileSystem, path: str) -> list[str]:
    """List a log directory; a clear error for anything else."""
    try:
        if not fs.stat(path).is_dir:
            raise InvalidArgumentError(f"{path} is a file: give the log directory that holds the partitions")
        names = fs.list_dir(path)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such directory") from None
    if any(map(is_partition_file, names)):
        above = path.rpartition("/")[0] or "/"
        raise InvalidArgumentError(f"{path} is a partition: inspect its log directory, {above}")
    marks = {META_PROPERTIES, settings_format.FILE_NAME, CLEAN_SHUTDOWN, *CHECKPOINTS}
    if not marks.intersection(names) and not any(_is_partition(fs, path, name) for name in names):
        raise NotFoundError(
            f"{path} is not a log directory: it has no meta.properties, no checkpoint and no partition"
            " (TOPIC-N); for a broker give an entry of its log.dirs"
        )
    return names


def _is_partition(fs: FileSystem, path: str, name: str) -> bool:
    """Return True for a directory with the name and a file of a partition; /etc/dbus-1 has only the name."""
    if parse_partition_dir(name) is None:
        return False
    try:
        return any(map(is_partition_file, fs.list_dir(f"{path}/{name}")))
    except (StratalogError, OSError):
        return fs.exists(f"{path}/{name}")


def _is_temporary(name: str) -> bool:
    return name.endswith((".tmp", ".checkpoint")) or name == "remote_log_snapshot"


def _version(meta: metadata.MetaProperties) -> str:
    if meta.directory_id is not None:
        return "3.7 or later"
    return "2.8 to 3.6, KRaft" if meta.version == 1 else "with ZooKeeper, 3.9 or earlier"


def _why(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}"
    return error.message if isinstance(error, StratalogError) else str(error)


def _add_groups(found: Inspection, root: _Root, context: LogContext, facts: PartitionFacts) -> None:
    """Count the groups of one partition of `__consumer_offsets`, as far as it can be read."""
    name = facts.directory.rpartition("/")[2]
    parsed = PartitionDir(facts.topic, facts.partition)
    try:
        view = root.follower(context, name, parsed)
        groups: Mapping[str, Mapping[Key, object]] = offsets_in(read_records(view, skip_damaged=True))
    except (StratalogError, OSError) as error:
        facts.error = f"cannot read consumer groups: {_why(error)}"
        return
    for group, offsets in groups.items():
        found.groups[group] = found.groups.get(group, 0) + len(offsets)
