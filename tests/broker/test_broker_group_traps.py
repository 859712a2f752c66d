"""What other brokers of Kafka's protocol got wrong about groups, by bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog import Broker, Store
from stratalog.broker.codes import Code
from stratalog.errors import InvalidArgumentError
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, client
from tests.broker.test_broker_consumer_group_clients import commit
from tests.broker.test_broker_hostile import join_fields


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with client(broker) as made:
        yield made


def committed(wire: Wire, topic: str, group: str = "g") -> int:
    made = codec("OffsetFetchRequest").struct("OffsetFetchRequestTopic")
    answer = wire.ask("OffsetFetch", 7, group_id=group, topics=(made(name=topic, partition_indexes=(0,)),))
    [part] = answer.topics[0].partitions
    return int(part.committed_offset)


def test_an_empty_assignment_is_sent_as_it_came(wire: Wire) -> None:
    """And one that the leader forgot is empty, not that of the generation before."""
    member = wire.ask("JoinGroup", 5, **join_fields("g")).member_id
    joined = wire.ask("JoinGroup", 5, **join_fields("g", member))
    each = codec("SyncGroupRequest").struct("SyncGroupRequestAssignment")
    for generation, assignment in ((1, b"some"), (2, b""), (3, None)):
        assert joined.generation_id == generation
        given = () if assignment is None else (each(member_id=member, assignment=assignment),)
        synced = wire.ask(
            "SyncGroup", 3, group_id="g", member_id=member, generation_id=generation, assignments=given
        )
        assert (synced.error_code, bytes(synced.assignment)) == (0, assignment or b"")
        joined = wire.ask("JoinGroup", 5, **join_fields("g", member))


@pytest.mark.parametrize("session_ms", [0, 5_999, 1_800_001])
def test_a_session_timeout_has_bounds(wire: Wire, session_ms: int) -> None:
    answer = wire.ask("JoinGroup", 5, **join_fields("g", session_timeout_ms=session_ms))
    assert answer.error_code == Code.INVALID_SESSION_TIMEOUT


def test_a_static_member_is_fenced_by_its_successor_everywhere(wire: Wire, broker: Broker) -> None:
    fields = {"group_instance_id": "one"}
    old = wire.ask("JoinGroup", 5, **join_fields("g", **fields))
    with client(broker) as other:
        new = other.ask("JoinGroup", 5, **join_fields("g", **fields))
    assert (new.error_code, new.member_id != old.member_id) == (0, True)
    mine = {"group_id": "g", "member_id": old.member_id, "generation_id": old.generation_id, **fields}
    assert wire.ask("Heartbeat", 3, **mine).error_code == Code.FENCED_INSTANCE_ID
    assert wire.ask("SyncGroup", 3, **mine).error_code == Code.FENCED_INSTANCE_ID
    again = wire.ask("JoinGroup", 5, **join_fields("g", old.member_id, **fields))
    assert again.error_code == Code.FENCED_INSTANCE_ID


def test_a_topic_that_is_made_anew_has_no_committed_offsets(wire: Wire, store: Store) -> None:
    store.create_topic("a")
    assert commit(wire, "", -1) == 0
    assert committed(wire, "a") == 0
    store.delete_topic("a")
    store.create_topic("a")
    assert committed(wire, "a") == -1


def test_a_partition_that_is_not_there_has_no_commit(wire: Wire) -> None:
    assert commit(wire, "", -1) == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_the_offsets_topic_keeps_its_partitions(wire: Wire, store: Store) -> None:
    """A group is found by how many there are."""
    store.create_topic("a")
    commit(wire, "", -1)
    made = codec("CreatePartitionsRequest").struct("CreatePartitionsTopic")
    topics = (made(name="__consumer_offsets", count=50, assignments=None),)
    [result] = wire.ask("CreatePartitions", 3, topics=topics, timeout_ms=1000).results
    assert result.error_code == Code.INVALID_REQUEST
    assert "keeps its number" in result.error_message
    with pytest.raises(InvalidArgumentError, match="keeps its number"):
        store.add_partitions("__consumer_offsets", 2)
    assert committed(wire, "a") == 0


def test_offsets_by_time_are_of_the_first_record_at_or_after(wire: Wire, store: Store) -> None:
    topic = store.create_topic("a")
    for timestamp in (100, 300, 200, 400):
        topic.append(b"", timestamp=timestamp)
    made = codec("ListOffsetsRequest")
    one, part = made.struct("ListOffsetsTopic"), made.struct("ListOffsetsPartition")
    for asked, found in ((0, (0, 100)), (100, (0, 100)), (101, (1, 300)), (301, (3, 400)), (401, (-1, -1))):
        places = (one(name="a", partitions=(part(partition_index=0, timestamp=asked),)),)
        [answer] = wire.ask("ListOffsets", 7, replica_id=-1, topics=places).topics[0].partitions
        assert (answer.offset, answer.timestamp) == found
        assert answer.leader_epoch >= 0 or found[0] < 0
