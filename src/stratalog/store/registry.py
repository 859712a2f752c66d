"""The topics and partitions of an open store, looked up without a lock.

Every value here is replaced, never changed in place: a lookup reads one attribute and then goes through
mappings that stay as they are. A change copies what it changes and publishes it with one assignment, so that
a reader sees a topic with all its partitions or not at all. Touches no disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from stratalog import locks
from stratalog.errors import StorageError
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.catalog import TopicEntry
from stratalog.store.logdir import LogDir

View: TypeAlias = PartitionWriter | PartitionFollower
Views: TypeAlias = tuple[View | None, ...]


class State(NamedTuple):
    """Topics and partitions at one moment. Never changed: a change makes another one."""

    entries: Mapping[str, TopicEntry]
    by_id: Mapping[uuid.UUID, TopicEntry]
    views: Mapping[str, Views]
    writers: tuple[PartitionWriter, ...]


class Registry:
    """What a store has now, by name and by topic id. Thread-safe.

    Lookups take no lock. The lock serialises changes and protects nothing but memory: no I/O happens and no
    other lock is taken under it.
    """

    def __init__(self) -> None:
        self._lock = locks.lock("registry")
        self.state = State({}, {}, {}, ())
        """What there is now; another object after each change."""

    # -- looking up ----------------------------------------------------------------------------------

    @property
    def entries(self) -> Mapping[str, TopicEntry]:
        """Every topic by name, as of now; the mapping never changes."""
        return self.state.entries

    @property
    def writers(self) -> tuple[PartitionWriter, ...]:
        """The writers of all partitions, as of now."""
        return self.state.writers

    def topic(self, name: str) -> TopicEntry | None:
        """Return a topic by name."""
        return self.state.entries.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicEntry | None:
        """Return a topic by its id."""
        return self.state.by_id.get(topic_id)

    def view(self, name: str, partition: int) -> View | None:
        """Return the writer or follower of a partition; None when it is unknown, offline or not open."""
        views = self.state.views.get(name, ())
        return views[partition] if 0 <= partition < len(views) else None

    def views(self, name: str) -> Views:
        """Return the writers or followers of a topic's partitions, by number."""
        return self.state.views.get(name, ())

    def take_offline(self, where: LogDir, error: StorageError) -> None:
        """Let no writer in a log directory go on: its disk failed."""
        for writer in self.writers:
            entry = self.topic(writer.topic)
            placed = None if entry is None else entry.directories.get(writer.partition)
            if placed is not None and placed[0] is where:
                writer.take_offline(error)

    # -- changing ------------------------------------------------------------------------------------

    def put(self, entry: TopicEntry, views: Mapping[int, View] | None = None) -> None:
        """Publish a topic, new or changed, and with it the views of some of its partitions."""
        with self._lock:
            known = dict(enumerate(self.state.views.get(entry.name, ())))
            self._publish([(entry, _by_number(entry, {**known, **(views or {})}))])

    def put_all(self, topics: Iterable[tuple[TopicEntry, Mapping[int, View]]]) -> None:
        """Publish many topics at once."""
        with self._lock:
            self._publish([(entry, _by_number(entry, views)) for entry, views in topics])

    def put_if_absent(self, name: str, partition: int, view: View) -> View:
        """Publish a partition's view unless it has one; return the one it has then."""
        with self._lock:
            entry = self.state.entries.get(name)
            views = self.state.views.get(name, ())
            if entry is None or not 0 <= partition < len(views):
                return view  # the topic is gone: the caller's view is its own
            known = views[partition]
            if known is not None:
                return known
            self._publish([(entry, (*views[:partition], view, *views[partition + 1 :]))])
            return view

    def remove(self, name: str) -> Views:
        """Take a topic out; return the views it had."""
        with self._lock:
            state = self.state
            gone = state.views.get(name, ())
            entries = {key: entry for key, entry in state.entries.items() if key != name}
            views = {key: value for key, value in state.views.items() if key != name}
            self.state = _made(entries, views)
            return gone

    def replace(self, entries: Mapping[str, TopicEntry]) -> None:
        """Publish another set of topics; a view stays where its partition is the same, in the same place."""
        with self._lock:
            state = self.state
            views = {}
            for name, entry in entries.items():
                before = state.entries.get(name)
                same = before is not None and before.id == entry.id
                known = dict(enumerate(state.views.get(name, ()))) if same else {}
                views[name] = _by_number(
                    entry,
                    {
                        number: view
                        for number, view in known.items()
                        if view is not None
                        and number in entry.directories
                        and entry.directories[number][1] == view.directory
                    },
                )
            self.state = _made(dict(entries), views)

    def _publish(self, topics: Iterable[tuple[TopicEntry, Views]]) -> None:
        entries, views = dict(self.state.entries), dict(self.state.views)
        for entry, partitions in topics:
            entries[entry.name] = entry
            views[entry.name] = partitions
        self.state = _made(entries, views)


def _by_number(entry: TopicEntry, views: Mapping[int, View | None]) -> Views:
    return tuple(views.get(number) for number in range(entry.partitions))


def _made(entries: Mapping[str, TopicEntry], views: Mapping[str, Views]) -> State:
    by_id = {entry.id: entry for entry in entries.values() if entry.id is not None}
    return State(entries, by_id, views, tuple(_writers(views)))


def _writers(views: Mapping[str, Views]) -> Iterator[PartitionWriter]:
    for partitions in views.values():
        for view in partitions:
            if isinstance(view, PartitionWriter):
                yield view
