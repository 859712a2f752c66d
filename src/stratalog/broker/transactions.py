"""Transactions of Kafka clients: their requests, carried out by the store's coordinator.

That is the one that programs use with `Store.transaction`: this module has no state of its own. Every step is
a record, perhaps on the disk, so it is made off the loop. Both versions of the protocol are served: in the
first a client names the partitions of a transaction (AddPartitionsToTxn, AddOffsetsToTxn) before it writes to
them; in the second (KIP-890) what it writes names them, and each end brings a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code, code_of
from stratalog.broker.groups.committed import collect, encoded, settle_refusal
from stratalog.broker.metadata import INTERNAL, find_topic
from stratalog.errors import (
    ClosedError,
    FormatError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ReadOnlyError,
    StorageError,
    StratalogError,
)
from stratalog.format import batch as batches
from stratalog.store.groups.offsets import OFFSETS_TOPIC, partition_of
from stratalog.store.transactions.state import (
    FIRST,
    SECOND,
    Status,
    TopicPartition,
    TransactionState,
)

if TYPE_CHECKING:
    from stratalog.broker.server import Request

SECOND_PRODUCE, SECOND_OFFSET_COMMIT, SECOND_END = 12, 5, 5
"""From these versions on a request is of the second version of transactions."""
ABORTABLE_PRODUCE, ABORTABLE_OFFSET_COMMIT = 11, 4
"""From these versions on a client knows TRANSACTION_ABORTABLE."""
OFFSET_COMMIT = 9
"""The version of OffsetCommit that has the same rights."""
AS_IN_TRANSACTIONS = {
    # The generation is complete, though not all have their assignment: as in Kafka, this one may go on.
    Code.REBALANCE_IN_PROGRESS: Code.NONE,
    Code.GROUP_ID_NOT_FOUND: Code.ILLEGAL_GENERATION,
    Code.STALE_MEMBER_EPOCH: Code.ILLEGAL_GENERATION,
}
"""The codes that clients get in place of those of OffsetCommit."""
STATES = {each: each.name.title().replace("_", "") for each in Status}
"""Kafka's names."""
RUNNING = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)


def _code(error: BaseException, request: Request, fenced_from: int) -> Code:
    """Return the code for a client's coordinator. ``fenced_from``: the version that has PRODUCER_FENCED."""
    code = request.code_of(error)
    if isinstance(error, InvalidProducerEpochError) and request.version >= fenced_from:
        return Code.PRODUCER_FENCED
    if isinstance(error, StorageError | FormatError | ClosedError | ReadOnlyError | OSError):
        return Code.COORDINATOR_NOT_AVAILABLE  # the client tries again
    return code


# -- producers -----------------------------------------------------------------------------------------------


def init_producer_id(request: Request) -> None:
    """Give out a producer id; with a transactional id the same one again, and an epoch that fences others."""
    body, made, store = request.body, request.response, request.broker.store
    name, timeout_ms = body.transactional_id, body.transaction_timeout_ms

    def tell(code: Code, producer_id: int = -1, epoch: int = -1) -> None:
        request.answer(made(error_code=code, producer_id=producer_id, producer_epoch=epoch))

    def then(found: TransactionState | range | BaseException) -> None:
        if isinstance(found, BaseException):
            tell(_code(found, request, 4) if name is not None else request.code_of(found))
        elif isinstance(found, range):
            tell(Code.NONE, found[0], 0)
        else:
            tell(Code.NONE, found.producer_id, found.epoch)

    expected = None if body.producer_id < 0 else (body.producer_id, body.producer_epoch)
    if name is None:
        request.off_loop(partial(store.allocate_producer_ids, 1), then)
    elif not name or (body.producer_id < 0) != (body.producer_epoch < 0):
        tell(Code.INVALID_REQUEST)
    elif not 0 < timeout_ms <= request.broker.limits.transaction_max_timeout_ms:
        tell(Code.INVALID_TRANSACTION_TIMEOUT)
    else:
        request.off_loop(partial(store.transactions.init_producer, name, timeout_ms, expected), then)


def admit(request: Request, then: Callable[[BaseException | None], None]) -> None:
    """Take the partitions of a produce into its transaction where the client does not do that itself.

    ``then`` is called at once if nothing is to be done. Otherwise the request's records are copied first: the
    connection's buffer is used again when its handler has returned.
    """
    body, transactions = request.body, request.broker.store.transactions
    if request.version < SECOND_PRODUCE:
        then(None)
        return
    places: list[TopicPartition] = []
    producer = (-1, -1)
    for data in body.topic_data:
        topic = find_topic(request, data.name, data.topic_id)
        for part in data.partition_data:
            records = part.records
            if (
                topic is not None
                and topic.name not in INTERNAL
                and 0 <= part.index < topic.partitions
                and records is not None
                and len(records) >= batches.HEADER_SIZE
            ):
                places.append((topic.name, part.index))
                producer = (
                    batches.read_field(records, "producerId"),
                    batches.read_field(records, "producerEpoch"),
                )
    name = body.transactional_id
    if not places or transactions.admits(name, places):
        then(None)
        return
    request.body = body._replace(
        topic_data=[
            data._replace(
                partition_data=[
                    part._replace(records=None if part.records is None else bytearray(part.records))
                    for part in data.partition_data
                ]
            )
            for data in body.topic_data
        ]
    )
    request.off_loop(partial(transactions.add_of_client, name, *producer, places, SECOND), then)


