"""What there is: ApiVersions, Metadata, DescribeTopicPartitions; topics created, grown and deleted.

A store is one broker, leader of every partition and the only replica.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.cluster import CLUSTER_OPERATIONS, NOT_ASKED
from stratalog.broker.codes import Code
from stratalog.broker.configs import created_configs
from stratalog.config import describe, parse_overrides
from stratalog.errors import InvalidArgumentError, InvalidTopicError, StratalogError, UnknownTopicError
from stratalog.log.names import validate_topic
from stratalog.store.catalog import TopicEntry, Views
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.broker.server import Request

NIL = bytes(16)
INTERNAL = ("__consumer_offsets", "__transaction_state")
ONE_BROKER = "there is one broker, with id 1"
TOPIC_OPERATIONS = 0b1101_1111_1000
"""All operations on a topic, as the bits of Kafka's `AclOperation`: rights are not checked."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
MAX_PARTITIONS_TOLD = 2000
"""The most partitions in one answer of DescribeTopicPartitions, as in Kafka."""
FEATURES = {
    "group.version": 1,  # consumer groups by KIP-848
    "transaction.version": 2,  # transactions by KIP-890; Java's clients use the first version without it
}
"""Kafka's features with the version of each that is served; clients ask for them by ApiVersions."""


def find_topic(request: Request, name: str, topic_id: bytes) -> Topic | None:
    """Return a topic by its name, or by its id where the request has no name."""
    store = request.broker.store
    if not name and topic_id != NIL:
        entry = store.partitions.registry.topic_by_id(uuid.UUID(bytes=topic_id))
        if entry is None:
            return None
        name = entry.name
    try:
        return store.topic(name)
    except UnknownTopicError:
        return None


def id_of(entry: TopicEntry) -> bytes:
    """Return a topic's id as messages have it."""
    return NIL if entry.id is None else entry.id.bytes


def wrong_epoch(request: Request, name: str, partition: int, epoch: int) -> Code:
    """Return the code for a client whose leader epoch of a partition is another than ours; -1 is none."""
    if epoch < 0:
        return Code.NONE
    ours = getattr(request.broker.store.partitions.view(name, partition), "leader_epoch", 0)
    if epoch == ours:
        return Code.NONE
    return Code.FENCED_LEADER_EPOCH if epoch < ours else Code.UNKNOWN_LEADER_EPOCH


# -- the broker --------------------------------------------------------------------------------------------


def api_versions(request: Request) -> None:
    """Tell which requests are served, in which versions."""
    body = request.body
    if request.version >= 3 and not (
        _SOFTWARE.fullmatch(body.client_software_name) and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        request.answer(request.response(error_code=Code.INVALID_REQUEST))
        return
    request.answer(_api_versions(request))


def unknown_version(request: Request) -> None:
    """Answer an ApiVersions request of a version that is not known, in the oldest: the client asks again."""
    request.answer(_api_versions(request)._replace(error_code=Code.UNSUPPORTED_VERSION), 0)


def _api_versions(request: Request) -> Any:
    made = request.response
    version = made.struct("ApiVersion")
    supported, finalized = made.struct("SupportedFeatureKey"), made.struct("FinalizedFeatureKey")
    return made(
        api_keys=[
            version(api_key=key, min_version=api.advertised_low, max_version=api.versions.high)
            for key, api in sorted(request.broker.apis.items())
        ],
        supported_features=[
            supported(name=name, min_version=1, max_version=level) for name, level in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            finalized(name=name, max_version_level=level, min_version_level=1)
            for name, level in FEATURES.items()
        ],
    )


# -- topics ------------------------------------------------------------------------------------------------


def metadata(request: Request) -> None:
    """Tell which topics there are and that this broker leads them; create those that may be."""
    body, broker = request.body, request.broker
    asked = body.topics
    if asked is None or (request.version == 0 and not asked):
        _tell(request, [(name, NIL) for name in sorted(broker.store.partitions.entries)])
        return
    wanted = list(dict.fromkeys((each.name or "", each.topic_id) for each in asked))
    registry = broker.store.partitions.registry
    missing = [name for name, _ in wanted if name and name not in INTERNAL and registry.topic(name) is None]
    create = broker.auto_create_topics and (request.version < 4 or body.allow_auto_topic_creation)
    if missing and create:
        request.off_loop(partial(_create_all, request, missing), lambda found: _tell(request, wanted, found))
        return
    _tell(request, wanted)


def _create_all(request: Request, names: Sequence[str]) -> dict[str, Code]:
    """Create topics; return what failed."""
    failed: dict[str, Code] = {}
    for name in names:
        try:
            request.broker.store.create_topic(name, if_not_exists=True)
        except (StratalogError, OSError) as error:
            failed[name] = request.code_of(error)
    return failed


def _tell(
    request: Request,
    wanted: Sequence[tuple[str, bytes]],
    failed: dict[str, Code] | BaseException | None = None,
) -> None:
    broker, made = request.broker, request.response
    host, port = broker.advertised
    if isinstance(failed, BaseException):
        failed = {name: request.code_of(failed) for name, _ in wanted}
    node = made.struct("MetadataResponseBroker")
    request.answer(
        made(
            brokers=[node(node_id=broker.node_id, host=host, port=port)],
            cluster_id=broker.cluster_id,
            controller_id=broker.node_id,
            topics=[_topic(request, name, topic_id, failed or {}) for name, topic_id in wanted],
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.body.include_cluster_authorized_operations else NOT_ASKED
            ),
        )
    )


