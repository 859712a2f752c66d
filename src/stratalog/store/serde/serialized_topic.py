"""A topic whose keys and values are objects: its calls go to the topic of bytes, through serializers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stratalog.format.batch.arrow import is_arrow
from stratalog.log.arguments import check_list, wrong_type
from stratalog.model import Appended, AppendedRange, Header, Record
from stratalog.store.reading import Records
from stratalog.store.serde.serializers import Serde

if TYPE_CHECKING:
    from stratalog.store.topic import Topic


class SerializedTopic:
    """A topic with serializers, made by `Topic.using`. Thread-safe, if its functions are.

    Calls take the arguments of `Topic`'s, with objects for keys and values, and return records with objects.
    Everything else is asked of the `topic` itself, whose keys and values are bytes.
    """

    def __init__(self, topic: Topic, serde: Serde) -> None:
        self.topic = topic
        """The same topic with keys and values of bytes."""
        self.serde = serde

    def __repr__(self) -> str:
        return f"<SerializedTopic {self.name!r}>"

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self.topic.name

    # -- writing -------------------------------------------------------------------------------------

    def append(
        self,
        value: Any,
        key: Any = None,
        headers: Sequence[Header] = (),
        timestamp: int | dt.datetime | None = None,
        **options: Any,
    ) -> Appended:
        """Append one record: `Topic.append`."""
        serde = self.serde
        return self.topic.append(serde.value(value), serde.key(key), headers, timestamp, **options)

    def append_many(self, records: Iterable[Record], **options: Any) -> list[AppendedRange]:
        """Append records: `Topic.append_many`. Not for Arrow tables, whose columns are bytes."""
        return self.topic.append_many(self.serialized(records), **options)

    async def aappend(
        self,
        value: Any,
        key: Any = None,
        headers: Sequence[Header] = (),
        timestamp: int | dt.datetime | None = None,
        **options: Any,
    ) -> Appended:
        """`append` for an event loop."""
        serde = self.serde
        return await self.topic.aappend(serde.value(value), serde.key(key), headers, timestamp, **options)

    async def aappend_many(self, records: Iterable[Record], **options: Any) -> list[AppendedRange]:
        """`append_many` for an event loop."""
        return await self.topic.aappend_many(self.serialized(records), **options)

    def serialized(self, records: Iterable[Record]) -> list[Record]:
        """Return records with bytes for their keys and values, as `append_many` writes them."""
        if is_arrow(records):
            raise wrong_type("records", "a list of records where there are serializers", records).advising(
                "append an Arrow table of bytes with topic.append_many(table), without using()"
            )
        return self.serde.rows(check_list("records", records, "records"))

    # -- reading -------------------------------------------------------------------------------------

    def read(self, *args: Any, **options: Any) -> Records:
        """Records, lazily: `Topic.read`.

        One that cannot be deserialized is a `SerializationError` with its offset; ask for the next one to
        go on behind it.
        """
        return self.topic.read(*args, **options).through(self.serde.record)

    aread = read
    """`read` by another name: what it returns can be used in an ``async for`` loop."""

    def at(self, *args: Any, **options: Any) -> Record | None:
        """Return the record at an offset: `Topic.at`."""
        return self.serde.found(self.topic.at(*args, **options))

    def get(self, key: Any, *args: Any, **options: Any) -> Record | None:
        """Return the latest record of a key: `Topic.get`."""
        return self.serde.found(self.topic.get(self.serde.key(key), *args, **options))

    def history(self, key: Any, *args: Any, **options: Any) -> Iterator[Record]:
        """Return every record of a key: `Topic.history`."""
        return map(self.serde.record, self.topic.history(self.serde.key(key), *args, **options))
