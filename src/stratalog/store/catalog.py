"""The topics of a store: what is known of each, which are published now, and which are being changed.

A topic that is on disk but not in the settings file is foreign: it can be read and appended to, and has no
policy until one is set, so that no default retention deletes adopted data.

Every value here is replaced, never changed in place. A lookup reads one attribute and takes no lock. A
change copies what it changes and publishes it with one assignment, so that a reader sees a topic with all its
partitions or not at all. Touches no disk.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from stratalog import locks
from stratalog.config import BrokerConfig, TopicConfig, parse_overrides, suggest, topic_config, with_profile
from stratalog.errors import ClosedError, StorageError, UnknownTopicError
from stratalog.format.metadata import new_id
from stratalog.format.settings import MAX_PARTITIONS as MAX_PARTITIONS
from stratalog.log.arguments import check_number
from stratalog.log.names import validate_topic
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.logdir import LogDir

NO_POLICY: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


LISTED = 10
"""How many topics an error about an unknown one names."""

Place: TypeAlias = tuple[LogDir, str]
"""The log directory a partition is in, and its own directory."""


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic: where its partitions lie, and what is known about it. A change makes another entry."""

    name: str
    id: uuid.UUID | None = None
    partitions: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False
    directories: Mapping[int, Place] = field(default_factory=dict)

    def effective_overrides(self) -> Mapping[str, str]:
        """Return the overrides that count: a foreign topic has no policy until one is set."""
        return {**NO_POLICY, **self.overrides} if self.foreign else self.overrides

    def config(self, broker: BrokerConfig) -> TopicConfig:
        return topic_config(broker, self.effective_overrides())

    def owned(self) -> TopicEntry:
        """Return it as ours; a foreign topic keeps having no policy where none is set, so its data stays."""
        return replace(self, overrides=self.effective_overrides(), foreign=False, id=self.id or new_id())

    def placed(self, places: Mapping[int, Place]) -> TopicEntry:
        """Return it with some of its partitions in other places."""
        return replace(self, directories={**self.directories, **places})


def new_topic(
    name: str, partitions: int | None, config: Mapping[str, object] | None, broker: BrokerConfig
) -> TopicEntry:
    """Return the entry of a topic to be made; raise when no store could take it."""
    validate_topic(name)
    count = broker.get_int("num.partitions") if partitions is None else partitions
    count = check_number("partitions", count, 1, MAX_PARTITIONS)
    entry = TopicEntry(name, new_id(), count, parse_overrides(with_profile(config or {})))
    entry.config(broker)
    return entry


def no_topic(name: str, known: Iterable[str], where: str = "") -> UnknownTopicError:
    """Build the error for a name without a topic: it names a similar topic, or the first ones of others."""
    own = sorted(each for each in known if not each.startswith("__"))
    if hint := suggest(name, own):
        return UnknownTopicError(f"no topic {name!r}{where}{hint}")
    listed = ", ".join(own[:LISTED]) or "none yet"
    more = f" and {len(own) - LISTED} more" if len(own) > LISTED else ""
    return UnknownTopicError(f"no topic {name!r}{where}; there are: {listed}{more}")


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
        """Publish another set of topics; those that stay keep their views, which find a moved partition."""
        with self._lock:
            state = self.state
            views = {}
            for name, entry in entries.items():
                before = state.entries.get(name)
                same = before is not None and before.id == entry.id
                known = dict(enumerate(state.views.get(name, ()))) if same else {}
                views[name] = _by_number(entry, {at: known.get(at) for at in entry.directories})
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


class Changes:
    """Which topics are being changed, and by which thread. Thread-safe.

    A change may do I/O of any kind and take any lock that comes after: the condition's own lock is held only
    for a look at memory. ``settle`` is called with the topic's name before a change begins: it ends one that
    was cut short.
    """

    def __init__(self, settle: Callable[[str], None] = lambda name: None) -> None:
        self._settle = settle
        self._changed = locks.condition("changes")
        self._held: dict[str, tuple[int, int]] = {}  # by name: the thread, and how often it entered
        self._closed = False

    @contextmanager
    def of(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Exclude other changes to a topic, and to those that Kafka would confuse it with.

        Without ``wait`` the block runs all the same when there is one, and gets False.
        """
        key, thread = name.replace(".", "_"), threading.get_ident()
        entered = False
        try:
            with self._changed.lock:
                while not self._free(key, thread) and wait:
                    self._changed.wait(locks.RECHECK_S)
                if self._free(key, thread):
                    held = self._held.get(key)
                    depth = held[1] if held is not None and held[0] == thread else 0
                    if self._closed and not depth:
                        raise ClosedError("the store is closed")
                    self._held[key] = (thread, depth + 1)
                    entered = True
            if entered and not depth:
                self._settle(name)
            yield entered
        finally:
            if entered:
                if depth:
                    self._held[key] = (thread, depth)
                else:
                    del self._held[key]  # in one step: no interrupt can come before it
                    with self._changed.lock:
                        self._changed.notify_all()

    def _free(self, key: str, thread: int) -> bool:
        held = self._held.get(key)  # others take themselves off without the lock
        return held is None or held[0] == thread or self._closed

    def under_way(self, name: str) -> bool:
        """Return True if a topic, or one that Kafka would confuse it with, is being changed. Lock-free."""
        return name.replace(".", "_") in self._held

    def close(self) -> None:
        """Let no change begin any more, and wait for those that are under way."""
        with self._changed.lock:
            self._closed = True
            self._changed.notify_all()
            ours = threading.get_ident()
            while any(thread != ours for thread, _ in self._held.copy().values()):
                self._changed.wait(locks.RECHECK_S)
