"""Requests about a cluster, answered by one broker on one machine: its address, its log
directories, and replicas, elections and quorums, of which there is one each.

Moves between log directories and sizes of logs are worked on off the loop. After a crash a move is finished
or taken back when the store is opened, as any move.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code
from stratalog.errors import StratalogError, UnknownTopicError
from stratalog.store.moving import unmoved

if TYPE_CHECKING:
    from stratalog.broker.server import Request
    from stratalog.store import Store

NOT_ASKED = -(2**31)
"""Authorized operations: not requested."""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""All operations on a cluster, as bits."""
BROKERS, CONTROLLERS = 1, 2
"""Endpoint types."""
PREFERRED, UNCLEAN = 0, 1
"""Kinds of elections."""
QUORUM_TOPIC = "__cluster_metadata"
_log = logging.getLogger("stratalog.broker")


def describe_cluster(request: Request) -> None:
    """Tell where this broker is."""
    broker, made = request.broker, request.response
    if request.body.endpoint_type not in (BROKERS, CONTROLLERS):
        code, why = Code.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {request.body.endpoint_type}"
        request.answer(made(error_code=code, error_message=why))
        return
    if request.body.endpoint_type == CONTROLLERS:
        code, why = Code.MISMATCHED_ENDPOINT_TYPE, "this is the endpoint of a broker"
        request.answer(made(error_code=code, error_message=why))
        return
    node = made.struct("DescribeClusterBroker")
    host, port = broker.advertised
    request.answer(
        made(
            endpoint_type=BROKERS,
            error_message=None,
            cluster_id=broker.cluster_id,
            controller_id=broker.node_id,
            brokers=[node(broker_id=broker.node_id, host=host, port=port)],
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.body.include_cluster_authorized_operations else NOT_ASKED
            ),
        )
    )


# -- log directories ---------------------------------------------------------------------------------------


def describe_log_dirs(request: Request) -> None:
    """Tell which partitions each log directory has, and how large they are."""
    made = request.response

    def answer(found: list[Any] | BaseException) -> None:
        if isinstance(found, BaseException):
            request.answer(made(error_code=request.code_of(found)))
        else:
            request.answer(made(results=found))

    request.off_loop(partial(_log_dirs, request), answer)


def _log_dirs(request: Request) -> list[Any]:
    made, store = request.response, request.broker.store
    result, topic = made.struct("DescribeLogDirsResult"), made.struct("DescribeLogDirsTopic")
    part = made.struct("DescribeLogDirsPartition")
    asked = request.body.topics
    wanted = None if asked is None else {(each.topic, number) for each in asked for number in each.partitions}
    found = []
    for where in store.partitions.dirs.all:
        if where.offline is not None:
            found.append(result(error_code=Code.KAFKA_STORAGE_ERROR, log_dir=where.path))
            continue
        topics = []
        for entry in store.partitions.entries.values():
            parts = [
                part(partition_index=number, partition_size=_size(store, entry.name, number))
                for number, (place, _) in sorted(entry.directories.items())
                if place is where and (wanted is None or (entry.name, number) in wanted)
            ]
            if parts:
                topics.append(topic(name=entry.name, partitions=parts))
        free = store.partitions.context.fs.free_bytes(where.path)
        usable = -1 if free is None else free
        found.append(result(log_dir=where.path, topics=topics, usable_bytes=usable))
    return found


def _size(store: Store, name: str, number: int) -> int:
    """Return the bytes of a partition on this machine; 0 if it cannot be opened."""
    try:
        view = store.partitions.view(name, number)
        return unmoved(store.partitions, view, lambda view: sum(each.size for each in view.local_segments()))
    except (StratalogError, FileNotFoundError):
        return 0