def _topic(request: Request, name: str, topic_id: bytes, failed: dict[str, Code]) -> Any:
    broker, made = request.broker, request.response
    of = made.name  # the structs of both answers that tell about topics
    topic = made.struct(f"{of}Topic")
    registry = broker.store.partitions.registry
    entry = registry.topic(name) if name else registry.topic_by_id(uuid.UUID(bytes=topic_id))
    told_all = getattr(request.body, "include_topic_authorized_operations", True)
    operations = TOPIC_OPERATIONS if told_all else NOT_ASKED
    if entry is None:
        return topic(
            error_code=failed.get(name) or _why_unknown(name),
            name=name or (None if request.version >= 12 else ""),
            topic_id=topic_id,
            topic_authorized_operations=operations if name else NOT_ASKED,
        )
    return topic(
        name=entry.name,
        topic_id=id_of(entry),
        is_internal=entry.name in INTERNAL,
        partitions=_partitions(request, entry),
        topic_authorized_operations=operations,
    )


def _partitions(request: Request, entry: TopicEntry) -> tuple[Any, ...]:
    """Return the metadata of a topic's partitions; cached until the store's topics change."""
    broker, of = request.broker, request.response.name
    state = broker.store.partitions.registry.state
    if broker.told_of is not state:
        broker.told.clear()
        broker.told_of = state
    found = broker.told.get((of, entry.name))
    if found is None or state.entries.get(entry.name) is not entry:
        found = _make_partitions(request, entry, state.views.get(entry.name, ()))
        if state.entries.get(entry.name) is entry:  # else it changed meanwhile
            broker.told[of, entry.name] = found
    return found


def _make_partitions(request: Request, entry: TopicEntry, views: Views) -> tuple[Any, ...]:
    of = request.response.name
    part = request.response.struct(f"{of}Partition")
    node = request.broker.node_id
    me = (node,)
    more: dict[str, Any] = {}
    if of.startswith("Describe"):
        more = {"eligible_leader_replicas": (), "last_known_elr": ()}
    return tuple(
        part(
            error_code=Code.NONE,
            partition_index=number,
            leader_id=node,
            leader_epoch=getattr(views[number], "leader_epoch", 0),
            replica_nodes=me,
            isr_nodes=me,
            **more,
        )
        if number < len(views) and views[number] is not None
        else part(
            error_code=Code.KAFKA_STORAGE_ERROR,
            partition_index=number,
            leader_id=-1,
            replica_nodes=me,
            isr_nodes=(),
            offline_replicas=me,
            **more,
        )
        for number in range(entry.partitions)
    )


def _why_unknown(name: str) -> Code:
    if not name:
        return Code.UNKNOWN_TOPIC_ID
    try:
        validate_topic(name)
    except InvalidTopicError:
        return Code.INVALID_TOPIC_EXCEPTION
    return Code.UNKNOWN_TOPIC_OR_PARTITION


def describe_topic_partitions(request: Request) -> None:
    """Tell about topics, some partitions at a time: a cursor names the one to go on with."""
    body, made = request.body, request.response
    cursor = body.cursor
    place = made.struct("Cursor")
    left = max(1, min(body.response_partition_limit, MAX_PARTITIONS_TOLD))
    names = {each.name for each in body.topics} or set(request.broker.store.partitions.entries)
    if cursor is not None and cursor.partition_index < 0:
        topic = made.struct("DescribeTopicPartitionsResponseTopic")
        code = Code.INVALID_REQUEST
        request.answer(made(topics=[topic(error_code=code, name=name) for name in sorted(names)]))
        return
    told: list[Any] = []
    following = None
    for name in sorted(names):
        if cursor is not None and name < cursor.topic_name:
            continue
        first = 0
        if cursor is not None and name == cursor.topic_name:
            first = cursor.partition_index
        if left == 0:
            following = place(topic_name=name, partition_index=first)
            break
        facts = _topic(request, name, NIL, {})
        parts = facts.partitions[first : first + left]
        told.append(facts._replace(partitions=parts))
        left -= len(parts)
        if first + len(parts) < len(facts.partitions):
            following = place(topic_name=name, partition_index=first + len(parts))
            break
    request.answer(made(topics=told, next_cursor=following))


