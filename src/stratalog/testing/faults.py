"""Faults of a running broker: its next requests fail, wait, or lose their connection.

The seam is the broker's own table of APIs: a fault puts another handler in the place of the one that answers
its API. A broker without faults runs the code that it always runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from stratalog.broker.metadata import find_topic
from stratalog.broker.server import Api, Broker, Request
from stratalog.config import suggest
from stratalog.errors import InvalidArgumentError
from stratalog.log.arguments import check_number, check_optional, check_seconds, check_text
from stratalog.wire.messages import snake
from stratalog.wire.schema import Struct, table

_NAMES = """
UNKNOWN_SERVER_ERROR NONE OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION INVALID_FETCH_SIZE
LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE
MESSAGE_TOO_LARGE STALE_CONTROLLER_EPOCH OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION
COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_TOPIC_EXCEPTION
RECORD_LIST_TOO_LARGE NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS
ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID INVALID_SESSION_TIMEOUT
REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED
CLUSTER_AUTHORIZATION_FAILED INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE
UNSUPPORTED_VERSION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST UNSUPPORTED_FOR_MESSAGE_FORMAT
POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH
INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT CONCURRENT_TRANSACTIONS
TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED
OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED UNKNOWN_PRODUCER_ID
REASSIGNMENT_IN_PROGRESS DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED
DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND
FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND TOPIC_DELETION_DISABLED
FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH UNSUPPORTED_COMPRESSION_TYPE STALE_BROKER_EPOCH
OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED
FENCED_INSTANCE_ID ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED PRODUCER_FENCED
RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION
FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE
UNKNOWN_TOPIC_ID DUPLICATE_BROKER_REGISTRATION BROKER_ID_NOT_REGISTERED INCONSISTENT_TOPIC_ID
INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND FETCH_SESSION_TOPIC_ID_ERROR INELIGIBLE_REPLICA
NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID
UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE
UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION TRANSACTION_ABORTABLE
INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH
INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED
STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED
"""
ERRORS = {name: number for number, name in enumerate(_NAMES.split(), start=-1)}
"""Kafka's errors: the number of each name."""

_COUNTERPARTS = {
    # an array in an answer: the arrays in a request that its elements may answer
    "responses": ("topic_data", "topics", "topic_names", "resources"),
    "topics": ("topics",),
    "partition_responses": ("partition_data",),
    "partitions": ("partitions", "partition_indexes"),
    "results": ("topics", "resources", "groups_names", "dirs"),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
    "coordinators": ("coordinator_keys",),
    "members": ("members",),
    "groups": ("groups", "group_ids"),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "transaction_states": ("transactional_ids",),
}
_INDEXES = ("index", "partition", "partition_index", "partition_id")
_ERROR_CODES = ("error_code", "partition_error_code")
_NAMES_ALONE = ("name", "key", "group_id", "transactional_id")
"""The fields that take an element of a request which is a text and no struct."""
_INSIDE_ONLY = ("Fetch",)
"""An error for the whole answer means its session there, so partitions carry theirs alone."""


@dataclass(slots=True)
class _Fault:
    kind: Literal["fail", "delay", "drop"]
    left: int | None
    code: int = 0
    seconds: float = 0.0
    when: Literal["before", "after"] = "before"
    topic: str | None = None
    partition: int | None = None


class _Held(NamedTuple):
    """A request that waits, and what goes on with it."""

    timer: Any
    go_on: Callable[[], None]


