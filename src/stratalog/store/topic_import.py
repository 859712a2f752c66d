"""Bringing in a whole topic, imported or adopted: its partitions are built beside, then taken in at once.

    1  `stage` chooses a directory for each partition: `<topic>-<partition>.<unique>-future`, which the next
       start would remove
    2  an `ImportTarget` fills and syncs them, each with a mark, `stratalog.arriving`, that holds its final
       name
    3  `take_in` writes the topic to the settings: from here on it exists
    4  every directory gets its name, and the partitions are opened

1, 3 and 4 run in the process that holds the store; 2 in the one that brings the topic (see `copies`). A crash
before 3 leaves `-future` directories, which the next start removes. After 3 the next start finishes
(`finish`): a marked directory whose topic id is that of the topic in the settings gets its name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratalog.config import BrokerConfig, check_names, parse_overrides
from stratalog.errors import ConfigError, InvalidArgumentError, StorageError, TopicExistsError
from stratalog.format.metadata import id_to_text
from stratalog.format.settings import newest
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.arguments import check_number
from stratalog.log.context import Clock, LogContext, SystemClock
from stratalog.log.names import ARRIVING, collides, parse_partition_dir, partition_dir, validate_topic
from stratalog.store.catalog import MAX_PARTITIONS, TopicEntry
from stratalog.store.paths import Paths, path_list

if TYPE_CHECKING:
    from stratalog.store.admin.admin import AdminClient
    from stratalog.store.copies.building import PartitionBuilder, PartitionCopy
    from stratalog.store.logdir import LogDir
    from stratalog.store.partitions import Partitions
    from stratalog.store.store import Store

ImportInto: TypeAlias = "Store | AdminClient | Paths"
"""An open store, a way to one that another process holds, or the paths of one."""

LONGEST_NAME = 255


class Staged(NamedTuple):
    """A staged partition: its directory, its log start offset, and the base of its first segment."""

    directory: str
    log_start_offset: int
    first_base_offset: int


# -- in the process that holds the store


def stage(partitions: Partitions, name: str, count: int) -> list[str]:
    """Return where to build the partitions of a new topic, one path for each."""
    partitions.check_writable()
    partitions.check_open()
    count = check_number("partitions", count, 1, MAX_PARTITIONS)
    check_free(partitions, name)
    found = []
    for number, where in enumerate(partitions.opening.spread(count)):
        tail = f"-{number}.{uuid.uuid4().hex}-future"
        found.append(f"{where.path}/{name[: LONGEST_NAME - len(tail)]}{tail}")
    return found


def take_in(
    partitions: Partitions,
    name: str,
    topic_id: uuid.UUID,
    config: Mapping[str, object],
    staged: Sequence[Staged],
) -> TopicEntry:
    """Make staged directories a topic of the store. It appears whole or, on an error, not at all."""
    context = partitions.context
    check_number("partitions", len(staged), 1, MAX_PARTITIONS)
    with partitions.changes.of(name):
        check_free(partitions, name)
        known = partitions.registry.topic_by_id(topic_id)
        if known is not None:
            raise TopicExistsError(f"topic {known.name} has the id of the topic that is brought in")
        entry = TopicEntry(name, topic_id, len(staged), parse_overrides(config))
        entry.config(partitions.config)
        places = [_place(partitions, each.directory) for each in staged]
        for number, (each, where) in enumerate(zip(staged, places, strict=True)):
            if not context.fs.exists(f"{each.directory}/{ARRIVING}"):
                raise StorageError(
                    f"{each.directory} no longer exists: the store was reopened meanwhile; start over"
                )
            partitions.settings.mark_dirty(where)
            # The root checkpoints may hold entries of an earlier partition of this name.
            where.checkpoints.forget([(name, number)])
            if each.log_start_offset > each.first_base_offset:
                where.checkpoints.log_start.put((name, number), each.log_start_offset)
            where.check_absent(partition_dir(name, number))
        named: dict[int, tuple[LogDir, str]] = {}
        try:
            partitions.settings.save_topic(entry)
            for number, (each, where) in enumerate(zip(staged, places, strict=True)):
                named[number] = where, where.file(partition_dir(name, number))
                _name_it(where, each.directory, named[number][1])
            return partitions.opening.open_and_publish(
                entry.placed(named), {number: each.log_start_offset for number, each in enumerate(staged)}
            )
        except BaseException:
            if name not in partitions.entries:
                with suppress(StorageError, OSError):
                    partitions.settings.restore_topic(name, None)
                for where, directory in named.values():
                    with suppress(StorageError, OSError):
                        if where.read_topic_id(directory) == topic_id:
                            where.delete_partition(directory)
            raise


def finish(dirs: Sequence[LogDir]) -> None:
    """At a start, before leftovers are removed: rename the directories that a crash kept from their names."""
    settings = None
    for each in dirs:
        for directory in each.leftovers():
            fs = each.context.fs
            if not directory.endswith("-future"):
                continue
            try:
                final = fs.read_file(f"{directory}/{ARRIVING}").decode().strip()
            except (FileNotFoundError, UnicodeDecodeError):
                continue
            settings = settings or newest(
                found for found in (one.read_settings() for one in dirs) if found is not None
            )
            parsed = parse_partition_dir(final)
            known = settings.topics.get(parsed.topic) if settings is not None and parsed is not None else None
            if known is None or known.id != each.read_topic_id(directory):
                continue
            if not any(fs.exists(one.file(final)) for one in dirs):
                _name_it(each, directory, each.file(final))


def _name_it(where: LogDir, directory: str, final: str) -> None:
    fs = where.context.fs
    fs.rename(directory, final)
    fs.sync_dir(where.path)
    fs.remove(f"{final}/{ARRIVING}")


def _place(partitions: Partitions, directory: str) -> LogDir:
    root, _, name = directory.rpartition("/")
    parsed = parse_partition_dir(name)
    for each in partitions.dirs.online():
        if root == each.path and parsed is not None and parsed.state == "future":
            return each
    raise InvalidArgumentError(f"{directory} is not a staged directory of this store")


def check_free(partitions: Partitions, name: str) -> None:
    """Raise TopicExistsError if a new topic cannot have this name."""
    validate_topic(name)
    for known in partitions.entries:
        if known == name:
            raise TopicExistsError(f"topic {name} already exists; choose another name, or delete it first")
        if collides(known, name):
            raise TopicExistsError(f"topic {name} differs from {known} only in '.' and '_'")


# -- in the process that brings the topic


class ImportTarget:
    """The store that a topic is brought to. Made by `open_target`."""

    def __init__(
        self,
        client: AdminClient | None,
        broker: BrokerConfig,
        context: LogContext,
        paths: Sequence[str] = (),
        topics: Sequence[str] = (),
    ) -> None:
        self._client = client
        self.broker = broker
        self.context = context
        self.paths = paths
        """The log directories, if known."""
        self.topics = topics
        """Its topics, if it is open in this process."""

    def settings(
        self, found: Mapping[str, str], given: Mapping[str, object] | None
    ) -> tuple[dict[str, str], list[str]]:
        """Return the topic's settings with those given, and a note for each that is not known here."""
        known: dict[str, object] = {}
        notes = []
        for name, value in found.items():
            try:
                check_names([name])
                parse_overrides({name: value})
            except ConfigError as error:
                notes.append(f"the setting {name}={value} was left behind: {error}")
                continue
            known[name] = value
        return parse_overrides({**known, **(given or {})}), notes

    @contextmanager
    def staging(self, name: str, partitions: int) -> Iterator[list[str]]:
        """Yield directories to build in; they are removed unless they were taken in."""
        assert self._client is not None
        staged = self._client.stage_topic(name, partitions)
        try:
            yield staged
        finally:
            for directory in staged:
                if self.context.fs.exists(directory):
                    with suppress(StorageError, FileNotFoundError):
                        self.context.fs.remove_tree(directory)

    def take_in(
        self,
        name: str,
        topic_id: uuid.UUID,
        config: Mapping[str, str],
        copies: Sequence[PartitionCopy],
        builders: Sequence[PartitionBuilder],
    ) -> None:
        """Mark the directories and have the holder take them in: from here on the topic exists."""
        assert self._client is not None
        fs, staged = self.context.fs, []
        for copy, builder in zip(copies, builders, strict=True):
            final = partition_dir(name, copy.partition)
            fs.write_atomic(f"{builder.directory}/{ARRIVING}", f"{final}\n".encode())
            staged.append(Staged(builder.directory, copy.log_start_offset, builder.segments[0].base_offset))
        for root in {each.directory.rpartition("/")[0] for each in staged}:
            fs.sync_dir(root)
        self.context.handles.close()
        self._client.take_in_topic(name, id_to_text(topic_id), config, staged)


