"""Admin requests by bytes: topics and settings, log directories, and what one broker answers of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Store
from stratalog.broker.codes import Code
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, batch, client, produce_fields, wire
from tests.broker.test_broker_hostile import until

__all__ = ["wire"]
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def struct(api: str, name: str, /, **fields: Any) -> Any:
    return codec(f"{api}Request").struct(name)(**fields)


def creatable(name: str, partitions: int = 1, replicas: int = 1, *brokers: int, first: int = 0) -> Any:
    placed = [
        struct("CreateTopics", "CreatableReplicaAssignment", partition_index=at, broker_ids=(each,))
        for at, each in enumerate(brokers, first)
    ]
    return struct(
        "CreateTopics", "CreatableTopic",
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=placed,
    )  # fmt: skip


# -- topics --------------------------------------------------------------------------------------------------


def test_created_topics_come_with_all_their_settings(wire: Wire, store: Store) -> None:
    for version in (5, 6, 7):
        [told] = wire.ask("CreateTopics", version, topics=[creatable(f"orders-{version}", 3)]).topics
        assert (told.error_code, told.num_partitions, told.replication_factor) == (0, 3, 1)
        values = {each.name: each.value for each in told.configs}
        assert values["retention.ms"] == "604800000"
        assert len(values) == len(store.describe_topic(f"orders-{version}"))


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creatable("r", 1, 3), Code.INVALID_REPLICATION_FACTOR),
        (creatable("r", 1, 0), Code.INVALID_REPLICATION_FACTOR),
        (creatable("r", 0), Code.INVALID_PARTITIONS),
        (creatable("r", -1, -1, 1, 7), Code.INVALID_REPLICA_ASSIGNMENT),
        (creatable("r", -1, -1, 1, first=1), Code.INVALID_REPLICA_ASSIGNMENT),
        (creatable("a b"), Code.INVALID_TOPIC_EXCEPTION),
    ],
)
@pytest.mark.parametrize("only", [True, False])
def test_topics_that_cannot_be(wire: Wire, store: Store, topic: Any, code: Code, only: bool) -> None:
    [told] = wire.ask("CreateTopics", 7, topics=[topic], validate_only=only).topics
    assert (told.error_code, store.topics()) == (code, [])


def test_a_topic_with_its_partitions_placed_by_hand(wire: Wire, store: Store) -> None:
    [told] = wire.ask("CreateTopics", 7, topics=[creatable("orders", -1, -1, 1, 1)]).topics
    assert (told.error_code, store["orders"].partitions) == (0, 2)


def test_what_is_named_twice_is_refused_once(wire: Wire, store: Store) -> None:
    twice = [creatable("orders"), creatable("orders", 2), creatable("other")]
    told = wire.ask("CreateTopics", 7, topics=twice).topics
    assert [(each.name, each.error_code) for each in told] == [
        ("orders", Code.INVALID_REQUEST),
        ("other", 0),
    ]
    assert store.topics() == ["other"]


def test_partitions_are_added_per_topic(wire: Wire, store: Store) -> None:
    store.create_topic("orders", 2)
    store.create_topic("other", 2)

    def grow(name: str, count: int, *brokers: int) -> Any:
        placed = [struct("CreatePartitions", "CreatePartitionsAssignment", broker_ids=(n,)) for n in brokers]
        return struct(
            "CreatePartitions", "CreatePartitionsTopic", name=name, count=count, assignments=placed or None
        )

    def codes(*topics: Any, only: bool = False) -> dict[str, int]:
        told = wire.ask("CreatePartitions", 3, topics=topics, timeout_ms=1000, validate_only=only).results
        return {each.name: each.error_code for each in told}

    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(grow("orders", 4), grow("nobody", 4), only=True) == {"orders": 0, "nobody": unknown}
    assert store["orders"].partitions == 2
    assert codes(grow("orders", 4, 1, 7)) == {"orders": Code.INVALID_REPLICA_ASSIGNMENT}
    assert codes(grow("orders", 4, 1)) == {"orders": Code.INVALID_REPLICA_ASSIGNMENT}
    assert codes(grow("orders", 4, 1, 1), grow("other", 1)) == {
        "orders": 0,
        "other": Code.INVALID_PARTITIONS,
    }
    assert (store["orders"].partitions, store["other"].partitions) == (4, 2)


def test_topics_are_described_some_partitions_at_a_time(wire: Wire, store: Store) -> None:
    for name, partitions in (("a", 3), ("b", 1), ("c", 2)):
        store.create_topic(name, partitions)
    asked = [
        struct("DescribeTopicPartitions", "TopicRequest", name=name) for name in ("c", "nobody", "a", "b")
    ]
    seen: list[tuple[str, int, int]] = []
    cursor = None
    for _ in range(10):
        told = wire.ask("DescribeTopicPartitions", 0, topics=asked, response_partition_limit=2, cursor=cursor)
        for topic in told.topics:
            seen += [(topic.name, topic.error_code, part.partition_index) for part in topic.partitions]
            if topic.error_code:
                seen.append((topic.name, topic.error_code, -1))
        if told.next_cursor is None:
            break
        cursor = struct("DescribeTopicPartitions", "Cursor", **told.next_cursor._asdict())
    assert seen == [
        ("a", 0, 0), ("a", 0, 1), ("a", 0, 2), ("b", 0, 0), ("c", 0, 0), ("c", 0, 1),
        ("nobody", Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]  # fmt: skip
    every = wire.ask("DescribeTopicPartitions", 0).topics
    assert [topic.name for topic in every] == ["a", "b", "c"]


def test_metadata_says_why_a_topic_is_not_there(wire: Wire) -> None:
    names = [struct("Metadata", "MetadataRequestTopic", name=name) for name in ("nobody", "a b")]
    told = wire.ask("Metadata", 12, topics=names, allow_auto_topic_creation=False).topics
    assert [each.error_code for each in told] == [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.INVALID_TOPIC_EXCEPTION,
    ]


# -- settings ------------------------------------------------------------------------------------------------


def described(wire: Wire, kind: int, name: str, *keys: str, version: int = 4) -> Any:
    resource = struct(
        "DescribeConfigs", "DescribeConfigsResource",
        resource_type=kind, resource_name=name, configuration_keys=keys or None,
    )  # fmt: skip
    [told] = wire.ask("DescribeConfigs", version, resources=[resource], include_synonyms=True).results
    return told


def test_only_the_asked_settings_are_told_with_type_and_source(wire: Wire, store: Store) -> None:
    store.create_topic("orders", config={"retention.ms": 1000})
    told = described(wire, TOPIC, "orders", "retention.ms", "segment.bytes", "no.such")
    facts = {each.name: (each.value, each.config_source, each.config_type) for each in told.configs}
    assert facts == {"retention.ms": ("1000", 1, 5), "segment.bytes": ("1073741824", 5, 3)}
    [retention] = [each for each in told.configs if each.name == "retention.ms"]
    assert [(each.name, each.source) for each in retention.synonyms] == [
        ("retention.ms", 1),
        ("log.retention.ms", 5),
    ]
    assert len(described(wire, TOPIC, "orders").configs) == len(store.describe_topic("orders"))
    assert described(wire, TOPIC, "nobody").error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert described(wire, TOPIC, "a b").error_code == Code.INVALID_TOPIC_EXCEPTION


def test_the_broker_tells_its_settings(wire: Wire, broker: Broker) -> None:
    told = described(wire, BROKER, str(broker.node_id))
    values = {each.name: each.value for each in told.configs}
    assert values["num.partitions"] == "1"
    assert described(wire, BROKER, "").configs == ()
    assert described(wire, BROKER, "7").error_code == Code.INVALID_REQUEST


def test_lists_are_added_to_and_taken_from(wire: Wire, store: Store) -> None:
    store.create_topic("orders")

    def alter(*changes: tuple[str, int, str | None], only: bool = False) -> int:
        settings = [
            struct("IncrementalAlterConfigs", "AlterableConfig", name=name, config_operation=how, value=value)
            for name, how, value in changes
        ]
        resource = struct(
            "IncrementalAlterConfigs", "AlterConfigsResource",
            resource_type=TOPIC, resource_name="orders", configs=settings,
        )  # fmt: skip
        told = wire.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=only)
        code: int = told.responses[0].error_code
        return code

    def policy() -> set[str]:
        return set(store["orders"].config.cleanup_policy)

    assert alter(("cleanup.policy", APPEND, "compact"), only=True) == 0
    assert policy() == {"delete"}
    assert alter(("cleanup.policy", APPEND, "compact")) == 0
    assert policy() == {"delete", "compact"}
    assert alter(("cleanup.policy", SUBTRACT, "delete")) == 0
    assert policy() == {"compact"}
    assert alter(("retention.ms", APPEND, "5")) == Code.INVALID_CONFIG
    assert alter(("retention.ms", SET, "soon"), only=True) == Code.INVALID_CONFIG
    assert alter(("retention.ms", SET, None)) == Code.INVALID_REQUEST
    assert alter(("retention.ms", SET, "5"), ("retention.ms", DELETE, None)) == Code.INVALID_REQUEST
    assert alter(("cleanup.policy", DELETE, None)) == 0
    assert policy() == {"delete"}


def test_what_has_settings(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    told = wire.ask("ListConfigResources", 1, resource_types=(TOPIC, BROKER)).config_resources
    assert [(each.resource_type, each.resource_name) for each in told] == [(TOPIC, "orders"), (BROKER, "1")]
    assert wire.ask("ListConfigResources", 0).config_resources == ()
    assert wire.ask("ListConfigResources", 1, resource_types=(99,)).error_code == Code.UNSUPPORTED_VERSION


# -- log directories -----------------------------------------------------------------------------------------


def test_log_directories_and_a_move_between_them(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    with stratalog.open(paths) as store, stratalog.serve(store) as broker, client(broker) as wire:
        topic = store.create_topic("orders", 2)
        for partition in (0, 1):
            topic.append(b"x" * 1000, partition=partition)

        def places() -> dict[int, str]:
            told = wire.ask("DescribeLogDirs", 5, topics=None).results
            assert [each.log_dir for each in told] == paths
            assert all(each.usable_bytes > 0 for each in told)
            parts = [
                (each.log_dir, part) for each in told for topic in each.topics for part in topic.partitions
            ]
            assert all(part.partition_size > 1000 for _, part in parts)
            return {part.partition_index: where for where, part in parts}

        before = places()
        assert set(before) == {0, 1}
        other = {paths[0]: paths[1], paths[1]: paths[0]}[before[0]]
        moved = struct("AlterReplicaLogDirs", "AlterReplicaLogDirTopic", name="orders", partitions=(0, 9))
        dirs = [
            struct("AlterReplicaLogDirs", "AlterReplicaLogDir", path=path, topics=[moved])
            for path in (other, "/nowhere")
        ]
        [told] = wire.ask("AlterReplicaLogDirs", 2, dirs=dirs[1:]).results
        assert {part.error_code for part in told.partitions} == {Code.LOG_DIR_NOT_FOUND}
        [told] = wire.ask("AlterReplicaLogDirs", 2, dirs=dirs[:1]).results
        codes = {part.partition_index: part.error_code for part in told.partitions}
        assert codes == {0: 0, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
        until(lambda: places()[0] == other)
        one = struct("DescribeLogDirs", "DescribableLogDirTopic", topic="orders", partitions=(1,))
        told = wire.ask("DescribeLogDirs", 5, topics=[one]).results
        found = [part.partition_index for each in told for topic in each.topics for part in topic.partitions]
        assert found == [1]
    with stratalog.open(paths) as store:
        assert [record.value for record in store["orders"].read(partition=0)] == [b"x" * 1000]


# -- one broker of a cluster ---------------------------------------------------------------------------------


def test_elections_reassignments_quorum_and_acls(wire: Wire, store: Store, broker: Broker) -> None:
    store.create_topic("orders", 2)
    asked = [
        struct("ElectLeaders", "TopicPartitions", topic=name, partitions=(0,)) for name in ("orders", "x")
    ]
    told = wire.ask("ElectLeaders", 2, topic_partitions=asked).replica_election_results
    assert [(each.topic, each.partition_result[0].error_code) for each in told] == [
        ("orders", Code.ELECTION_NOT_NEEDED),
        ("x", Code.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert wire.ask("ElectLeaders", 2, election_type=7).error_code == Code.INVALID_REQUEST
    assert wire.ask("ListPartitionReassignments", 0, topics=None).topics == ()
    part = struct("DescribeQuorum", "PartitionData", partition_index=0)
    quorum = [struct("DescribeQuorum", "TopicData", topic_name="__cluster_metadata", partitions=[part])]
    [found] = wire.ask("DescribeQuorum", 2, topics=quorum).topics[0].partitions
    assert (found.leader_id, [each.replica_id for each in found.current_voters]) == (broker.node_id, [1])
    everything = {
        "resource_type_filter": 1, "resource_name_filter": None, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    assert wire.ask("DescribeAcls", 3, **everything).error_code == Code.SECURITY_DISABLED
    told = wire.ask("DescribeCluster", 2)
    assert (told.error_code, [node.broker_id for node in told.brokers]) == (0, [1])
    assert wire.ask("DescribeCluster", 2, endpoint_type=2).error_code == Code.MISMATCHED_ENDPOINT_TYPE


def test_a_client_with_an_unclear_name_is_told_so(wire: Wire, broker: Broker) -> None:
    for name, version in (("", "1"), ("a b", "1"), ("a", "-"), ("-a", "1")):
        for api_version in (3, 4):
            told = wire.ask(
                "ApiVersions", api_version, client_software_name=name, client_software_version=version
            )
            assert (told.error_code, told.api_keys) == (Code.INVALID_REQUEST, ())
    told = wire.ask("ApiVersions", 4, client_software_name="a.b-c", client_software_version="1.0-rc.2")
    assert (told.error_code, len(told.api_keys)) == (0, len(broker.apis))


# -- where logs begin and end --------------------------------------------------------------------------------


def listed(wire: Wire, version: int, timestamp: int, epoch: int = -1) -> tuple[int, int, int, int]:
    part = struct(
        "ListOffsets", "ListOffsetsPartition",
        partition_index=0, timestamp=timestamp, current_leader_epoch=epoch,
    )  # fmt: skip
    topic = struct("ListOffsets", "ListOffsetsTopic", name="orders", partitions=[part])
    [found] = wire.ask("ListOffsets", version, replica_id=-1, topics=[topic]).topics[0].partitions
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


def test_offsets_by_name_from_the_version_that_has_them(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders")
    for timestamp in (10, 30, 20):
        topic.append(b"x", timestamp=timestamp)
    unsupported = (Code.UNSUPPORTED_VERSION, -1, -1, -1)
    for version in range(1, 12):
        has_epoch = 0 if version >= 4 else -1
        assert listed(wire, version, 11) == (0, 1, 30, has_epoch), "the first record at that time or later"
        assert listed(wire, version, 31) == (0, -1, -1, -1)
        assert listed(wire, version, -1)[:3] == (0, 3, -1)
        assert listed(wire, version, -2)[:3] == (0, 0, -1)
        assert listed(wire, version, -3) == ((0, 1, 30, has_epoch) if version >= 7 else unsupported)
        assert listed(wire, version, -4)[:3] == ((0, 0, -1) if version >= 8 else unsupported[:3])
        assert listed(wire, version, -5)[:3] == ((0, -1, -1) if version >= 9 else unsupported[:3])
        assert listed(wire, version, -9) == unsupported
    assert listed(wire, 11, -1, epoch=9)[0] == Code.UNKNOWN_LEADER_EPOCH


def test_offsets_of_archived_segments(tmp_path: Path) -> None:
    settings = {"log.archive.url": str(tmp_path / "archive")}
    with stratalog.open(tmp_path / "data", settings) as store, stratalog.serve(store) as broker:
        tiered = {"remote.storage.enable": True, "local.retention.bytes": 0, "retention.ms": -1}
        topic = store.create_topic("orders", config=tiered)
        for timestamp in range(10):
            topic.append(b"x", timestamp=timestamp)
            if timestamp in (3, 6):
                topic.roll()
        store.archive()
        store.janitor()
        with client(broker) as wire:
            offsets = {at: listed(wire, 11, at)[:2] for at in (-1, -2, -4, -5, 2)}
    assert offsets == {-1: (0, 10), -2: (0, 0), -4: (0, 7), -5: (0, 6), 2: (0, 2)}


def test_epochs_beyond_ours_and_of_the_past(wire: Wire, store: Store) -> None:
    store.create_topic("orders").append(b"x")

    def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        part = struct(
            "OffsetForLeaderEpoch", "OffsetForLeaderPartition",
            partition=0, leader_epoch=epoch, current_leader_epoch=current,
        )  # fmt: skip
        topic = struct("OffsetForLeaderEpoch", "OffsetForLeaderTopic", topic="orders", partitions=[part])
        [found] = wire.ask("OffsetForLeaderEpoch", 4, topics=[topic], replica_id=-2).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert end(0) == (0, 0, 1)
    assert end(7) == (0, -1, -1)
    assert end(0, current=7)[0] == Code.UNKNOWN_LEADER_EPOCH


def test_records_of_a_compacted_topic_are_not_deleted(wire: Wire, store: Store) -> None:
    store.create_topic("orders", config={"cleanup.policy": "compact"})
    part = struct("DeleteRecords", "DeleteRecordsPartition", partition_index=0, offset=0)
    topic = struct("DeleteRecords", "DeleteRecordsTopic", name="orders", partitions=[part])
    told = wire.ask("DeleteRecords", 2, topics=[topic], timeout_ms=1000).topics[0].partitions
    assert [each.error_code for each in told] == [Code.POLICY_VIOLATION]


# -- records that are refused --------------------------------------------------------------------------------


def test_records_that_a_topic_refuses(wire: Wire, store: Store) -> None:
    store.create_topic("compacted", config={"cleanup.policy": "compact"})
    store.create_topic("small", config={"max.message.bytes": 500})

    def refused(name: str, data: bytes) -> Any:
        [part] = wire.ask("Produce", 9, **produce_fields(name, data)).responses[0].partition_responses
        return part

    keyless = refused("compacted", batch(b"a", b"b"))
    assert keyless.error_code == Code.INVALID_RECORD
    assert [each.batch_index for each in keyless.record_errors] == [0]
    assert refused("small", batch(b"x" * 600)).error_code == Code.MESSAGE_TOO_LARGE
    old = bytearray(batch(b"a"))
    old[16] = 1
    assert refused("small", bytes(old)).error_code == Code.INVALID_RECORD
    assert refused("small", batch(b"a")).error_code == 0
