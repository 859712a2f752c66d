"""Fetch sessions (KIP-227): what a client fetches, kept between its requests.

A client with a session sends only what changes, and gets only partitions with news. A session knows
which of its partitions may have some: those that were just sent for, that have more than was answered, or
whose log moved on since. The others are not looked at, however many they are.

The cache of sessions is bounded. A full one drops a session that was not used for two minutes, or a smaller
session of that age; else the client goes on without one. A connection has one session: clients that begin
another with each request cannot fill the cache. Touches no disk; used in the loop's thread alone, but for
`Session.tell`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from stratalog.broker.codes import Code
from stratalog.broker.connection import Connection
from stratalog.broker.loop import EventLoop
from stratalog.log.write.log_end import Completion

INITIAL, FINAL = 0, -1
"""Epochs of a full fetch: one that begins a session, and one that ends it or has none."""
LAST_EPOCH = 2**31 - 1
EVICT_AFTER_S = 120.0
MAX_PARTITIONS = 1_000_000
"""How many partitions all sessions together may have."""

Key: TypeAlias = tuple[str | bytes, int]


class FetchedPartition:
    """One partition that a client fetches: its position, and what the last answer contained."""

    __slots__ = ("key", "leader_epoch", "max_bytes", "name", "number", "offset", "told", "topic_id", "watch")

    def __init__(self, key: Key, name: str, topic_id: bytes, number: int) -> None:
        self.key = key
        self.name = name
        self.topic_id = topic_id
        self.number = number
        self.offset = 0
        self.max_bytes = 0
        self.leader_epoch = -1
        self.told: tuple[int, int] | None = None
        """The high watermark and the log start offset that the client knows."""
        self.watch: Completion | None = None
        """Done when there is more than was seen."""

    def unwatch(self) -> None:
        """Wait for nothing more."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None


class Session:
    """The partitions of one client; with id 0 those of one request."""

    def __init__(self, loop: EventLoop, *, by_id: bool, now_s: float) -> None:
        self._loop = loop
        self.by_id = by_id
        self.id = 0
        self.epoch = 0
        """That of the next request."""
        self.made_s = self.used_s = now_s
        self.committed = False
        self.parts: dict[Key, FetchedPartition] = {}
        self.ready: dict[Key, FetchedPartition] = {}
        """The partitions to look at, in order."""
        self.waiting: Callable[[], None] | None = None
        """Looks again, for a request that waits."""
        self.give_up: Callable[[], None] | None = None
        """Answers a request that waits, at once."""
        self._news: deque[FetchedPartition] = deque()
        self._called = False

    def take(self, topics: Any, forgotten: Any = ()) -> None:
        """Add partitions, change those that are known, and leave out those that are forgotten."""
        for topic in topics:
            place = topic.topic_id if self.by_id else topic.topic
            for each in topic.partitions:
                key = (place, each.partition)
                part = self.parts.get(key)
                if part is None:
                    part = FetchedPartition(key, topic.topic, topic.topic_id, each.partition)
                    self.parts[key] = part
                part.offset, part.max_bytes = each.fetch_offset, each.partition_max_bytes
                part.leader_epoch = each.current_leader_epoch
                self.ready[key] = part
        for topic in forgotten:
            place = topic.topic_id if self.by_id else topic.topic
            for number in topic.partitions:
                self.ready.pop((place, number), None)
                gone = self.parts.pop((place, number), None)
                if gone is not None:
                    gone.unwatch()

    def tell(self, part: FetchedPartition, _: Completion) -> None:
        """Note that a partition has news; any thread may call it, under the partition's lock."""
        self._news.append(part)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._look)

    def hear(self) -> None:
        """Take the reports so far; the call that announces them may still be pending."""
        while self._news:
            part = self._news.popleft()
            if self.parts.get(part.key) is part:
                self.ready[part.key] = part

    def _look(self) -> None:
        self._called = False  # before the look: reports from here on call again
        self.hear()
        if self.waiting is not None and self.ready:
            self.waiting()

    def close(self) -> None:
        """Forget all partitions; a request that waits is answered."""
        for part in self.parts.values():
            part.unwatch()
        self.parts.clear()
        self.ready.clear()
        if self.give_up is not None:
            self.give_up()


class Sessions:
    """All sessions of a broker."""

    def __init__(self, loop: EventLoop, slots: int) -> None:
        self._loop = loop
        self._slots = slots
        self._known: dict[int, Session] = {}
        """By id, the one that was used last at the end."""
        self._of: WeakKeyDictionary[Connection, Session] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, body: Any, *, by_id: bool, now_s: float) -> Session | Code:
        """Return the session of a request, with what the request wants; or why there is none."""
        if body.session_epoch in (INITIAL, FINAL):
            self._remove(self._known.get(body.session_id))
            session = Session(self._loop, by_id=by_id, now_s=now_s)
        else:
            known = self._known.get(body.session_id)
            if known is None:
                return Code.FETCH_SESSION_ID_NOT_FOUND
            if known.epoch != body.session_epoch:
                return Code.INVALID_FETCH_SESSION_EPOCH
            if known.by_id != by_id:
                return Code.FETCH_SESSION_TOPIC_ID_ERROR
            session = known
            if session.give_up is not None:  # its client asks again, over another connection
                session.give_up()
            session.epoch = _after(session.epoch)
            session.used_s = now_s
            self._known[session.id] = self._known.pop(session.id)
        session.take(body.topics, body.forgotten_topics_data)
        committed = body.isolation_level == 1
        if committed != session.committed:
            session.committed = committed
            session.ready.update(session.parts)
        if session.id and not session.parts:
            self._remove(session)
        elif session.id and self._partitions() > MAX_PARTITIONS:
            self._remove(session)
            return Code.FETCH_SESSION_ID_NOT_FOUND
        return session

    def keep(self, session: Session, connection: Connection) -> bool:
        """Give a session its id, if there is room for one more."""
        self._remove(self._of.pop(connection, None))
        if self._partitions() + len(session.parts) > MAX_PARTITIONS or not self._make_room(session):
            return False
        while not session.id or session.id in self._known:
            session.id = random.randrange(1, 2**31)
        session.epoch = _after(INITIAL)
        self._known[session.id] = session
        self._of[connection] = session
        return True

    def _partitions(self) -> int:
        return sum(len(each.parts) for each in self._known.values())

    def _make_room(self, session: Session) -> bool:
        if len(self._known) < self._slots:
            return True
        if not self._known:
            return False
        old_s = session.used_s - EVICT_AFTER_S
        oldest = next(iter(self._known.values()))
        if oldest.used_s >= old_s:
            smaller = [each for each in self._known.values() if each.made_s < old_s]
            oldest = min(smaller, key=lambda each: len(each.parts), default=session)
            if len(oldest.parts) >= len(session.parts):
                return False
        self._remove(oldest)
        return True

    def _remove(self, session: Session | None) -> None:
        if session is not None and self._known.pop(session.id, None) is not None:
            session.id = 0
            session.close()


def _after(epoch: int) -> int:
    return 1 if epoch == LAST_EPOCH else epoch + 1
