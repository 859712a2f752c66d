"""The same requests to two brokers, and what differs in their answers.

A case is a request in every version that both serve. Its answer becomes a dictionary of paths and values in
which ids and times are masked; where two answers differ, the paths are compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stratalog import Record
from stratalog.format.batch import BatchOptions, encode_records
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, batch

CLOSED = "the connection was closed"
MASKED = {
    "cluster_id": "an id",
    "host": "a host",
    "port": "a port",
    "producer_id": "an id",
    "member_id": "an id",
    "leader": "an id",
    "replica_directory_id": "an id",
    "log_append_time_ms": None,
    "log_dir": "a path",
    "last_fetch_timestamp": "a time",
    "last_caught_up_timestamp": "a time",
    "total_bytes": "bytes",
    "usable_bytes": "bytes",
    "client_host": "a host",
    "transaction_start_time_ms": "a time",
}
"""Fields that hold an id, a time or a place: masked unless they are empty, -1 or 0."""
NAMES = (
    *("name", "topic_name", "resource_name", "topic", "group_id", "api_key", "transactional_id"),
    *("partition_index", "partition", "partition_id", "index"),
)
"""Fields that name an element of an array."""
TEXTS = ("error_message", "batch_index_error_message", "documentation")
"""Words for people: masked, also where one has none."""


@dataclass
class Server:
    """One of the two brokers."""

    address: tuple[str, int]
    ids: dict[str, bytes] = field(default_factory=dict)
    """Topic ids by name."""
    kept: dict[Any, Any] = field(default_factory=dict)
    """What earlier answers said that later requests need."""
    wire: Wire | None = None

    def ask(self, name: str, version: int, /, **fields: Any) -> Any:
        """Return the answer, or `CLOSED`."""
        if self.wire is None:
            self.wire = Wire(self)  # type: ignore[arg-type]  # it has an address
        try:
            return self.wire.ask(name, version, **fields)
        except (ConnectionError, TimeoutError):
            self.wire.sock.close()
            self.wire = None
            return CLOSED

    def learn(self) -> None:
        """Learn the ids of all topics."""
        told = self.ask("Metadata", 12, topics=None)
        self.ids = {topic.name: topic.topic_id for topic in told.topics}

    def close(self) -> None:
        if self.wire is not None:
            self.wire.sock.close()


GENERATIONS = ("generation_id", "member_epoch", "group_epoch", "assignment_epoch")
LOADING = (14, 15, 16, 51)
"""A coordinator that is not there yet, or still writes the markers of the transaction before."""
Fields = Callable[[Server, int], dict[str, Any]]


@dataclass
class Case:
    """A request: its API, what it is about, its fields in each version."""

    api: str
    label: str
    fields: Fields = lambda server, version: {}
    versions: range | None = None
    after: Callable[[Server, int, Any], None] = lambda server, version, answer: None
    """Called with each answer; keeps what later requests need, or waits for what it began."""

    def run(self, server: Server, version: int) -> Any:
        fields = self.fields(server, version)
        answer = server.ask(self.api, version, **fields)
        deadline = time.monotonic() + 30
        while _loading(answer, server) and time.monotonic() < deadline:
            time.sleep(0.05)
            answer = server.ask(self.api, version, **fields)
        self.after(server, version, answer)
        return answer


def paths(value: Any, server: Server, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of an answer with its path. Arrays that have names are by name, not by number."""
    if hasattr(value, "_fields"):
        for name in value._fields:
            yield from paths(getattr(value, name), server, f"{at}.{name}" if at else name)
    elif isinstance(value, tuple):
        yield f"{at}.#", len(value)
        for place, each in enumerate(value):
            told = each._asdict() if hasattr(each, "_asdict") else {}
            name = next(
                (str(told[key]) for key in NAMES if told.get(key) not in (None, "")), told.get("group_id")
            )
            if name is not None and "resource_type" in told:
                name = f"{name}, kind {told['resource_type']}"
            there = f"{at}[{place if name is None else name}]"
            yield there, "there"
            yield from paths(each, server, there)
    else:
        yield at, _masked(at.rpartition(".")[2], value, server)


def _loading(answer: Any, server: Server) -> bool:
    return any(path.endswith("error_code") and value in LOADING for path, value in paths(answer, server))


def _masked(name: str, value: Any, server: Server) -> Any:
    if name == "topic_id":
        known = {topic_id: f"id of {topic}" for topic, topic_id in server.ids.items()}
        return known.get(value, "no id" if value == bytes(16) else "an id")
    if name in GENERATIONS and value not in (-1, 0):
        return "a generation"
    if name in TEXTS:
        return "words"
    if name == "session_id":
        return "an id" if value else 0
    mask = MASKED.get(name)
    if mask is not None and value not in ("", None, -1, 0):
        return mask
    return bytes(value) if isinstance(value, memoryview) else value


def differences(case: Case, version: int, ours: Server, theirs: Server) -> list[tuple[str, Any, Any]]:
    """Run a case against both; return (path, ours, theirs) of what differs."""
    found = []
    answers = [case.run(server, version) for server in (ours, theirs)]
    leaves = [dict(paths(answer, server)) for answer, server in zip(answers, (ours, theirs), strict=True)]
    lacking = "\n"
    for path in sorted(leaves[0].keys() | leaves[1].keys()):
        mine, other = (each.get(path, "missing") for each in leaves)
        if mine != other and not path.startswith(lacking):
            if "there" in (mine, other):
                lacking = f"{path}."
            found.append((path, mine, other))
    return found


# -- the cases -----------------------------------------------------------------------------------------------


def _struct(message: str, struct: str, /, **fields: Any) -> Any:
    return codec(f"{message}Request").struct(struct)(**fields)