class Faults:
    """The faults of one broker. Any thread may ask for one; they take effect in the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._by_name = {each.request.name.removesuffix("Request"): each for each in broker.apis.values()}
        self._faults: dict[str, list[_Fault]] = {}
        self._held: list[_Held] = []

    def fail_next(
        self,
        api: str,
        error: str,
        *,
        times: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Answer the next requests of an API with an error, without doing what they ask for.

        With a ``topic`` or ``partition`` only these fail, in the next requests that name them; the rest of
        such a request is done. ``times=None`` means until `clear_faults`.
        """
        name = self._check(api, times)
        check_text("error", error)
        check_optional("partition", partition)
        if topic is not None:
            check_text("topic", topic)
        if error not in ERRORS:
            raise InvalidArgumentError(
                f"{error!r} is not an error of Kafka{suggest(error.upper(), ERRORS)}; expected one of"
                f" {', '.join(sorted(ERRORS))}"
            )
        if (topic is not None or partition is not None) and not _has_topics(name):
            raise InvalidArgumentError(f"requests of {name} name no topics: omit topic and partition")
        self._add(name, _Fault("fail", times, code=ERRORS[error], topic=topic, partition=partition))

    def delay_next(self, api: str, seconds: float, *, times: int | None = 1) -> None:
        """Do what the next requests of an API ask for after a time. Other connections go on."""
        name = self._check(api, times)
        if check_seconds("seconds", seconds) is None or not seconds > 0:
            raise InvalidArgumentError(f"seconds: expected more than 0, got {seconds!r}")
        self._add(name, _Fault("delay", times, seconds=seconds))

    def drop_next(
        self, api: str, *, when: Literal["before", "after"] = "before", times: int | None = 1
    ) -> None:
        """Close the connection of the next requests of an API, before or after doing what they ask for."""
        name = self._check(api, times)
        if when not in ("before", "after"):
            raise InvalidArgumentError(f"when: expected 'before' or 'after', got {when!r}")
        self._add(name, _Fault("drop", times, when=when))

    def clear_faults(self) -> None:
        """Forget all faults; requests that wait go on now."""
        self._faults.clear()
        self._broker.loop.call_soon(self._go_on)

    def _check(self, api: str, times: int | None) -> str:
        if check_text("api", api) not in self._by_name:
            known = ", ".join(sorted(self._by_name))
            hint = suggest(api, self._by_name)
            raise InvalidArgumentError(f"{api!r} is not an API of this broker{hint}; it serves {known}")
        if times is not None and check_number("times", times) < 1:
            raise InvalidArgumentError(f"times: expected 1 or more, or None for always, got {times!r}")
        return api

    def _add(self, name: str, fault: _Fault) -> None:
        self._faults.setdefault(name, []).append(fault)
        api = self._by_name[name]
        self._broker.apis[api.key] = api._replace(handle=partial(self._handle, name))

    # -- in the loop's thread --------------------------------------------------------------------------

    def _handle(self, name: str, request: Request) -> None:
        real = self._by_name[name].handle
        for fault in list(self._faults.get(name, ())):
            struck, kept = _split(request, fault)
            if struck is not None:
                self._count(name, fault)
                self._act(name, fault, request, struck, kept, real)
                return
        real(request)

    def _count(self, name: str, fault: _Fault) -> None:
        if fault.left is not None:
            fault.left -= 1
            if not fault.left and fault in self._faults.get(name, ()):
                self._faults[name].remove(fault)

    def _act(
        self,
        name: str,
        fault: _Fault,
        request: Request,
        struck: Any,
        kept: Any,
        real: Callable[[Request], None],
    ) -> None:
        connection = request.connection
        if fault.kind == "delay":
            request.body = _own(request.body)
            held: list[_Held] = []

            def go_on() -> None:
                if held[0] in self._held:  # else it went on when the faults were cleared
                    self._held.remove(held[0])
                    if connection.open:
                        real(request)

            timer = self._broker.loop.call_later(fault.seconds, partial(request.soon, go_on))
            held.append(_Held(timer, partial(request.now, go_on)))
            self._held += held
        elif fault.kind == "drop" and fault.when == "before":
            connection.close()
        elif fault.kind == "drop":
            real(_Changed(request, None, lambda _: None))
        elif not getattr(request.body, "acks", 1):
            if kept is None:
                request.no_answer()
            else:
                real(_Changed(request, kept, lambda value: value))
        elif name == "Metadata":  # clients need the brokers in every answer
            real(_Changed(request, request.body, partial(_fail_topics, fault, request)))
        else:
            refused = refusal(self._by_name[name], struck, fault.code)
            if kept is None:
                request.answer(refused)
            else:
                real(_Changed(request, kept, partial(_joined, refused)))

    def _go_on(self) -> None:
        for held in list(self._held):
            held.timer.cancel()
            self._broker.loop.attempt(held.go_on)


class _Changed(Request):
    """A request with another body, whose answer is changed before it is sent; None closes the connection."""

    __slots__ = ("_change",)

    def __init__(self, request: Request, body: Any, change: Callable[[Any], Any]) -> None:
        for name in Request.__slots__:
            setattr(self, name, getattr(request, name))
        if body is not None:
            self.body = body
        self._change = change

    def answer(self, value: Any, version: int | None = None) -> None:
        """Send the changed answer."""
        changed = self._change(value)
        if changed is None:
            self.connection.close()
            changed = value  # the closed connection releases its files
        super().answer(changed, version)

    def no_answer(self) -> None:
        """Close the connection if the answer was to be dropped."""
        if self._change(()) is None:
            self.connection.close()
        else:
            super().no_answer()


def _own(value: Any) -> Any:
    """Return a message that does not refer to the connection's buffer, which the next bytes overwrite."""
    if isinstance(value, memoryview):
        return memoryview(bytearray(value))
    if isinstance(value, tuple):
        inside = [_own(each) for each in value]
        make: Callable[[list[Any]], Any] = getattr(type(value), "_make", tuple)
        return make(inside)
    return value


# -- which part of a request a fault is about --------------------------------------------------------------


def _arrays(struct: Struct) -> list[str]:
    return [snake(field.name) for field in struct.fields if field.is_array and field.struct is not None]