def alter_replica_log_dirs(request: Request) -> None:
    """Begin to move partitions to other log directories; the moves go on after the answer, as in Kafka."""
    made, broker = request.response, request.broker
    topic = made.struct("AlterReplicaLogDirTopicResult")
    part = made.struct("AlterReplicaLogDirPartitionResult")
    store = broker.store
    codes: dict[str, dict[int, Code]] = {}
    for target in request.body.dirs:
        known = any(target.path == each.path for each in store.partitions.dirs.online())
        for each in target.topics:
            entry = store.partitions.registry.topic(each.name)
            for number in each.partitions:
                code = Code.NONE
                if not known:
                    code = Code.LOG_DIR_NOT_FOUND
                elif entry is None or not 0 <= number < entry.partitions:
                    code = Code.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    broker.move(partial(_move, store, each.name, number, target.path))
                codes.setdefault(each.name, {})[number] = code
    request.answer(
        made(
            results=[
                topic(
                    topic_name=name,
                    partitions=[part(partition_index=at, error_code=code) for at, code in parts.items()],
                )
                for name, parts in codes.items()
            ]
        )
    )


def _move(store: Store, name: str, number: int, to: str) -> None:
    try:
        store.move_partition(name, number, to)
    except (StratalogError, OSError) as error:
        _log.warning("%s-%d was not moved to %s: %s", name, number, to, error)


# -- replicas ----------------------------------------------------------------------------------------------


def list_partition_reassignments(request: Request) -> None:
    """Tell that no replica is being moved to another broker: there is none."""
    request.answer(request.response(error_message=None))


def elect_leaders(request: Request) -> None:
    """Tell that every partition has its leader."""
    made, body = request.response, request.body
    topic, part = made.struct("ReplicaElectionResult"), made.struct("PartitionResult")
    store = request.broker.store

    def result(name: str, number: int) -> Any:
        try:
            entry = store.partitions.entry(name)
        except UnknownTopicError:
            code, why = Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
        else:
            if 0 <= number < entry.partitions:
                code, why = Code.ELECTION_NOT_NEEDED, "the only replica leads"
            else:
                code, why = Code.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has {entry.partitions} partitions"
        return part(partition_id=number, error_code=code, error_message=why)

    if body.election_type not in (PREFERRED, UNCLEAN):
        request.answer(made(error_code=Code.INVALID_REQUEST))
        return
    asked = body.topic_partitions
    if asked is None:  # all of them: told are topics, and partitions that had an election
        every = [topic(topic=name) for name in sorted(store.partitions.entries)]
        request.answer(made(replica_election_results=every))
        return
    request.answer(
        made(
            replica_election_results=[
                topic(topic=each.topic, partition_result=[result(each.topic, at) for at in each.partitions])
                for each in asked
            ]
        )
    )


def describe_quorum(request: Request) -> None:
    """Tell that this broker is the only voter. Topics are in a file here, so the quorum's log is empty."""
    broker, made = request.broker, request.response
    topic, part = made.struct("TopicData"), made.struct("PartitionData")
    voter, node, listener = made.struct("ReplicaState"), made.struct("Node"), made.struct("Listener")

    def told(name: str, number: int) -> Any:
        if (name, number) != (QUORUM_TOPIC, 0):
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
            return part(partition_index=number, error_code=code, error_message=code.name)
        me = voter(replica_id=broker.node_id, log_end_offset=0)
        return part(partition_index=0, leader_id=broker.node_id, current_voters=[me], error_message=None)

    host, port = broker.advertised
    known = any(each.topic_name == QUORUM_TOPIC for each in request.body.topics)
    request.answer(
        made(
            error_message=None,
            topics=[
                topic(
                    topic_name=each.topic_name,
                    partitions=[told(each.topic_name, at.partition_index) for at in each.partitions],
                )
                for each in request.body.topics
            ],
            nodes=[node(node_id=broker.node_id, listeners=[listener(name="PLAINTEXT", host=host, port=port)])]
            if known
            else (),
        )
    )


def describe_acls(request: Request) -> None:
    """Answer that no authorizer is configured."""
    code, why = Code.SECURITY_DISABLED, "every client may do everything here"
    request.answer(request.response(error_code=code, error_message=why))