def _until(ask: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not ask():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def known(server: Server, name: str) -> bool:
    """True if a topic is there with a leader for each partition, or is gone everywhere."""
    told = server.ask("Metadata", 12, topics=[_struct("Metadata", "MetadataRequestTopic", name=name)])
    return told.topics[0].error_code == 0 and all(
        part.error_code == 0 and part.leader_id >= 0 for part in told.topics[0].partitions
    )


def settled(server: Server, version: int, answer: Any) -> None:
    """Wait until the topics of an answer are there, or gone."""
    for each in getattr(answer, "topics", None) or getattr(answer, "responses", ()):
        if each.error_code == 0:
            there = hasattr(each, "num_partitions")
            _until(lambda each=each, there=there: known(server, each.name) == there, each.name)  # type: ignore[misc]
    server.learn()


def topic_fields(name: str, partitions: int = 1, replicas: int = 1, **config: str) -> Any:
    configs = [
        _struct("CreateTopics", "CreatableTopicConfig", name=key.replace("_", "."), value=value)
        for key, value in config.items()
    ]
    return _struct(
        "CreateTopics", "CreatableTopic",
        name=name, num_partitions=partitions, replication_factor=replicas, configs=configs,
    )  # fmt: skip


def assigned(name: str, *brokers: int, first: int = 0) -> Any:
    made = [
        _struct("CreateTopics", "CreatableReplicaAssignment", partition_index=at, broker_ids=(each,))
        for at, each in enumerate(brokers, first)
    ]
    return topic_fields(name, -1, -1)._replace(assignments=made)


def produce(name: str, data: bytes | None, *, acks: int = -1, partition: int = 0) -> Fields:
    def fields(server: Server, version: int) -> dict[str, Any]:
        part = _struct("Produce", "PartitionProduceData", index=partition, records=data)
        topic = _struct(
            "Produce", "TopicProduceData",
            name=name, topic_id=server.ids.get(name, bytes(15) + b"\7"), partition_data=[part],
        )  # fmt: skip
        return {"acks": acks, "timeout_ms": 10_000, "topic_data": [topic]}

    return fields


def fetch(name: str, offset: int, partition: int = 0, epoch: int = -1, **more: Any) -> Fields:
    def fields(server: Server, version: int) -> dict[str, Any]:
        part = _struct(
            "Fetch", "FetchPartition",
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch,
        )  # fmt: skip
        topic = _struct(
            "Fetch", "FetchTopic",
            topic=name, topic_id=server.ids.get(name, bytes(15) + b"\7"), partitions=[part],
        )  # fmt: skip
        return {
            "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic], "replica_id": -1,
        } | {key: value(server) if callable(value) else value for key, value in more.items()}  # fmt: skip

    return fields


def list_offsets(name: str, timestamp: int, partition: int = 0, epoch: int = -1, level: int = 0) -> Fields:
    part = _struct(
        "ListOffsets", "ListOffsetsPartition",
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch,
    )  # fmt: skip
    topic = _struct("ListOffsets", "ListOffsetsTopic", name=name, partitions=[part])
    return lambda server, version: {
        "replica_id": -1, "isolation_level": level, "topics": [topic], "timeout_ms": 10_000
    }  # fmt: skip


def configs_of(kind: int, name: str, *keys: str, synonyms: bool = True) -> Fields:
    resource = _struct(
        "DescribeConfigs", "DescribeConfigsResource",
        resource_type=kind, resource_name=name, configuration_keys=keys or None,
    )  # fmt: skip
    return lambda server, version: {"resources": [resource], "include_synonyms": synonyms}


def incremental(
    name: str, *changes: tuple[str, int, str | None], kind: int = 2, only: bool = False
) -> Fields:
    resource = _struct(
        "IncrementalAlterConfigs", "AlterConfigsResource", resource_type=kind, resource_name=name,
        configs=[
            _struct("IncrementalAlterConfigs", "AlterableConfig", name=key, config_operation=how, value=value)
            for key, how, value in changes
        ],
    )  # fmt: skip
    return lambda server, version: {"resources": [resource], "validate_only": only}


def altered(name: str, only: bool = False, kind: int = 2, **config: str | None) -> Fields:
    resource = _struct(
        "AlterConfigs", "AlterConfigsResource", resource_type=kind, resource_name=name,
        configs=[
            _struct("AlterConfigs", "AlterableConfig", name=key.replace("_", "."), value=value)
            for key, value in config.items()
        ],
    )  # fmt: skip
    return lambda server, version: {"resources": [resource], "validate_only": only}


def always(**fields: Any) -> Fields:
    return lambda server, version: fields


def create(*topics: Callable[[int], Any], only: bool = False) -> Fields:
    return lambda server, version: {
        "topics": [each(version) for each in topics], "timeout_ms": 20_000, "validate_only": only
    }  # fmt: skip


def grow(*wanted: tuple[str, int], only: bool = False, brokers: tuple[int, ...] = ()) -> Fields:
    placed = (
        [_struct("CreatePartitions", "CreatePartitionsAssignment", broker_ids=(each,)) for each in brokers]
        if brokers
        else None
    )
    topics = [
        _struct("CreatePartitions", "CreatePartitionsTopic", name=name, count=count, assignments=placed)
        for name, count in wanted
    ]
    return always(topics=topics, timeout_ms=20_000, validate_only=only)


def delete_topics(*names: Callable[[int], str]) -> Fields:
    def fields(server: Server, version: int) -> dict[str, Any]:
        wanted = [name(version) for name in names]
        return {
            "topic_names": wanted,
            "topics": [_struct("DeleteTopics", "DeleteTopicState", name=each) for each in wanted],
            "timeout_ms": 20_000,
        }

    return fields


def delete_records(name: str, offset: int, partition: int = 0) -> Fields:
    part = _struct("DeleteRecords", "DeleteRecordsPartition", partition_index=partition, offset=offset)
    topic = _struct("DeleteRecords", "DeleteRecordsTopic", name=name, partitions=[part])
    return always(topics=[topic], timeout_ms=10_000)


def epoch_end(name: str, epoch: int, partition: int = 0, current: int = -1) -> Fields:
    part = _struct(
        "OffsetForLeaderEpoch", "OffsetForLeaderPartition",
        partition=partition, leader_epoch=epoch, current_leader_epoch=current,
    )  # fmt: skip
    topic = _struct("OffsetForLeaderEpoch", "OffsetForLeaderTopic", topic=name, partitions=[part])
    return always(topics=[topic], replica_id=-2)


def cases() -> list[Case]:
    """Return every request, in order: later ones build on earlier ones."""

    def keep_session(server: Server, _: int, answer: Any) -> None:
        server.kept["session"] = answer.session_id

    def session(server: Server) -> Any:
        return server.kept["session"]

    def metadata(*names: str) -> Fields:
        topics = [_struct("Metadata", "MetadataRequestTopic", name=name) for name in names]
        return always(topics=topics, allow_auto_topic_creation=False)

    three = batch(b"a", b"b", b"c")
    two_batches = batch(b"a") + batch(b"b", b"c")
    broken = bytearray(batch(b"bad"))
    broken[-1] ^= 1
    old = bytes(broken[:16]) + b"\1" + bytes(broken[17:])
    return [
        Case("CreateTopics", "a topic", create(lambda v: topic_fields(f"made-{v}", 2)), after=settled),
        Case("CreateTopics", "it is there", create(lambda v: topic_fields(f"made-{v}", 2))),
        Case(
            "CreateTopics", "with settings",
            create(lambda v: topic_fields(f"set-{v}", 1, retention_ms="1000", cleanup_policy="compact")),
            after=settled,
        ),
        Case(
            "CreateTopics", "for small records",
            create(lambda v: topic_fields("small-7", max_message_bytes="1000")),
            versions=range(7, 8), after=settled,
        ),
        Case("CreateTopics", "only checked", create(lambda v: topic_fields(f"tried-{v}", 3), only=True)),
        Case("CreateTopics", "three replicas", create(lambda v: topic_fields("r", 1, 3))),
        Case("CreateTopics", "no replica", create(lambda v: topic_fields("r", 1, 0))),
        Case("CreateTopics", "no partition", create(lambda v: topic_fields("r", 0))),
        Case("CreateTopics", "a bad name", create(lambda v: topic_fields("a b", 1))),
        Case("CreateTopics", "no name", create(lambda v: topic_fields("", 1))),
        Case("CreateTopics", "names that Kafka confuses", create(lambda v: topic_fields("made.7", 1)),
             versions=range(7, 8)),
        Case("CreateTopics", "names that Kafka confuses, at last",
             create(lambda v: topic_fields("x.y", 1), lambda v: topic_fields("x_y", 1), only=True)),
        Case("CreateTopics", "an unknown setting", create(lambda v: topic_fields("r", 1, no_such="1"))),
        Case("CreateTopics", "a wrong setting", create(lambda v: topic_fields("r", 1, retention_ms="soon"))),
        Case("CreateTopics", "twice", create(lambda v: topic_fields("r", 1), lambda v: topic_fields("r", 2))),
        Case("CreateTopics", "assigned", create(lambda v: assigned(f"assigned-{v}", 1, 1)), after=settled),
        Case("CreateTopics", "assigned elsewhere", create(lambda v: assigned("r", 7))),
        Case("CreateTopics", "assigned with a gap", create(lambda v: assigned("r", 1, first=1))),
        Case("CreateTopics", "the default count", create(lambda v: topic_fields(f"dflt-{v}", -1, -1)),
             versions=range(4, 8), after=settled),
        Case("CreatePartitions", "more", lambda s, v: grow((f"made-{v + 2}", 4))(s, v),
             after=lambda s, v, a: _until(lambda: known(s, f"made-{v + 2}"), "partitions")),
        Case("CreatePartitions", "fewer", grow(("made-7", 1))),
        Case("CreatePartitions", "as many", grow(("set-7", 1))),
        Case("CreatePartitions", "only checked", grow(("made-7", 9), only=True)),
        Case("CreatePartitions", "two topics, one unknown", grow(("nobody", 9), ("made-7", 9), only=True)),
        Case("CreatePartitions", "twice", grow(("made-7", 9), ("made-7", 8), only=True)),
        Case("CreatePartitions", "assigned", grow(("set-7", 2), only=True, brokers=(1,))),
        Case("CreatePartitions", "assigned elsewhere", grow(("set-7", 2), only=True, brokers=(7,))),
        Case("CreatePartitions", "too few assigned", grow(("set-7", 3), only=True, brokers=(1,))),
        Case("Metadata", "some topics", metadata("made-7", "set-7")),
        Case("Metadata", "an unknown one", metadata("nobody")),
        Case("Metadata", "a bad name", metadata("a b")),
        Case("Metadata", "no topic", always(topics=()), versions=range(1, 14)),
        Case("Metadata", "by id", lambda s, v: {"topics": [
            _struct("Metadata", "MetadataRequestTopic", name=None, topic_id=s.ids["made-7"])]},
            versions=range(12, 14)),
        Case("Metadata", "by an unknown id", always(topics=[
            _struct("Metadata", "MetadataRequestTopic", name=None, topic_id=bytes(15) + b"\7")]),
            versions=range(12, 14)),
        Case("DescribeTopicPartitions", "some topics", always(topics=[
            _struct("DescribeTopicPartitions", "TopicRequest", name=name) for name in ("set-7", "made-7")])),
        Case("DescribeTopicPartitions", "an unknown one", always(topics=[
            _struct("DescribeTopicPartitions", "TopicRequest", name="nobody")])),
        Case("DescribeTopicPartitions", "limited", always(response_partition_limit=3, topics=[
            _struct("DescribeTopicPartitions", "TopicRequest", name=name) for name in ("made-4", "made-7")])),
        Case("DescribeTopicPartitions", "limited to one topic", always(response_partition_limit=2, topics=[
            _struct("DescribeTopicPartitions", "TopicRequest", name=name) for name in ("made-6", "made-7")])),
        Case("DescribeTopicPartitions", "from a cursor", always(
            topics=[_struct("DescribeTopicPartitions", "TopicRequest", name=name)
                    for name in ("made-4", "made-7")],
            cursor=_struct("DescribeTopicPartitions", "Cursor", topic_name="made-4", partition_index=2))),
        Case("DescribeTopicPartitions", "a bad cursor", always(
            topics=[_struct("DescribeTopicPartitions", "TopicRequest", name="made-7")],
            cursor=_struct("DescribeTopicPartitions", "Cursor", topic_name="made-4", partition_index=-2))),
        Case("Metadata", "with what one may do", always(
            topics=[_struct("Metadata", "MetadataRequestTopic", name="made-7")],
            include_topic_authorized_operations=True, include_cluster_authorized_operations=True)),
        Case("DescribeCluster", "brokers", always()),
        Case("DescribeCluster", "with what one may do", always(include_cluster_authorized_operations=True)),
        Case("DescribeCluster", "controllers", always(endpoint_type=2), versions=range(1, 3)),
        Case("DescribeCluster", "nothing known", always(endpoint_type=7), versions=range(1, 3)),
        Case("Produce", "three records", produce("made-7", three), versions=range(3, 14)),
        Case("Produce", "two batches", produce("small-7", two_batches), versions=range(12, 13)),
        Case("Produce", "an unknown topic", produce("nobody", three), versions=range(3, 14)),
        Case("Produce", "an unknown partition", produce("made-7", three, partition=9), versions=range(3, 14)),
        Case("Produce", "a bad CRC", produce("made-7", bytes(broken)), versions=range(3, 14)),
        Case("Produce", "an old magic", produce("made-7", old), versions=range(3, 14)),
        Case("Produce", "nothing", produce("made-7", b""), versions=range(3, 14)),
        Case("Produce", "bad acks", produce("made-7", three, acks=5), versions=range(3, 14)),
        Case("Produce", "one ack", produce("made-7", three, acks=1), versions=range(3, 14)),
        Case("Produce", "no key where it is needed", produce("set-7", three), versions=range(3, 14)),
        Case("Produce", "too large", produce("small-7", batch(b"x" * 5000)), versions=range(3, 14)),
        Case("Produce", "an internal topic", produce("__consumer_offsets", three), versions=range(12, 13)),
        Case("Fetch", "from the start", fetch("made-7", 0)),
        Case("Fetch", "inside a batch", fetch("made-7", 2)),
        Case("Fetch", "little", fetch("made-7", 0, max_bytes=1)),
        Case("Fetch", "committed", fetch("made-7", 0, isolation_level=1)),
        Case("Fetch", "the end", fetch("set-7", 0)),
        Case("Fetch", "beyond", fetch("made-7", 1000)),
        Case("Fetch", "before", fetch("made-7", -7)),
        Case("Fetch", "an unknown topic", fetch("nobody", 0)),
        Case("Fetch", "an unknown partition", fetch("made-7", 0, partition=9)),
        Case("Fetch", "a newer epoch", fetch("made-7", 0, epoch=7), versions=range(9, 19)),
        Case("Fetch", "nothing", always(max_wait_ms=5000, min_bytes=1, topics=(), replica_id=-1)),
        Case("Fetch", "a session", fetch("made-7", 60, session_epoch=0), after=keep_session,
             versions=range(7, 19)),
        Case("Fetch", "a session of names asked by ids", lambda s, v: {
            "session_id": s.kept["session"], "session_epoch": 1, "max_wait_ms": 0, "replica_id": -1,
        }, versions=range(12, 13)),
        Case("Fetch", "a session that is not there", fetch(
            "made-7", 0, session_epoch=1, session_id=lambda s: s.kept["session"] ^ 1),
            versions=range(7, 19)),
        Case("Fetch", "a wrong epoch", fetch("made-7", 0, session_epoch=9, session_id=session),
             versions=range(18, 19)),
        Case("Fetch", "the next of a session", fetch("made-7", 60, session_epoch=1, session_id=session),
             versions=range(18, 19)),
        Case("Fetch", "no news", lambda s, v: {
            "session_id": s.kept["session"], "session_epoch": 2, "max_wait_ms": 0, "replica_id": -1,
        }, versions=range(18, 19)),
        Case("Fetch", "the last of a session", fetch("made-7", 60, session_epoch=-1, session_id=session),
             versions=range(18, 19)),
        *(
            Case("ListOffsets", f"at {at}", list_offsets("made-7", at, level=level))
            for at in (0, 5, 6, -1, -2, -3, -4, -5, -9)
            for level in (0, 1)
        ),
        Case("ListOffsets", "an empty log, the largest time", list_offsets("set-7", -3)),
        Case("ListOffsets", "an empty log, a time", list_offsets("set-7", 5)),
        Case("ListOffsets", "an empty log, the end", list_offsets("set-7", -1)),
        Case("ListOffsets", "an unknown topic", list_offsets("nobody", -1)),
        Case("ListOffsets", "an unknown partition", list_offsets("made-7", -1, partition=9)),
        Case("ListOffsets", "a newer epoch", list_offsets("made-7", -1, epoch=9), versions=range(4, 12)),
        Case("OffsetForLeaderEpoch", "ours", epoch_end("made-7", 0)),
        Case("OffsetForLeaderEpoch", "beyond", epoch_end("made-7", 7)),
        Case("OffsetForLeaderEpoch", "before", epoch_end("made-7", -1)),
        Case("OffsetForLeaderEpoch", "an unknown topic", epoch_end("nobody", 0)),
        Case("OffsetForLeaderEpoch", "an unknown partition", epoch_end("made-7", 0, partition=9)),
        Case("OffsetForLeaderEpoch", "a newer epoch", epoch_end("made-7", 0, current=9)),
        Case("DeleteRecords", "some", delete_records("made-7", 2)),
        Case("DeleteRecords", "again", delete_records("made-7", 1)),
        Case("DeleteRecords", "beyond", delete_records("made-7", 1000)),
        Case("DeleteRecords", "before", delete_records("made-7", -7)),
        Case("DeleteRecords", "an unknown topic", delete_records("nobody", 1)),
        Case("DeleteRecords", "an unknown partition", delete_records("made-7", 1, partition=9)),
        Case("DeleteRecords", "a compacted topic", delete_records("set-7", 0)),
        Case("ListOffsets", "the start after a deletion", list_offsets("made-7", -2)),
        Case("Fetch", "what was deleted", fetch("made-7", 0)),
        Case("DescribeConfigs", "a topic", configs_of(2, "set-7")),
        Case("DescribeConfigs", "a topic without synonyms", configs_of(2, "set-7", synonyms=False)),
        Case("DescribeConfigs", "some keys", configs_of(2, "set-7", "retention.ms", "no.such")),
        Case("DescribeConfigs", "an unknown topic", configs_of(2, "nobody")),
        Case("DescribeConfigs", "a bad name", configs_of(2, "a b")),
        Case("DescribeConfigs", "some keys of the broker", configs_of(
            4, "1", "num.partitions", "log.retention.ms", "message.max.bytes", "auto.create.topics.enable",
            "default.replication.factor", "log.cleanup.policy", "min.insync.replicas")),
        Case("DescribeConfigs", "the defaults of all brokers", configs_of(4, "")),
        Case("DescribeConfigs", "another broker", configs_of(4, "7")),
        Case("DescribeConfigs", "no broker", configs_of(4, "x")),
        Case("DescribeConfigs", "an unknown kind", configs_of(77, "x")),
        Case("IncrementalAlterConfigs", "set", incremental("set-7", ("retention.ms", 0, "5000"))),
        Case("IncrementalAlterConfigs", "append", incremental("set-7", ("cleanup.policy", 2, "delete"))),
        Case("IncrementalAlterConfigs", "append it again",
             incremental("set-7", ("cleanup.policy", 2, "delete"))),
        Case("IncrementalAlterConfigs", "subtract", incremental("set-7", ("cleanup.policy", 3, "compact"))),
        Case("IncrementalAlterConfigs", "append to a number",
             incremental("set-7", ("retention.ms", 2, "5"))),
        Case("IncrementalAlterConfigs", "delete", incremental("set-7", ("retention.ms", 1, None))),
        Case("IncrementalAlterConfigs", "delete what is not there",
             incremental("set-7", ("segment.ms", 1, None))),
        Case("IncrementalAlterConfigs", "only checked",
             incremental("set-7", ("retention.ms", 0, "7000"), only=True)),
        Case("IncrementalAlterConfigs", "a wrong value", incremental("set-7", ("retention.ms", 0, "soon"))),
        Case("IncrementalAlterConfigs", "a wrong value, only checked",
             incremental("set-7", ("retention.ms", 0, "soon"), only=True)),
        Case("IncrementalAlterConfigs", "no value", incremental("set-7", ("retention.ms", 0, None))),
        Case("IncrementalAlterConfigs", "unknown", incremental("set-7", ("no.such", 0, "1"))),
        Case("IncrementalAlterConfigs", "twice",
             incremental("set-7", ("retention.ms", 0, "1"), ("retention.ms", 1, None))),
        Case("IncrementalAlterConfigs", "a bad operation", incremental("set-7", ("retention.ms", 9, "1"))),
        Case("IncrementalAlterConfigs", "an unknown topic",
             incremental("nobody", ("retention.ms", 0, "1"))),
        Case("IncrementalAlterConfigs", "an unknown kind",
             incremental("x", ("retention.ms", 0, "1"), kind=77)),
        Case("AlterConfigs", "replaces all", altered("set-7", segment_ms="60000")),
        Case("AlterConfigs", "only checked", altered("set-7", only=True, segment_ms="70000")),
        Case("AlterConfigs", "a wrong value", altered("set-7", segment_ms="soon")),
        Case("AlterConfigs", "unknown", altered("set-7", no_such="1")),
        Case("AlterConfigs", "an unknown topic", altered("nobody", segment_ms="60000")),
        Case("DescribeConfigs", "after the changes",
             configs_of(2, "set-7", "segment.ms", "retention.ms", "cleanup.policy")),
        Case("ListConfigResources", "all", always()),
        Case("ListConfigResources", "topics", always(resource_types=(2,)), versions=range(1, 2)),
        Case("ListConfigResources", "unknown", always(resource_types=(99,)), versions=range(1, 2)),
        Case("DescribeLogDirs", "a topic", always(topics=[
            _struct("DescribeLogDirs", "DescribableLogDirTopic", topic="set-7", partitions=(0,))])),
        Case("DescribeLogDirs", "no topic", always(topics=())),
        Case("DescribeLogDirs", "an unknown one", always(topics=[
            _struct("DescribeLogDirs", "DescribableLogDirTopic", topic="nobody", partitions=(0,))])),
        Case("AlterReplicaLogDirs", "an unknown directory", always(dirs=[
            _struct("AlterReplicaLogDirs", "AlterReplicaLogDir", path="/nowhere", topics=[
                _struct("AlterReplicaLogDirs", "AlterReplicaLogDirTopic", name="made-7", partitions=(0, 9)),
                _struct("AlterReplicaLogDirs", "AlterReplicaLogDirTopic", name="nobody", partitions=(0,)),
            ])])),
        Case("ListPartitionReassignments", "all", always(topics=None)),
        Case("ListPartitionReassignments", "a topic", always(topics=[
            _struct("ListPartitionReassignments", "ListPartitionReassignmentsTopics",
                    name="made-7", partition_indexes=(0,))])),
        Case("ListPartitionReassignments", "an unknown one", always(topics=[
            _struct("ListPartitionReassignments", "ListPartitionReassignmentsTopics",
                    name="nobody", partition_indexes=(0,))])),
        Case("ElectLeaders", "some", always(topic_partitions=[
            _struct("ElectLeaders", "TopicPartitions", topic=name, partitions=at)
            for name, at in (("made-7", (0, 9)), ("nobody", (0,)))])),
        Case("ElectLeaders", "unclean", always(election_type=1, topic_partitions=[
            _struct("ElectLeaders", "TopicPartitions", topic="made-7", partitions=(0,))]),
            versions=range(1, 3)),
        Case("ElectLeaders", "all", always(topic_partitions=None)),
        Case("ElectLeaders", "an unknown kind", always(election_type=7, topic_partitions=None),
             versions=range(1, 3)),
        Case("DescribeQuorum", "the metadata", always(topics=[
            _struct("DescribeQuorum", "TopicData", topic_name="__cluster_metadata", partitions=[
                _struct("DescribeQuorum", "PartitionData", partition_index=0)])])),
        Case("DescribeQuorum", "another topic", always(topics=[
            _struct("DescribeQuorum", "TopicData", topic_name="made-7", partitions=[
                _struct("DescribeQuorum", "PartitionData", partition_index=0)])])),
        Case("DescribeAcls", "all", always(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1)),
        *_groups(),
        *_newer_groups(),
        *_transactions(),
        Case("InitProducerId", "no transaction", always(transactional_id=None, transaction_timeout_ms=1000)),
        Case("ApiVersions", "a client", always(client_software_name="t", client_software_version="1")),
        Case("ApiVersions", "a client with a bad name", always(
            client_software_name="", client_software_version="1"), versions=range(3, 5)),
        Case("ApiVersions", "a client with a bad version", always(
            client_software_name="a", client_software_version="-"), versions=range(3, 5)),
        Case("DeleteTopics", "some", delete_topics(lambda v: f"assigned-{v + 1}", lambda v: "nobody"),
             after=settled),
        Case("DeleteTopics", "twice", delete_topics(lambda v: "x", lambda v: "x")),
        Case("DeleteTopics", "by id", lambda s, v: {"timeout_ms": 20_000, "topics": [
            _struct("DeleteTopics", "DeleteTopicState", name=None, topic_id=s.ids["dflt-7"])]},
            versions=range(6, 7)),
        Case("DeleteTopics", "by an unknown id", always(timeout_ms=20_000, topics=[
            _struct("DeleteTopics", "DeleteTopicState", name=None, topic_id=bytes(15) + b"\7")]),
            versions=range(6, 7)),
    ]  # fmt: skip


def _groups() -> list[Case]:
    """Return the requests of classic groups: of none, of one that commits alone, and of one member."""

    def member(server: Server, version: int, **more: Any) -> dict[str, Any]:
        kept = server.kept.get(("member", version), ("", -1))
        return {"group_id": f"classic-{version}", "member_id": kept[0], "generation_id": kept[1], **more}

    def joining(server: Server, version: int) -> dict[str, Any]:
        return {**join, "group_id": f"classic-{version}", "member_id": member(server, version)["member_id"]}

    def joined(server: Server, version: int, answer: Any) -> None:
        server.kept["member", version] = (answer.member_id, answer.generation_id)

    def commit(group: str, topic: str, partition: int = 0, text: str | None = "m", **more: Any) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            part = _struct(
                "OffsetCommit", "OffsetCommitRequestPartition", partition_index=partition,
                committed_offset=2, committed_leader_epoch=0, committed_metadata=text,
            )  # fmt: skip
            of = _struct(
                "OffsetCommit", "OffsetCommitRequestTopic",
                name=topic, topic_id=server.ids.get(topic, bytes(15) + b"\7"), partitions=[part],
            )  # fmt: skip
            known = {"group_id": group, "generation_id_or_member_epoch": -1, "topics": [of]}
            return known | more

        return fields

    def committed(group: str, topic: str | None) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            topic_id = server.ids.get(topic or "", bytes(15) + b"\7")
            one = {"name": topic or "", "partition_indexes": (0, 1)}
            old = [_struct("OffsetFetch", "OffsetFetchRequestTopic", **one)]
            new = [_struct("OffsetFetch", "OffsetFetchRequestTopics", **one, topic_id=topic_id)]
            asked = _struct("OffsetFetch", "OffsetFetchRequestGroup", group_id=group, topics=new)
            if topic is None:
                old, asked = None, asked._replace(topics=None)  # type: ignore[assignment]
            return {"group_id": group, "topics": old, "groups": [asked]}

        return fields

    protocol = _struct("JoinGroup", "JoinGroupRequestProtocol", name="range", metadata=b"m")
    join = {
        "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer",
        "protocols": [protocol], "group_instance_id": None,
    }  # fmt: skip
    first = {"group_id": "classic", "member_id": ""}
    kind = {"protocol_type": "consumer", "protocol_name": "range"}
    stranger: dict[str, Any] = {"group_id": "classic-5", "member_id": "nobody", "generation_id": 1}
    return [
        Case("FindCoordinator", "of a group", always(key="g", key_type=0, coordinator_keys=("g", "h"))),
        Case("FindCoordinator", "of nothing known", always(key="g", key_type=9, coordinator_keys=("g",)),
             versions=range(1, 7)),
        Case("OffsetCommit", "without members", commit("alone", "made-7")),
        Case("OffsetCommit", "an unknown topic", commit("alone", "nobody")),
        Case("OffsetCommit", "an unknown partition", commit("alone", "made-7", 9)),
        Case("OffsetCommit", "long words", commit("alone", "made-7", text="x" * 5000)),
        Case("OffsetCommit", "no group", commit("", "made-7")),
        Case("OffsetCommit", "a stranger", commit("alone", "made-7", member_id="x",
                                                  generation_id_or_member_epoch=7)),
        Case("OffsetFetch", "some", committed("alone", "made-7")),
        Case("OffsetFetch", "all", committed("alone", None), versions=range(2, 11)),
        Case("OffsetFetch", "an unknown topic", committed("alone", "nobody")),
        Case("OffsetFetch", "of nobody", committed("nobody", "made-7")),
        Case("JoinGroup", "no group", always(**join, group_id="", member_id="")),
        Case("JoinGroup", "a short session", always(**{**join, "session_timeout_ms": 1}, **first)),
        Case("JoinGroup", "a long session", always(**{**join, "session_timeout_ms": 10**9}, **first)),
        Case("JoinGroup", "a stranger", always(**join, group_id="classic", member_id="nobody")),
        Case("JoinGroup", "no protocol", always(**{**join, "protocols": ()}, **first)),
        Case("JoinGroup", "a new member", joining,
             after=joined),
        Case("JoinGroup", "with its id", joining, after=joined),
        Case("SyncGroup", "a stranger", always(**stranger, **kind)),
        Case("SyncGroup", "the leader", lambda s, v: member(
            s, v + 4, **kind,
            assignments=[_struct("SyncGroup", "SyncGroupRequestAssignment",
                                 member_id=s.kept["member", v + 4][0], assignment=b"a")])),
        Case("SyncGroup", "a wrong generation",
             lambda s, v: {**member(s, v + 4, **kind), "generation_id": 77}),
        Case("Heartbeat", "a member", lambda s, v: member(s, v + 4)),
        Case("Heartbeat", "a stranger", always(**stranger)),
        Case("Heartbeat", "a wrong generation", lambda s, v: {**member(s, v + 4), "generation_id": 77}),
        Case("DescribeGroups", "a group", always(groups=("classic-7",))),
        Case("DescribeGroups", "offsets alone", always(groups=("alone",))),
        Case("DescribeGroups", "nobody", always(groups=("nobody", ""))),
        Case("ListGroups", "all", always()),
        Case("ListGroups", "those without members", always(states_filter=("Empty",)), versions=range(4, 6)),
        Case("ListGroups", "an unknown state", always(states_filter=("no",)), versions=range(4, 6)),
        Case("ListGroups", "an unknown kind", always(types_filter=("no",)), versions=range(5, 6)),
        Case("DeleteGroups", "one that has members", always(groups_names=("classic-7", "nobody"))),
        Case("LeaveGroup", "a stranger", always(
            group_id="classic-5", member_id="nobody",
            members=[_struct("LeaveGroup", "MemberIdentity", member_id="nobody")])),
        Case("LeaveGroup", "a member", lambda s, v: {
            "group_id": f"classic-{v + 4}", "member_id": s.kept["member", v + 4][0],
            "members": [_struct("LeaveGroup", "MemberIdentity", member_id=s.kept["member", v + 4][0])]}),
        Case("DeleteGroups", "one", lambda s, v: {"groups_names": ("alone",)}, versions=range(2, 3)),
    ]  # fmt: skip


def _newer_groups() -> list[Case]:
    """Return the requests of groups whose assignor is the broker, and OffsetDelete."""
    delete = _struct("OffsetDelete", "OffsetDeleteRequestPartition", partition_index=0)
    topics = [
        _struct("OffsetDelete", "OffsetDeleteRequestTopic", name=name, partitions=[delete])
        for name in ("made-7", "nobody")
    ]
    join = {
        "member_id": "AAAAAAAAAAAAAAAAAAAAAQ", "member_epoch": 0, "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ("made-7",), "topic_partitions": (),
    }  # fmt: skip
    beat = {"member_id": "AAAAAAAAAAAAAAAAAAAAAQ"}

    def joined(server: Server, _: int, answer: Any) -> None:
        server.kept["epoch"] = answer.member_epoch

    def group(more: dict[str, Any]) -> Fields:
        return lambda server, version: {"group_id": f"newer-{version}", **more}

    return [
        Case("OffsetDelete", "some", always(group_id="alone", topics=topics)),
        Case("OffsetDelete", "of nobody", always(group_id="nobody", topics=topics)),
        Case("ConsumerGroupHeartbeat", "no group", always(**join, group_id="")),
        Case("ConsumerGroupHeartbeat", "no topics", group({**join, "subscribed_topic_names": None})),
        Case("ConsumerGroupHeartbeat", "no time", group({**join, "rebalance_timeout_ms": -1})),
        Case("ConsumerGroupHeartbeat", "a strange assignor", group({**join, "server_assignor": "no"})),
        Case("ConsumerGroupHeartbeat", "a new member", group(join), after=joined),
        Case("ConsumerGroupHeartbeat", "a member", lambda s, v: {
            "group_id": f"newer-{v}", **beat, "member_epoch": s.kept["epoch"]}),
        Case("ConsumerGroupHeartbeat", "a wrong epoch", group({**beat, "member_epoch": 9})),
        Case("ConsumerGroupHeartbeat", "a stranger", group({"member_id": "x", "member_epoch": 1})),
        Case("ConsumerGroupDescribe", "one, nobody and a classic one", always(
            group_ids=("newer-1", "nobody", "classic-7"))),
        Case("ConsumerGroupHeartbeat", "a member leaves", group({**beat, "member_epoch": -1})),
    ]  # fmt: skip


def transactional(producer: tuple[int, int], *values: bytes, sequence: int = 0) -> bytes:
    records = [Record(value, timestamp=5) for value in values]
    made, _ = encode_records(
        records, options=BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=1 << 20,
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=True),
    )  # fmt: skip
    return bytes(made.data)


