"""Syncs that start when the loop pauses: one for each partition that was written to.

A sync that began with the first request would cover that one alone, and its thread would take the interpreter
from the loop that has the others at hand. Each of them is a `Topic.durable`, so that nothing
is acknowledged before it is on disk; only the asking waits, for as long as requests are ready, and not long.

All methods are for the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stratalog.broker.loop import EventLoop
from stratalog.errors import StratalogError
from stratalog.log.write.log_end import Completion
from stratalog.store.topic import Topic

Waiter = Callable[[BaseException | None], None]
"""Called in the loop when the records are on disk, or with the reason why they are not."""


class _Wanted:
    """The furthest end to sync in one partition, and the callers that wait for theirs."""

    __slots__ = ("end", "partition", "topic", "waiters")

    def __init__(self, topic: Topic, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.end = 0
        self.waiters: list[Waiter] = []


class Syncs:
    """What was written since the last pause of the loop, and is to be synced."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._wanted: dict[tuple[str, int], _Wanted] = {}

    def add(self, topic: Topic, partition: int, end: int, waiter: Waiter | None) -> None:
        """Sync a partition up to ``end`` with the next pause, and tell ``waiter``."""
        if not self._wanted:
            self._loop.at_pause(self._ask)
        key = topic.name, partition
        wanted = self._wanted.get(key)
        if wanted is None or wanted.topic.entry_id != topic.entry_id:  # deleted and made again in one turn
            if wanted is not None:
                self._ask_for(wanted)
            wanted = self._wanted[key] = _Wanted(topic, partition)
        wanted.end = max(wanted.end, end)
        if waiter is not None:
            wanted.waiters.append(waiter)

    def _ask(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for each in wanted.values():
            self._ask_for(each)

    def _ask_for(self, wanted: _Wanted) -> None:
        try:
            durable = wanted.topic.durable(wanted.partition, wanted.end)
        except (StratalogError, OSError) as error:
            self._tell(wanted.waiters, error)
            return
        if wanted.waiters:
            durable.add_callback(partial(self._synced, wanted.waiters))

    def _synced(self, waiters: list[Waiter], done: Completion) -> None:
        """In the thread that synced, under the partition's lock."""
        self._loop.call_soon(partial(self._tell, waiters, done.error))

    def _tell(self, waiters: list[Waiter], error: BaseException | None) -> None:
        for each in waiters:
            self._loop.attempt(partial(each, error))
