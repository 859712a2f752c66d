"""A Kafka cluster as commands see it that also work on a store: its topics, records and groups.

Any broker that speaks Kafka's protocol will do, `stratalog serve` too. Requests about many partitions go out
together. Records are written by an idempotent producer with Kafka's own choice of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stratalog.cli.guard import WrongUsage
from stratalog.cli.places.client import ANSWER_S, SLICE_S, Client
from stratalog.cli.places.cluster_reading import ClusterTopic
from stratalog.cli.places.contract import PartitionFacts, Place
from stratalog.config import PROFILE, SETTINGS, ConfigEntry
from stratalog.config.tables import with_profile
from stratalog.errors import ClusterError, StratalogError, UnknownTopicError
from stratalog.format.batch import HEADER_SIZE
from stratalog.model import AppendedRange, Record
from stratalog.store.groups.offsets import CommittedOffset

BATCH_BYTES = 1_000_000
"""librdkafka's default; a topic with a smaller max.message.bytes gets smaller batches."""
SOURCES = {1: "topic", 2: "broker", 3: "broker", 4: "broker"}
"""Where a setting comes from, by Kafka's numbers; the rest are defaults."""
LATEST, EARLIEST = "latest", "earliest"
_SETTINGS = {setting.name: setting for setting in SETTINGS}