def _topics_field(body: Any) -> str | None:
    return next((name for name in ("topic_data", "topics") if name in getattr(body, "_fields", ())), None)


def _has_topics(name: str) -> bool:
    return bool({"topic_data", "topics"} & set(_arrays(table("requests")[f"{name}Request"].struct)))


def _split(request: Request, fault: _Fault) -> tuple[Any, Any]:
    """Return the body of what a fault is about, and that of the rest; None where there is nothing."""
    body = request.body
    if fault.topic is None and fault.partition is None:
        return body, None
    field = _topics_field(body)
    topics = () if field is None else getattr(body, field) or ()
    struck, kept = [], []
    for topic in topics:
        name = _name_of(request, topic)
        if fault.topic is not None and name != fault.topic:
            kept.append(topic)
            continue
        inside = next((each for each in ("partition_data", "partitions") if each in topic._fields), None)
        if fault.partition is None or inside is None:
            struck.append(topic)
            continue
        parts = getattr(topic, inside)
        hit = [each for each in parts if _index_of(each) == fault.partition]
        rest = [each for each in parts if _index_of(each) != fault.partition]
        if hit:
            struck.append(topic._replace(**{inside: tuple(hit)}))
        if rest:
            kept.append(topic._replace(**{inside: tuple(rest)}))
    if not struck or field is None:
        return None, body
    return body._replace(**{field: tuple(struck)}), body._replace(**{field: tuple(kept)}) if kept else None


def _name_of(request: Request, topic: Any) -> str | None:
    name: str | None = getattr(topic, "name", None) or getattr(topic, "topic", None)
    if not name and hasattr(topic, "topic_id"):
        found = find_topic(request, "", topic.topic_id)
        name = None if found is None else found.name
    return name


def _index_of(part: Any) -> int | None:
    if isinstance(part, int):
        return part
    return next((getattr(part, each) for each in _INDEXES if each in part._fields), None)


# -- answers -------------------------------------------------------------------------------------------------


def refusal(api: Api, body: Any, code: int) -> Any:
    """Return the answer that refuses all that a request names, as Kafka's brokers do."""
    name = api.request.name.removesuffix("Request")
    struct = table("requests")[api.response.name].struct
    return _mirror(api, struct, api.response.cls, body, code, name not in _INSIDE_ONLY)


def _mirror(api: Api, struct: Struct, made: Any, asked: Any, code: int, failing: bool = True) -> Any:
    """Return an element of an answer for one of a request: its names, its parts, and the error everywhere."""
    fields: dict[str, Any] = {}
    known = getattr(asked, "_fields", ())
    for field in struct.fields:
        name = snake(field.name)
        if name in _ERROR_CODES:
            fields[name] = code if failing else 0
        elif field.is_array and field.struct is not None:
            inside, asks = field.struct, _COUNTERPARTS.get(name, ())
            if any(snake(each.name) in _ERROR_CODES for each in inside.fields) or _arrays(inside):
                parts = next((getattr(asked, each) for each in asks if getattr(asked, each, None)), ())
                if parts and "path" in getattr(
                    parts[0], "_fields", ()
                ):  # of log directories, each with topics
                    parts = tuple(topic for part in parts for topic in part.topics)
                cls = api.response.struct(inside.name)
                fields[name] = tuple(_mirror(api, inside, cls, part, code) for part in parts)
        elif name in known and not field.is_array:
            fields[name] = getattr(asked, name)
        elif name in _INDEXES:
            fields[name] = _index_of(asked)
        elif name in _NAMES_ALONE and isinstance(asked, str):
            fields[name] = asked
        elif name == "topic_name" and "name" in known:
            fields[name] = asked.name
        elif name.endswith(("offset", "watermark", "node_id")):
            fields[name] = -1
        elif field.kind == "records":
            fields[name] = b""
    return made(**fields)


def _joined(refused: Any, answer: Any) -> Any:
    """Return an answer with the topics of another added, each topic once."""
    field = next(name for name in ("responses", "topics", "results") if name in refused._fields)
    topics = list(getattr(answer, field))
    for topic in getattr(refused, field):
        inside = next((name for name in ("partition_responses", "partitions") if name in topic._fields), None)
        for at, known in enumerate(topics):
            if inside is not None and _same_topic(known, topic):
                topics[at] = known._replace(**{inside: (*getattr(known, inside), *getattr(topic, inside))})
                break
        else:
            topics.append(topic)
    return answer._replace(**{field: tuple(topics)})


def _same_topic(one: Any, other: Any) -> bool:
    names = [name for name in ("name", "topic", "topic_id") if name in one._fields]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _fail_topics(fault: _Fault, request: Request, answer: Any) -> Any:
    def failed(topic: Any) -> Any:
        if fault.topic not in (None, topic.name):
            return topic
        return topic._replace(error_code=fault.code, partitions=())

    return answer._replace(topics=tuple(map(failed, answer.topics)))
