"""Produce requests of one partition without tables: half of what a small request costs beside its I/O.

The kernel reads such a request in place and makes its answer. What is in between is the same append as
everywhere; what was refused, or waits for the disk, is answered by `produce`, and so is every request that
the kernel does not know: several partitions, transactions, unknown topics.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from stratalog.broker import produce
from stratalog.broker.connection import Connection
from stratalog.broker.metadata import INTERNAL
from stratalog.errors import StratalogError
from stratalog.kernel import parse_produce, produce_answer
from stratalog.log.write.produce import BatchesAppended
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.broker.server import Api, Broker

BY_ID = 13
"""From this version on requests have a topic's id in place of its name."""


class Shortcut:
    """Answers the requests that it knows, in the loop's thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = broker.store.partitions.registry
        self._state = self._registry.state
        self._topics: dict[tuple[bool, bytes], Topic] = {}
        """By name or id, as long as the store's topics are these."""

    def take(self, connection: Connection, api: Api, version: int, frame: memoryview) -> bool:
        """Answer a request; return False, with nothing done, if it is not one of these."""
        found = parse_produce(frame)
        if found is None:
            return False
        correlation, acks, name, partition, start, end = found
        if self._registry.state is not self._state:
            self._topics.clear()
            self._state = self._registry.state
        topic = self._topics.get((version >= BY_ID, name)) or self._find(version >= BY_ID, name)
        if topic is None:
            return False
        outcome: BatchesAppended | StratalogError | OSError
        try:
            outcome = placed = topic.append_batches(partition, frame[start:end], wait=False)
        except (StratalogError, OSError) as error:
            outcome = error
        else:
            if not placed.flush_due:
                where = placed.base_offset, placed.timestamp, placed.log_start_offset
                connection.answer(
                    (produce_answer(version, correlation, name, partition, *where),) if acks else ()
                )
                return True
        request = self._broker.request(connection, api, version, frame)
        produce.answer_one(request, topic, outcome)
        return True

    def _find(self, by_id: bool, name: bytes) -> Topic | None:
        if by_id:
            entry = self._registry.topic_by_id(uuid.UUID(bytes=name))
        else:
            entry = self._registry.topic(name.decode("ascii"))
        if entry is None or entry.name in INTERNAL:
            return None
        topic = self._topics[by_id, name] = self._broker.store.topic(entry.name)
        return topic