@contextmanager
def open_target(
    target: ImportInto, fs: FileSystem | None = None, *, dry_run: bool = False
) -> Iterator[ImportTarget]:
    """Open a way into a store, whichever process holds it; for a ``dry_run`` a path is not opened."""
    from stratalog.store.admin.admin import AdminClient, connect  # which import the store, and it this module
    from stratalog.store.store import Store, open_store

    with ExitStack() as stack:
        clock: Clock = SystemClock()
        broker = BrokerConfig.parse(None)
        client: AdminClient | None = None
        paths: Sequence[str] = ()
        topics: Sequence[str] = ()
        if isinstance(target, AdminClient):
            client, paths = target, target.paths
        elif isinstance(target, Store):
            client, inside = AdminClient.of(target), target.partitions.context
            fs, clock, broker = inside.fs, inside.clock, target.config
            paths, topics = [each.path for each in target.partitions.dirs.all], target.topics()
        elif dry_run:
            paths = path_list(fs or RealFileSystem(), target)
        elif fs is not None and not isinstance(fs, RealFileSystem):
            client = AdminClient.of(
                stack.enter_context(open_store(target, create=True, fs=fs, background=False))
            )
        else:
            client = stack.enter_context(connect(target, create=True))
        fs = fs or RealFileSystem()
        handles = HandleCache(fs)
        stack.callback(handles.close)
        yield ImportTarget(client, broker, LogContext(fs, handles, clock), paths, topics)