def producer_of(server: Server, name: str) -> tuple[int, int]:
    """Return the producer id and epoch of a transactional id; taken when it is first asked for."""
    if ("producer", name) not in server.kept:
        init = Case("InitProducerId", name, always(
            transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1,
        ))  # fmt: skip
        told = init.run(server, 5)
        assert told.error_code == 0, told
        server.kept["producer", name] = (told.producer_id, told.producer_epoch)
    found: tuple[int, int] = server.kept["producer", name]
    return found


def taking_part(server: Server, name: str, *topics: str) -> tuple[int, int]:
    """Return the producer of a transactional id after adding partition 0 of topics to its transaction."""
    producer = producer_of(server, name)
    if topics and ("added", name) not in server.kept:
        server.kept["added", name] = topics
        told = Case("AddPartitionsToTxn", name, partitions_of(name, *topics)).run(server, 3)
        codes = {
            part.partition_error_code
            for each in told.results_by_topic_v3_and_below
            for part in each.results_by_partition
        }
        assert codes == {0}, told
    return producer


def partitions_of(name: str, *topics: str, at: tuple[int, ...] = (0,), **wrong: int) -> Fields:
    def fields(server: Server, version: int) -> dict[str, Any]:
        known = f"{name}-{version}" if name.endswith("v") else name
        producer_id, epoch = producer_of(server, known) if name != "nobody" else (77, 0)
        return {
            "v3_and_below_transactional_id": known,
            "v3_and_below_producer_id": wrong.get("producer_id", producer_id),
            "v3_and_below_producer_epoch": wrong.get("epoch", epoch),
            "v3_and_below_topics": [
                _struct("AddPartitionsToTxn", "AddPartitionsToTxnTopic", name=each, partitions=at)
                for each in topics
            ],
        }

    return fields


