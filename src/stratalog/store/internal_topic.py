"""A topic of Kafka's own, such as `__consumer_offsets`: only its coordinator appends to it.

What a program appended by hand would be taken for what groups committed or for the outcome of a transaction.
Everything else is as for other topics: they are read, verified, sealed, archived, imported and cloned.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NoReturn

from stratalog.errors import InvalidTopicError
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.store.partitions import Partitions


class InternalTopic(Topic):
    """A topic that programs read, and coordinators write: see `for_coordinator`."""

    def __init__(self, partitions: Partitions, name: str, entry_id: uuid.UUID | None) -> None:
        self._writing = Topic(partitions, name, entry_id)
        super().__init__(partitions, name, entry_id)

    @property
    def writing(self) -> Topic:
        """The same topic, which takes appends."""
        self._writing.entry_id = self.entry_id
        return self._writing

    def refresh_writers(self) -> None:
        super().refresh_writers()
        self._writing.refresh_writers()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _refusal(self.name)

    async def _arefuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _refusal(self.name)

    append = append_many = append_batches = append_from = _refuse
    aappend = aappend_many = _arefuse


def for_coordinator(topic: Topic) -> Topic:
    """Return a topic that takes appends, whatever it is; only for coordinators."""
    return topic.writing if isinstance(topic, InternalTopic) else topic


def check_writable(topic: Topic) -> None:
    """Raise InvalidTopicError if programs may not append to a topic."""
    if isinstance(topic, InternalTopic):
        raise _refusal(topic.name)


def _refusal(name: str) -> InvalidTopicError:
    return InvalidTopicError(
        f"{name} is written by its coordinator only; commit offsets with a consumer, and records of several"
        " topics with store.transaction()"
    )
