"""What Metadata tells of partitions is kept between requests, and made anew whenever the topics change."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog import Broker, Store
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import client

TOPIC = codec("MetadataRequest").struct("MetadataRequestTopic")


def told(broker: Broker, version: int, *names: str) -> Any:
    with client(broker) as wire:
        return wire.ask("Metadata", version, topics=[TOPIC(name=name) for name in names] or None).topics


@pytest.mark.parametrize("version", [1, 9, 13])
def test_changes_are_told_at_once(store: Store, broker: Broker, version: int) -> None:
    def same_as_new(*names: str) -> Any:
        found = told(broker, version, *names)
        assert told(broker, version, *names) == found, "kept"
        broker.told.clear()
        assert told(broker, version, *names) == found, "made anew"
        return found

    store.create_topic("orders", partitions=2)
    store.create_topic("other")
    assert [len(each.partitions) for each in same_as_new("orders", "other")] == [2, 1]
    store.add_partitions("orders", 5)
    [orders] = same_as_new("orders")
    assert [each.partition_index for each in orders.partitions] == list(range(5))
    assert all(each.leader_id == broker.node_id and each.error_code == 0 for each in orders.partitions)
    store.delete_topic("orders")
    store.create_topic("orders", partitions=3)
    [again] = same_as_new("orders")
    assert len(again.partitions) == 3
    if version >= 10:
        assert again.topic_id != orders.topic_id
    assert [each.name for each in same_as_new()] == ["orders", "other"]


def test_both_requests_that_tell_about_topics_have_their_own_structs(store: Store, broker: Broker) -> None:
    store.create_topic("orders", partitions=2)
    for _ in range(2):
        assert len(told(broker, 12, "orders")[0].partitions) == 2
        with client(broker) as wire:
            request = codec("DescribeTopicPartitionsRequest").struct("TopicRequest")
            answer = wire.ask(
                "DescribeTopicPartitions", 0, topics=[request(name="orders")], response_partition_limit=10
            )
        assert [len(each.partitions) for each in answer.topics] == [2]
        assert answer.topics[0].partitions[1].eligible_leader_replicas == ()