class Cluster:
    """`Reads` and `Changes` of a Kafka cluster."""

    def __init__(self, address: str, config_file: str | None = None) -> None:
        self._client = Client(address, config_file)
        kafka, package = self._client.kafka, self._client.admin_package
        self._place, self._package = kafka.TopicPartition, package
        self._admin = self._client.make(package.AdminClient, {})
        self._producers: dict[str, Any] = {}
        self.check()

    def check(self, patience_s: float | None = None) -> None:
        """Raise ClusterError if no broker answers; ``patience_s`` is for one that did before."""
        self._client.metadata(self._admin, patience_s)

    # -- reads ---------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return sorted(self._client.metadata(self._admin).topics)

    def topic(self, name: str) -> ClusterTopic:
        return ClusterTopic(self._client, self, name, self.describe_topic(name)["partitions"])

    def topic_id(self, name: str) -> str | None:
        found: str | None = self.describe_topic(name)["id"]
        return found

    def describe_topic(self, name: str) -> dict[str, Any]:
        """Return the number of a topic's partitions and its id; a topic that is missing is not created."""
        kafka = self._client.kafka
        try:
            asked = self._admin.describe_topics(kafka.TopicCollection([name]), request_timeout=ANSWER_S)
        except ValueError as error:
            raise UnknownTopicError(f"no topic {name!r}: {error}") from None  # librdkafka's own check
        found = self._result(asked[name], f"topic {name}")
        topic_id = str(found.topic_id).translate(str.maketrans("+/", "-_")) if found.topic_id else None
        return {"partitions": len(found.partitions), "id": topic_id}

    def settings(self, topic: str) -> list[ConfigEntry]:
        resource = self._package.ConfigResource(self._package.ConfigResource.Type.TOPIC, topic)
        (asked,) = self._admin.describe_configs([resource], request_timeout=ANSWER_S).values()
        return [_entry(each) for _, each in sorted(self._result(asked, f"topic {topic}").items())]

    def partition_facts(self, topics: Sequence[str]) -> dict[str, list[PartitionFacts]]:
        known = self._client.metadata(self._admin).topics
        found: dict[str, list[PartitionFacts]] = {}
        places = [(name, each) for name in topics if name in known for each in sorted(known[name].partitions)]
        ends = [self._offsets(places, spec) for spec in (EARLIEST, LATEST)]
        for name in topics:
            if name not in known:
                raise UnknownTopicError(f"no topic {name} at {self._client.address}")
            found[name] = []
        for at in places:
            start, end = (each[at] for each in ends)
            if isinstance(start, int) and isinstance(end, int):
                found[at[0]].append(PartitionFacts(at[1], start, end, None, None, None))
            else:
                why = str(start if isinstance(start, Exception) else end)
                found[at[0]].append(PartitionFacts(at[1], 0, 0, None, None, None, why))
        return found

    def bounds(
        self, places: Iterable[Place], isolation: str = "read_uncommitted"
    ) -> dict[Place, tuple[int, int]]:
        known = self._client.metadata(self._admin).topics
        there = [(name, each) for name, each in places if name in known and each in known[name].partitions]
        starts, ends = (self._offsets(there, spec, isolation) for spec in (EARLIEST, LATEST))
        return {at: (_number(starts[at]), _number(ends[at])) for at in there}

    def offsets_for_time(self, places: Iterable[Place], time_ms: int) -> dict[Place, int | None]:
        found = self._offsets(list(places), max(time_ms, 0))
        return {at: None if (offset := _number(each)) < 0 else offset for at, each in found.items()}

    def _offsets(
        self, places: Sequence[Place], spec: str | int, isolation: str = "read_uncommitted"
    ) -> dict[Place, int | StratalogError]:
        """Look up an offset in each partition: `EARLIEST`, `LATEST` or the first of a time in ms."""
        if not places:
            return {}
        kinds = self._package.OffsetSpec
        wanted = getattr(kinds, spec)() if isinstance(spec, str) else kinds.for_timestamp(spec)
        level = self._client.kafka.IsolationLevel[isolation.upper()]
        asked = self._admin.list_offsets(
            {self._place(*at): wanted for at in places}, isolation_level=level, request_timeout=ANSWER_S
        )
        found: dict[Place, int | StratalogError] = {}
        for each, future in asked.items():
            try:
                found[each.topic, each.partition] = self._result(
                    future, f"{each.topic}-{each.partition}"
                ).offset
            except ClusterError as error:
                found[each.topic, each.partition] = error
        return found

    def groups(self) -> dict[str, dict[Place, CommittedOffset]]:
        listed = self._result(self._admin.list_consumer_groups(request_timeout=ANSWER_S), "groups")
        if listed.errors:
            raise self._client.ours(listed.errors[0], "groups")
        asked = {each.group_id: self._ask_offsets(each.group_id) for each in listed.valid}
        return {name: self._committed(name, future) for name, future in sorted(asked.items())}

    def group(self, name: str) -> dict[Place, CommittedOffset] | None:
        found = self._committed(name, self._ask_offsets(name))
        return found if found or name in self.groups() else None

    def _ask_offsets(self, group: str) -> Any:
        asked = self._client.kafka.ConsumerGroupTopicPartitions(group)
        return self._admin.list_consumer_group_offsets([asked], request_timeout=ANSWER_S)[group]

    def _committed(self, group: str, future: Any) -> dict[Place, CommittedOffset]:
        places = self._result(future, f"group {group}").topic_partitions
        return {
            (each.topic, each.partition): CommittedOffset(each.offset, metadata=each.metadata or "")
            for each in places
            if each.offset >= 0
        }

    # -- changes -------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic; the cluster chooses the number of replicas, and of partitions if none is given."""
        settings = {key: str(value) for key, value in with_profile(config or {}).items() if key != PROFILE}
        topic = self._package.NewTopic(name, -1 if partitions is None else partitions, -1, config=settings)
        asked = self._admin.create_topics([topic], operation_timeout=ANSWER_S, request_timeout=ANSWER_S)
        self._result(asked[name], f"topic {name}")

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        kinds, package = self._package.AlterConfigOpType, self._package
        given = with_profile({key: value for key, value in changes.items() if value is not None})
        gone = [key for key, value in changes.items() if value is None]
        entries = [
            package.ConfigEntry(key, str(value), incremental_operation=kinds.SET)
            for key, value in given.items()
            if key != PROFILE
        ] + [package.ConfigEntry(key, None, incremental_operation=kinds.DELETE) for key in gone]
        resource = package.ConfigResource(
            package.ConfigResource.Type.TOPIC, name, incremental_configs=entries
        )
        (asked,) = self._admin.incremental_alter_configs([resource], request_timeout=ANSWER_S).values()
        self._result(asked, f"topic {name}")

    def add_partitions(self, name: str, total: int) -> None:
        asked = self._admin.create_partitions(
            [self._package.NewPartitions(name, total)], operation_timeout=ANSWER_S, request_timeout=ANSWER_S
        )
        self._result(asked[name], f"topic {name}")

    def delete_topic(self, name: str) -> None:
        asked = self._admin.delete_topics([name], operation_timeout=ANSWER_S, request_timeout=ANSWER_S)
        self._result(asked[name], f"topic {name}")

    def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        places = [self._place(*at, offset) for at, offset in offsets.items()]
        wanted = self._client.kafka.ConsumerGroupTopicPartitions(group, places)
        asked = self._admin.alter_consumer_group_offsets([wanted], request_timeout=ANSWER_S)[group]
        for each in self._result(asked, f"group {group}").topic_partitions:
            if each.error is not None:
                raise self._client.ours(each.error, f"group {group}")

    def forget_offsets(self, group: str, places: Collection[Place]) -> None:
        """Delete a group; librdkafka's Python package cannot delete some of its offsets."""
        if set(places) != set(self.group(group) or ()):
            raise WrongUsage("on a cluster a group is deleted whole: omit --topic")
        asked = self._admin.delete_consumer_groups([group], request_timeout=ANSWER_S)[group]
        self._result(asked, f"group {group}")

    # -- appends -------------------------------------------------------------------------------------------

    def append(
        self, topic: str, records: Iterable[Record], partition: int | None = None, sync: bool = False
    ) -> Iterator[AppendedRange]:
        """Produce records and wait for all acknowledgements, which ``acks=all`` makes those of every replica.

        After an error nothing more is sent; what was acknowledged comes before it is raised.
        """
        producer, placed, failed = self._producer(topic), [], []

        def told(error: Any, message: Any) -> None:
            if error is None:
                placed.append((message.partition(), message.offset()))
            else:
                failed.append(error)

        for record in records:
            if failed:
                break
            self._produce(producer, topic, record, partition, told, failed)
        deadline_s = time.monotonic() + ANSWER_S + SLICE_S
        while producer.flush(SLICE_S) and time.monotonic() < deadline_s:
            continue
        yield from _ranges(placed)
        if failed:
            raise self._client.ours(failed[0], f"topic {topic}")
        if len(producer):
            raise self._client.silent()

    def _produce(
        self, producer: Any, topic: str, record: Record, partition: int | None, told: Any, failed: list[Any]
    ) -> None:
        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        if record.timestamp is not None:
            more["timestamp"] = record.timestamp
        if record.headers:
            more["headers"] = list(record.headers)
        deadline_s = time.monotonic() + ANSWER_S
        while not failed:
            try:
                producer.produce(topic, record.value, record.key, on_delivery=told, **more)
                return
            except BufferError:
                if time.monotonic() >= deadline_s:
                    raise self._client.silent() from None
                producer.poll(SLICE_S)
            except self._client.kafka.KafkaException as error:
                failed.append(error.args[0])

    def _producer(self, topic: str) -> Any:
        if topic not in self._producers:
            limit = next(
                (each.value for each in self.settings(topic) if each.name == "max.message.bytes"), ""
            )
            largest = int(limit) - HEADER_SIZE if limit.isdecimal() else BATCH_BYTES
            settings = {
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # Kafka's; librdkafka's own puts keys elsewhere
                "message.max.bytes": 1_000_000_000,  # the broker decides
                "batch.size": max(1, min(largest, BATCH_BYTES)),
                "message.timeout.ms": int(ANSWER_S * 1000),
            }
            self._producers[topic] = self._client.make(self._client.kafka.Producer, settings)
        return self._producers[topic]

    def _result(self, future: Any, about: str) -> Any:
        return self._client.result(future, about)


def _number(found: int | StratalogError) -> int:
    if isinstance(found, StratalogError):
        raise found
    return found


def _entry(found: Any) -> ConfigEntry:
    known = _SETTINGS.get(found.name)
    source: Any = SOURCES.get(found.source, "default")
    value = "" if found.value is None else found.value
    if known is None:
        return ConfigEntry(found.name, value, source, "", "string", None, "")
    return ConfigEntry(
        found.name, value, source, known.default_text, known.type, known.broker_name, known.doc
    )


def _ranges(placed: list[tuple[int, int]]) -> Iterator[AppendedRange]:
    """Yield runs of neighbouring offsets."""
    run: list[int] = []
    for partition, offset in sorted(placed):
        if run and run[0] == partition and run[1] + run[2] == offset:
            run[2] += 1
        else:
            if run:
                yield AppendedRange(*run)
            run = [partition, offset, 1]
    if run:
        yield AppendedRange(*run)