def produce_code(error: BaseException, version: int) -> Code:
    """Return the code for a batch in a transaction that was refused."""
    if isinstance(error, InvalidTxnStateError) and version >= ABORTABLE_PRODUCE:
        return Code.TRANSACTION_ABORTABLE
    return code_of(error)


def add_partitions_to_txn(request: Request) -> None:
    """Take partitions into a transaction, all of them or none."""
    body, made = request.body, request.response
    topic = made.struct("AddPartitionsToTxnTopicResult")
    one = made.struct("AddPartitionsToTxnPartitionResult")
    named = [(each.name, each.partitions) for each in body.v3_and_below_topics]
    places = [(name, number) for name, numbers in named for number in numbers]
    known = {at: _is_known(request, at) for at in places}

    def tell(code: Callable[[TopicPartition], Code]) -> None:
        request.answer(
            made(
                results_by_topic_v3_and_below=[
                    topic(
                        name=name,
                        results_by_partition=[
                            one(partition_index=number, partition_error_code=code((name, number)))
                            for number in numbers
                        ],
                    )
                    for name, numbers in named
                ]
            )
        )

    def then(error: BaseException | None) -> None:
        code = Code.NONE if error is None else _code(error, request, 2)
        tell(lambda _: code)

    if not body.v3_and_below_transactional_id:
        tell(lambda _: Code.INVALID_REQUEST)
    elif not all(known.values()):
        tell(lambda at: Code.OPERATION_NOT_ATTEMPTED if known[at] else Code.UNKNOWN_TOPIC_OR_PARTITION)
    else:
        request.off_loop(
            partial(
                request.broker.store.transactions.add_of_client,
                body.v3_and_below_transactional_id,
                body.v3_and_below_producer_id,
                body.v3_and_below_producer_epoch,
                places,
                FIRST,
            ),
            then,
        )


def _is_known(request: Request, at: TopicPartition) -> bool:
    topic = find_topic(request, at[0], b"")
    return topic is not None and 0 <= at[1] < topic.partitions


def end_txn(request: Request) -> None:
    """End a transaction; answered when its markers are written."""
    body, made = request.body, request.response
    version = SECOND if request.version >= SECOND_END else FIRST

    def then(found: TransactionState | BaseException) -> None:
        if isinstance(found, BaseException):
            request.answer(made(error_code=_code(found, request, 2)))
        else:
            request.answer(made(producer_id=found.producer_id, producer_epoch=found.epoch))

    if not body.transactional_id:
        request.answer(made(error_code=Code.INVALID_REQUEST))
        return
    request.off_loop(
        partial(
            request.broker.store.transactions.end_of_client,
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            commit=body.committed,
            version=version,
        ),
        then,
    )


# -- committed offsets ---------------------------------------------------------------------------------------


def _join_with_offsets(request: Request, version: int) -> None:
    """Take the partition of a group's offsets into a transaction. Off the loop."""
    body, store = request.body, request.broker.store
    kept = store.groups.offsets.topic_to_write()
    at = (OFFSETS_TOPIC, partition_of(body.group_id, kept.partitions))
    store.transactions.add_of_client(
        body.transactional_id, body.producer_id, body.producer_epoch, [at], version
    )


def add_offsets_to_txn(request: Request) -> None:
    """Announce that a transaction commits offsets of a group."""
    body, made = request.body, request.response

    def then(error: BaseException | None) -> None:
        request.answer(made(error_code=Code.NONE if error is None else _code(error, request, 2)))

    if not body.transactional_id:
        request.answer(made(error_code=Code.INVALID_REQUEST))
    else:
        request.off_loop(partial(_join_with_offsets, request, FIRST), then)


def txn_offset_commit(request: Request) -> None:
    """Commit offsets of a group with a transaction: they count when it is committed."""
    settle_refusal(request, _may_commit(request), partial(_commit_offsets, request))


def _commit_offsets(request: Request, refused: Code) -> None:
    body, made, store = request.body, request.response, request.broker.store
    rows, found = collect(request, refused, "TxnOffsetCommit", body.generation_id)

    def work() -> None:
        if request.version >= SECOND_OFFSET_COMMIT:
            _join_with_offsets(request, SECOND)
        kept = store.groups.offsets.topic_to_write()
        number = partition_of(body.group_id, kept.partitions)
        data = encoded(
            rows, kept.config.max_message_bytes, body.producer_id, body.producer_epoch, transactional=True
        )
        guard = partial(store.transactions.check_batch, body.transactional_id, (OFFSETS_TOPIC, number))
        kept.append_batches(number, data, origin="coordinator", guard=guard)

    def then(error: BaseException | None) -> None:
        code = Code.NONE
        if isinstance(error, InvalidTxnStateError) and request.version >= ABORTABLE_OFFSET_COMMIT:
            code = Code.TRANSACTION_ABORTABLE
        elif error is not None:  # PRODUCER_FENCED is not among the answers to this request
            code = _code(error, request, request.version + 1)
        request.answer(
            made(
                topics=[
                    each._replace(
                        partitions=[
                            one if one.error_code else one._replace(error_code=code)
                            for one in each.partitions
                        ]
                    )
                    for each in found
                ]
            )
        )

    if rows:
        request.off_loop(work, then)
    else:
        then(None)