def _transactions() -> list[Case]:
    """Return the requests of transactions. Each version of an API has transactional ids of its own."""

    def init(**more: Any) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            known = {"transactional_id": f"init-{version}", "transaction_timeout_ms": 60_000}
            return {**known, "producer_id": -1, "producer_epoch": -1, **more}

        return fields

    def named(server: Server, version: int, answer: Any) -> None:
        server.kept["producer", f"init-{version}"] = (answer.producer_id, answer.producer_epoch)

    def again(by: int) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            producer_id, epoch = producer_of(server, f"init-{version}")
            return init(producer_id=producer_id, producer_epoch=epoch + by)(server, version)

        return fields

    def of_group(group: str, name: str = "offsets-v", **wrong: Any) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            known = f"{name}-{version}" if name.endswith("v") else name
            producer_id, epoch = producer_of(server, known) if name not in ("nobody", "") else (77, 0)
            told = {"transactional_id": known, "producer_id": producer_id, "producer_epoch": epoch}
            return {**told, "group_id": group, **wrong}

        return fields

    def commit(group: str, *topics: tuple[str, int], text: str = "m", **more: Any) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            name = f"committing-{version}"
            producer = producer_of(server, name)
            if version < 5 and ("added", name) not in server.kept:
                server.kept["added", name] = True
                told = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
                Case("AddOffsetsToTxn", name, always(**told, group_id=f"moved-{version}")).run(server, 3)
            made = [
                _struct(
                    "TxnOffsetCommit", "TxnOffsetCommitRequestTopic", name=topic,
                    partitions=[_struct(
                        "TxnOffsetCommit", "TxnOffsetCommitRequestPartition", partition_index=at,
                        committed_offset=1, committed_leader_epoch=0, committed_metadata=text)],
                )
                for topic, at in topics
            ]  # fmt: skip
            known = {
                "transactional_id": name, "group_id": group.replace("{}", str(version)),
                "producer_id": producer[0], "producer_epoch": producer[1], "topics": made,
                "generation_id": -1, "member_id": "", "group_instance_id": None,
            }  # fmt: skip
            return known | more

        return fields

    def stable(version: int) -> Fields:
        def fields(server: Server, asked: int) -> dict[str, Any]:
            one = {"name": "made-7", "partition_indexes": (0, 1)}
            topic_id = server.ids["made-7"]
            old = [_struct("OffsetFetch", "OffsetFetchRequestTopic", **one)]
            new = [_struct("OffsetFetch", "OffsetFetchRequestTopics", **one, topic_id=topic_id)]
            group = _struct("OffsetFetch", "OffsetFetchRequestGroup", group_id=f"moved-{version}", topics=new)
            return {"group_id": f"moved-{version}", "topics": old, "groups": [group], "require_stable": True}

        return fields

    def write(name: str | None, *values: bytes, add: bool, sequence: int = 0, **wrong: int) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            known = f"writing-{version}"
            producer = taking_part(server, known, "dflt-6") if add else producer_of(server, f"{known}-out")
            id_, epoch = wrong.get("producer_id", producer[0]), wrong.get("epoch", producer[1])
            data = transactional((id_, epoch), *values, sequence=sequence)
            more = {"transactional_id": None if name is None else known if add else f"{known}-out"}
            return {**produce("dflt-6", data)(server, version), **more}

        return fields

    def end(name: str, committed: bool, add: bool = True, **wrong: int) -> Fields:
        def fields(server: Server, version: int) -> dict[str, Any]:
            known = f"{name}-{version}"
            producer = taking_part(server, known, *(("dflt-6",) if add else ()))
            return {
                "transactional_id": known, "committed": committed,
                "producer_id": wrong.get("producer_id", producer[0]),
                "producer_epoch": wrong.get("epoch", producer[1]),
            }  # fmt: skip

        return fields

    def ended(server: Server, version: int, answer: Any) -> None:
        if version >= 5 and answer.error_code == 0:
            server.kept["producer", f"ending-{version}"] = (answer.producer_id, answer.producer_epoch)

    def listed(**filters: Any) -> Fields:
        known = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        return lambda server, version: known | {"transactional_id_pattern": None} | {
            key: value(server) if callable(value) else value for key, value in filters.items()}  # fmt: skip

    def producers(*wanted: tuple[str, tuple[int, ...]]) -> Fields:
        return always(topics=[
            _struct("DescribeProducers", "TopicRequest", name=name, partition_indexes=at)
            for name, at in wanted])  # fmt: skip

    some = (("made-7", 0),)
    return [
        Case("FindCoordinator", "of a transaction", always(key="t", key_type=1, coordinator_keys=("t",)),
             versions=range(1, 7)),
        Case("CreateTopics", "for transactions", create(lambda v: topic_fields("marked", 1)),
             versions=range(7, 8), after=settled),
        Case("InitProducerId", "a transaction", init(), after=named),
        Case("InitProducerId", "once more", init(), after=named),
        Case("InitProducerId", "no name", init(transactional_id="")),
        Case("InitProducerId", "no time", init(transaction_timeout_ms=0)),
        Case("InitProducerId", "too long", init(transaction_timeout_ms=10**9)),
        Case("InitProducerId", "with its epoch", again(0), after=named, versions=range(3, 6)),
        Case("InitProducerId", "with an old epoch", again(-1), versions=range(3, 6)),
        Case("InitProducerId", "with an epoch to come", again(5), versions=range(3, 6)),
        Case("InitProducerId", "of another producer", init(producer_id=999_999, producer_epoch=0),
             versions=range(3, 6)),
        Case("InitProducerId", "half an epoch", init(producer_id=5), versions=range(3, 6)),
        Case("AddPartitionsToTxn", "some", partitions_of("parts-v", "made-7", at=(0, 1))),
        Case("AddPartitionsToTxn", "once more", partitions_of("parts-v", "made-7", at=(0, 1))),
        Case("AddPartitionsToTxn", "none", partitions_of("parts-v")),
        Case("AddPartitionsToTxn", "an unknown topic", partitions_of("parts-v", "made-7", "nobody")),
        Case("AddPartitionsToTxn", "an unknown partition", partitions_of("parts-v", "made-7", at=(0, 9))),
        Case("AddPartitionsToTxn", "an old epoch", partitions_of("parts-v", "made-7", epoch=-1)),
        Case("AddPartitionsToTxn", "an epoch to come", partitions_of("parts-v", "made-7", epoch=9)),
        Case("AddPartitionsToTxn", "another producer", partitions_of("parts-v", "made-7", producer_id=77)),
        Case("AddPartitionsToTxn", "nobody", partitions_of("nobody", "made-7")),
        Case("AddOffsetsToTxn", "a group", of_group("moved")),
        Case("AddOffsetsToTxn", "no group", of_group("")),
        Case("AddOffsetsToTxn", "an epoch to come", of_group("moved", producer_epoch=9)),
        Case("AddOffsetsToTxn", "another producer", of_group("moved", producer_id=77)),
        Case("AddOffsetsToTxn", "nobody", of_group("moved", "nobody")),
        Case("AddOffsetsToTxn", "no name", of_group("moved", "")),
        Case("TxnOffsetCommit", "some", commit("moved-{}", *some)),
        Case("TxnOffsetCommit", "an unknown topic", commit("moved-{}", ("nobody", 0), ("made-7", 9))),
        Case("TxnOffsetCommit", "long words", commit("moved-{}", *some, text="x" * 5000)),
        Case("TxnOffsetCommit", "no group", commit("", *some)),
        Case("TxnOffsetCommit", "a stranger", commit("moved-{}", *some, member_id="x", generation_id=7),
             versions=range(3, 6)),
        Case("TxnOffsetCommit", "a stranger of nobody",
             commit("strange", *some, member_id="x", generation_id=7), versions=range(3, 6)),
        Case("TxnOffsetCommit", "an epoch to come", commit("moved-{}", *some, producer_epoch=9)),
        *(Case("OffsetFetch", f"before the end, {v}", stable(v), versions=range(7, 11)) for v in (3, 5)),
        Case("Produce", "in a transaction", write("", b"a", b"b", add=True), versions=range(3, 14)),
        Case("Produce", "more of it", write("", b"c", add=True, sequence=2), versions=range(3, 14)),
        Case("Produce", "a gap in it", write("", b"c", add=True, sequence=9), versions=range(3, 14)),
        Case("Produce", "no name for it", write(None, b"d", add=True, sequence=3), versions=range(3, 14)),
        Case("Produce", "an epoch to come in it", write("", b"d", add=True, epoch=9), versions=range(3, 14)),
        Case("Produce", "outside of it", write("", b"d", add=False), versions=range(3, 14)),
        Case("ListOffsets", "of what is stable", list_offsets("dflt-6", -1, level=1), versions=range(2, 11)),
        Case("DescribeTransactions", "some", always(transactional_ids=("parts-v-3", "nobody", "init-5"))),
        Case("DescribeTransactions", "no name", always(transactional_ids=("",))),
        Case("ListTransactions", "all", listed()),
        Case("ListTransactions", "open ones", listed(state_filters=("Ongoing", "no"))),
        Case("ListTransactions", "of a producer",
             listed(producer_id_filters=lambda s: (producer_of(s, "parts-v-3")[0],))),
        Case("ListTransactions", "old ones", listed(duration_filter=10**9), versions=range(1, 3)),
        Case("ListTransactions", "by name", listed(transactional_id_pattern="init-.*"), versions=range(2, 3)),
        Case("ListTransactions", "by half a name", listed(transactional_id_pattern="init"),
             versions=range(2, 3)),
        Case("ListTransactions", "by a bad name", listed(transactional_id_pattern="("), versions=range(2, 3)),
        Case("EndTxn", "a commit", end("ending", True), after=ended),
        Case("EndTxn", "a commit again", end("ending", True)),
        Case("EndTxn", "an abort after it", end("ending", False)),
        Case("EndTxn", "an abort", end("aborting", False)),
        Case("EndTxn", "no transaction", end("idle", True, add=False)),
        Case("EndTxn", "an abort of no transaction", end("idle", False, add=False)),
        Case("EndTxn", "an old epoch", end("idle", True, add=False, epoch=-1)),
        Case("EndTxn", "an epoch to come", end("idle", True, add=False, epoch=9)),
        Case("EndTxn", "another producer", end("idle", True, add=False, producer_id=77)),
        Case("EndTxn", "nobody", always(transactional_id="nobody", producer_id=1, producer_epoch=0,
                                        committed=True)),
        Case("EndTxn", "no name", always(transactional_id="", producer_id=1, producer_epoch=0,
                                         committed=True)),
        Case("Produce", "for a description", lambda s, v: {
            **produce("marked", transactional(taking_part(s, "marking", "marked"), b"a", b"b"))(s, v),
            "transactional_id": "marking"}, versions=range(9, 10)),
        Case("DescribeProducers", "some", producers(("marked", (0, 9)), ("nobody", (0,)))),
        Case("DescribeProducers", "none", producers()),
        Case("OffsetFetch", "after no end", stable(4), versions=range(7, 11)),
    ]  # fmt: skip


INDEX = re.compile(r"\[[^\]]*\]")


def shape(path: str) -> str:
    """Return a path without names and numbers, to name it in a table."""
    return INDEX.sub("[]", path)
