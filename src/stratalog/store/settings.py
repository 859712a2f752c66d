"""The settings file of a store: reading it, and the one place that writes it.

It keeps the topics, the ids that were handed out, and the broker settings of the last writable open. Without
those a command line that opens the store by itself would go by the defaults, and delete by a default
retention what a program means to keep. Its bytes: `stratalog.format.settings`.

Crash policy: every log directory has a copy, written beside and renamed; the highest generation wins. A
change that fails in one directory is taken back in those before it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.config import BrokerConfig
from stratalog.errors import ConfigError, CorruptionError, FormatError, StorageError, UnknownTopicError
from stratalog.format.settings import FILE_NAME, Settings, TopicSettings, newest, parse
from stratalog.fs import FileSystem
from stratalog.log.context import logger
from stratalog.store.catalog import Registry, TopicEntry
from stratalog.store.logdir import LogDir, LogDirs

if TYPE_CHECKING:
    from stratalog.log.write.writer import PartitionWriter


class SavedSettings:
    """The settings of an open store as they are on disk. Thread-safe.

    A change is durable when its call returns, and is made before what it speaks of is published.
    """

    def __init__(self, dirs: LogDirs, registry: Registry, config: BrokerConfig, *, remember: bool) -> None:
        self.current = Settings()
        self._dirs = dirs
        self._registry = registry
        self._config = config
        self._remember = remember  # whether the settings of this open are kept with the store
        self._saving = locks.rlock("settings")
        """Protects ``current`` and its files: the one write of them happens under it."""
        self._deleting: set[uuid.UUID] = set()
        """Topics that are out of the settings, and whose directories may still be there."""
        self._doomed: set[uuid.UUID] = set()
        """Topics that are about to be."""
        self._in_doubt = False
        """A refused change may be in one of the files, and could not be taken back."""

    def load(self, *, read_only: bool) -> Settings:
        """Read the newest settings among the directories."""
        self.current = _load(self._dirs.online(), read_only=read_only)
        return self.current

    def save_topic(
        self, entry: TopicEntry, creating: int | None = None, *, as_far_as_possible: bool = False
    ) -> None:
        """Write a topic, new or changed, to the settings; durable on return. Publishing it comes after.

        ``creating``: partitions from this on are about to be made; the next start makes them after a crash.
        """
        with self._saving:
            if entry.id in self._deleting:
                raise UnknownTopicError(
                    f"topic {entry.name} is being deleted, and the deletion was interrupted: delete it again"
                )
            saved = replace(_settings_of(entry), creating=creating)
            topics = {**self.current.topics, entry.name: saved}
            self._save(topics, as_far_as_possible=as_far_as_possible)

    def restore_topic(self, name: str, before: TopicEntry | None) -> None:
        """After partitions could not be made: write the topic as it was, to every directory that takes it."""
        with self._saving:
            topics = self._without(name)
            if before is not None and not before.foreign and before.id not in self._deleting:
                topics[name] = _settings_of(before)
            self._save(topics, as_far_as_possible=True)

    def _without(self, name: str) -> dict[str, TopicSettings]:
        return {known: value for known, value in self.current.topics.items() if known != name}

    @contextmanager
    def deleting(self, entry: TopicEntry, writers: Iterable[PartitionWriter]) -> Iterator[None]:
        """Take a topic out of the settings; its id stays in them for as long as its directories are removed.

        An id is never given twice. Those of directories that are offline stay in the settings. Once the
        deletion is in a file its writers refuse writes, whatever cuts it short.
        """
        going = [] if entry.id is None else [entry.id]
        try:
            self._doomed.update(going)
            for writer in writers:
                writer.refuse_while(lambda: self._is_deleting(entry))
            with self._saving:
                try:
                    self._deleting.update(going)
                    self._save(self._without(entry.name))
                except BaseException:
                    if not self._in_doubt and entry.id not in self.current.deleting:
                        self._deleting.difference_update(going)
                    raise
        finally:
            self._doomed.difference_update(going)
        yield
        with self._saving:
            self._deleting.difference_update(going)

    def _is_deleting(self, entry: TopicEntry) -> UnknownTopicError | None:
        """Return the error for a write to a topic whose deletion began; a save under way is waited for."""
        with self._saving:
            if entry.id in self._deleting or entry.id in self._doomed:
                return UnknownTopicError(f"topic {entry.name} is being deleted")
            return None

    def settle(self) -> None:
        """Before the store is closed: write over a change that was refused and could not be taken back."""
        with self._saving:
            if self._in_doubt:
                self._save(self.current.topics)

    def renew(self) -> None:
        """Write the settings that are in force to every directory, whatever the files say."""
        with self._saving:
            self._save(self.current.topics)

    def allocate_producer_ids(self, count: int, taken: Collection[int]) -> range:
        """Reserve ``count`` ids in a row, none of them in ``taken``; durable before they are returned."""
        with self._saving:
            first = self.current.next_producer_id
            for each in sorted(taken):
                if first <= each < first + count:
                    first = each + 1
            self._save(self.current.topics, next_producer_id=first + count)
            return range(first, first + count)

    def mark_dirty(self, where: LogDir) -> None:
        """Before the first write to a directory; the settings file in it says that it is ours from now on.

        The broker settings of this open are kept from here on, too; another directory that is gone or full
        does not keep this one from being written.
        """
        if self._unsaved():
            with self._saving:
                if self._unsaved():
                    self._save(self.current.topics, as_far_as_possible=True)
        if not where.has_settings:
            with self._saving:
                where.write_settings(self.current)
        where.mark_dirty()

    def _save(
        self,
        topics: Mapping[str, TopicSettings],
        next_producer_id: int | None = None,
        *,
        as_far_as_possible: bool = False,
    ) -> None:
        """Write the settings to every directory, or raise and leave the old ones in force.

        The highest generation wins at the next open: where a change failed half-way, the old settings are
        written again, above it. ``as_far_as_possible``: one directory that takes the new ones is enough.
        """
        before = self.current
        gone = self.current.deleting if len(self._dirs.online()) < len(self._dirs.all) else ()
        gone = (*gone, *(each for each in self._deleting if each not in gone))
        settings = Settings(
            self.current.generation + 1,
            dict(topics),
            self._kept(),
            gone,
            self._directories(),
            self.current.next_producer_id if next_producer_id is None else next_producer_id,
        )
        if as_far_as_possible:
            self.current = settings
            took = [self._write_over(each, settings.generation) for each in self._dirs.online()]
            if not any(took):
                raise StorageError("no log directory takes the settings")
            return
        reached: list[LogDir] = []
        try:
            for each in self._dirs.online():
                each.mark_dirty()
                reached.append(each)
                each.write_settings(settings)
            self.current, self._in_doubt = settings, False
        except BaseException:
            self.current = replace(before, generation=settings.generation + 1)
            for each in reached:
                self._write_over(each, settings.generation)
            raise

    def _write_over(self, where: LogDir, generation: int) -> bool:
        """Write the settings over those of ``generation``, which may be there; False if that fails."""
        try:
            where.write_settings(self.current)
        except (StorageError, OSError):
            with suppress(StorageError, OSError):
                found = where.read_settings()
                if found is None or found.generation < generation:
                    return False
            self._in_doubt = True
            return False
        return True

    def _directories(self) -> dict[str, str]:
        """Return the log directories to remember, by id; a missing one as long as a partition is missing."""
        topics, online = self._registry.entries.values(), self._dirs.online()
        incomplete = any(len(entry.directories) < entry.partitions for entry in topics)
        known = dict(self.current.directories) if incomplete or len(online) < len(self._dirs.all) else {}
        for each in online:
            if each.id is not None:
                known[each.id] = each.path
        return known

    def _unsaved(self) -> bool:
        """Return True when the file lacks the broker settings of this open, or one of its directories."""
        return self.current.store != self._kept() or self.current.directories != self._directories()

    def _kept(self) -> dict[str, str]:
        """Return the broker settings to keep in the file."""
        return self._config.explicit if self._remember else dict(self.current.store)


WITHOUT_SETTINGS = (
    "put a copy of it back, or move it away to go on with every topic's data and without the topics' settings"
)


def _load(dirs: list[LogDir], *, read_only: bool) -> Settings:
    """Return the newest settings among the directories.

    A writer does not go on without settings that are there and damaged: it would overwrite them.
    """
    settings = newest(found for found in (each.read_settings() for each in dirs) if found is not None)
    damaged = [each for each in dirs if settings is None and each.has_settings]
    if damaged and not read_only:
        error = CorruptionError(
            "no copy of the store's settings can be read", path=damaged[0].file(FILE_NAME)
        )
        error.add_note(WITHOUT_SETTINGS)
        raise error
    return settings or Settings()


def remembered(fs: FileSystem, paths: Sequence[str]) -> BrokerConfig:
    """Return the broker settings kept in the log directories; the defaults where there are none.

    One that this version does not know is left out, with a warning: a newer one wrote it.
    """
    found = []
    for path in paths:
        try:
            found.append(parse(fs.read_file(f"{path}/{FILE_NAME}")))
        except (FileNotFoundError, NotADirectoryError, FormatError, StorageError):
            continue  # opening will say what is wrong with it
    kept = newest(found)
    saved = dict(kept.store) if kept is not None else {}
    try:
        return BrokerConfig.parse(saved)
    except ConfigError:
        known = {}
        for name, value in saved.items():
            try:
                BrokerConfig.parse({name: value})
                known[name] = value
            except ConfigError as error:
                logger.warning("a setting kept with the store is left out: %s", error)
        return BrokerConfig.parse(known)


def _settings_of(entry: TopicEntry) -> TopicSettings:
    """Return what the settings file says of a topic."""
    assert entry.id is not None
    return TopicSettings(entry.id, entry.partitions, dict(entry.overrides))