def _may_commit(request: Request) -> Code:
    """Return whether a member may commit; old clients do not tell who they are."""
    body, groups = request.body, request.broker.groups
    if not body.group_id:
        return Code.INVALID_GROUP_ID
    if body.generation_id < 0 and not body.member_id and body.group_instance_id is None:
        return Code.NONE
    code = groups.may_commit(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id, OFFSET_COMMIT
    )
    return AS_IN_TRANSACTIONS.get(code, code)


# -- what there is -------------------------------------------------------------------------------------------


def list_transactions(request: Request) -> None:
    """List transactional ids by state, producer, age and name."""
    body, made, store = request.body, request.response, request.broker.store
    one = made.struct("TransactionState")
    unknown = [each for each in body.state_filters if each not in STATES.values()]
    now_ms = store.partitions.context.clock.now_ms()

    def fits(state: TransactionState) -> bool:
        return (
            (not body.state_filters or STATES[state.status] in body.state_filters)
            and (not body.producer_id_filters or state.producer_id in body.producer_id_filters)
            and (
                body.duration_filter < 0
                or (state.status in RUNNING and now_ms - state.started_ms > body.duration_filter)
            )
        )

    def work() -> list[TransactionState]:
        found = [each for each in store.transactions.all() if fits(each)]
        return _named_like(body.transactional_id_pattern, found)

    def then(found: list[TransactionState] | BaseException) -> None:
        if isinstance(found, BaseException):
            wrong = isinstance(found, ValueError)
            request.answer(
                made(error_code=Code.INVALID_REGULAR_EXPRESSION if wrong else request.code_of(found))
            )
            return
        request.answer(
            made(
                unknown_state_filters=unknown,
                transaction_states=[
                    one(
                        transactional_id=each.id,
                        producer_id=each.producer_id,
                        transaction_state=STATES[each.status],
                    )
                    for each in found
                ],
            )
        )

    request.off_loop(work, then)


def _named_like(pattern: str | None, found: list[TransactionState]) -> list[TransactionState]:
    """Return those whose whole name matches RE2, Kafka's regular expressions: their time is bounded."""
    if not pattern:
        return found
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array([each.id for each in found], pa.string())
    fits = pc.match_substring_regex(names, f"^(?:{pattern})$").to_pylist()
    return [each for each, right in zip(found, fits, strict=True) if right]


def describe_transactions(request: Request) -> None:
    """Tell the state of transactional ids and the partitions of their transactions."""
    made = request.response
    one, topic = made.struct("TransactionState"), made.struct("TopicData")
    known = {each.id: each for each in request.broker.store.transactions.all()}

    def described(name: str) -> Any:
        state = known.get(name)
        if state is None:
            code = Code.TRANSACTIONAL_ID_NOT_FOUND if name else Code.INVALID_REQUEST
            return one(error_code=code, transactional_id=name)
        by_topic: dict[str, list[int]] = {}
        for where, number in sorted(state.partitions):
            by_topic.setdefault(where, []).append(number)
        return one(
            transactional_id=name,
            transaction_state=STATES[state.status],
            transaction_timeout_ms=state.timeout_ms,
            transaction_start_time_ms=state.started_ms if state.status in RUNNING else -1,
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            topics=[topic(topic=where, partitions=numbers) for where, numbers in by_topic.items()],
        )

    request.answer(made(transaction_states=[described(name) for name in request.body.transactional_ids]))


def describe_producers(request: Request) -> None:
    """Tell which producers partitions remember, with their open transactions."""
    made = request.response
    topic, part, one = (
        made.struct("TopicResponse"),
        made.struct("PartitionResponse"),
        made.struct("ProducerState"),
    )

    def described(name: str, number: int) -> Any:
        try:
            if not _is_known(request, (name, number)):
                return part(partition_index=number, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION)
            entries = request.broker.store.topic(name).producers(number)
        except (StratalogError, OSError) as error:
            return part(partition_index=number, error_code=request.code_of(error), error_message=str(error))
        return part(
            partition_index=number,
            active_producers=[
                one(
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.timestamp,
                    coordinator_epoch=each.coordinator_epoch,
                    current_txn_start_offset=each.current_txn_first_offset,
                )
                for each in entries
            ],
        )

    def work() -> list[Any]:
        return [
            topic(
                name=each.name, partitions=[described(each.name, number) for number in each.partition_indexes]
            )
            for each in request.body.topics
        ]

    def then(found: list[Any] | BaseException) -> None:
        request.answer(made(topics=[] if isinstance(found, BaseException) else found))

    request.off_loop(work, then)