def create_topics(request: Request) -> None:
    """Create topics, each for itself."""
    made = request.response
    result = made.struct("CreatableTopicResult")

    def create(each: Any) -> Any:
        count = max((part.partition_index + 1 for part in each.assignments), default=each.num_partitions)
        if each.replication_factor not in (-1, 1):
            return refused(
                each, Code.INVALID_REPLICATION_FACTOR, "there is one broker: replication.factor is 1"
            )
        placed = sorted(part.partition_index for part in each.assignments)
        if placed != list(range(len(placed))):
            return refused(each, Code.INVALID_REPLICA_ASSIGNMENT, f"partitions {placed}: they begin with 0")
        if any(tuple(part.broker_ids) != (request.broker.node_id,) for part in each.assignments):
            return refused(each, Code.INVALID_REPLICA_ASSIGNMENT, ONE_BROKER)
        if count == 0 or count < -1:
            return refused(each, Code.INVALID_PARTITIONS, f"{count} partitions")
        config = {setting.name: setting.value for setting in each.configs}
        store = request.broker.store
        if request.body.validate_only:
            store.check_new_topic(each.name, None if count == -1 else count, config)
            return result(
                name=each.name,
                error_message=None,
                num_partitions=store.config.get_int("num.partitions") if count == -1 else count,
                replication_factor=1,
                configs=created_configs(request, describe(store.config, parse_overrides(config))),
            )
        topic = store.create_topic(each.name, None if count == -1 else count, config)
        entry = store.partitions.entry(topic.name)
        return result(
            name=each.name,
            topic_id=id_of(entry),
            error_message=None,
            num_partitions=topic.partitions,
            replication_factor=1,
            configs=created_configs(request, describe(store.config, entry.overrides)),
        )

    def refused(each: Any, code: Code, why: str) -> Any:
        return result(name=each.name, error_code=code, error_message=why, num_partitions=-1)

    _for_each(request, request.body.topics, create, refused, lambda found: made(topics=found))


def delete_topics(request: Request) -> None:
    """Delete topics by name or by id, each for itself."""
    made, body = request.response, request.body
    result = made.struct("DeletableTopicResult")
    state = request.api.request.struct("DeleteTopicState")
    wanted = body.topics if request.version >= 6 else [state(name=name) for name in body.topic_names]

    def delete(each: Any) -> Any:
        topic = find_topic(request, each.name or "", each.topic_id)
        if topic is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if each.name else Code.UNKNOWN_TOPIC_ID
            return refused(each, code, "there is no such topic")
        entry = request.broker.store.partitions.entry(topic.name)
        request.broker.store.delete_topic(topic.name)
        return result(name=topic.name, topic_id=id_of(entry))

    def refused(each: Any, code: Code, why: str) -> Any:
        return result(name=each.name, topic_id=each.topic_id, error_code=code, error_message=why)

    _for_each(request, wanted, delete, refused, lambda found: made(responses=found))


def create_partitions(request: Request) -> None:
    """Give topics more partitions, each for itself."""
    made = request.response
    result = made.struct("CreatePartitionsTopicResult")

    def grow(each: Any) -> Any:
        store = request.broker.store
        known = store.topic(each.name).partitions
        if each.count <= known:
            return refused(each, Code.INVALID_PARTITIONS, f"{each.name} has {known} partitions")
        placed = each.assignments
        if placed is not None and len(placed) != each.count - known:
            why = f"{len(placed)} replicas for {each.count - known} partitions"
            return refused(each, Code.INVALID_REPLICA_ASSIGNMENT, why)
        if any(tuple(part.broker_ids) != (request.broker.node_id,) for part in placed or ()):
            return refused(each, Code.INVALID_REPLICA_ASSIGNMENT, ONE_BROKER)
        if not request.body.validate_only:
            store.add_partitions(each.name, each.count)
        return result(name=each.name, error_message=None)

    def refused(each: Any, code: Code, why: str) -> Any:
        return result(name=each.name, error_code=code, error_message=why)

    _for_each(request, request.body.topics, grow, refused, lambda found: made(results=found))


def _for_each(
    request: Request,
    wanted: Sequence[Any],
    act: Callable[[Any], Any],
    refused: Callable[[Any, Code, str], Any],
    answer: Callable[[list[Any]], Any],
) -> None:
    """Do something to each of several things off the loop; one that fails does not keep the others."""

    counts = Counter(each.name for each in wanted if each.name)
    once = list({each.name or id(each): each for each in wanted}.values())

    def work() -> list[Any]:
        found = []
        for each in once:
            try:
                if counts[each.name] > 1:
                    raise InvalidArgumentError(f"{each.name!r} is there twice")
                found.append(act(each))
            except (StratalogError, OSError) as error:
                found.append(refused(each, request.code_of(error), str(error)))
        return found

    def then(found: list[Any] | BaseException) -> None:
        if isinstance(found, BaseException):
            error = found
            found = [refused(each, request.code_of(error), str(error)) for each in once]
        request.answer(answer(found))

    request.off_loop(work, then)
