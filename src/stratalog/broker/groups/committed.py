"""OffsetCommit and OffsetFetch: how far groups have got, in `__consumer_offsets`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import AGAIN_S, Code
from stratalog.broker.metadata import NIL, find_topic, id_of
from stratalog.errors import StratalogError
from stratalog.format import batch as batches
from stratalog.model import Record
from stratalog.store.groups.offsets import (
    OFFSETS_TOPIC,
    CommittedOffset,
    Look,
    pack_key,
    pack_value,
    partition_of,
)

if TYPE_CHECKING:
    from stratalog.broker.server import Request

MAX_METADATA = 4096
NOTHING = Look(None, pending=False)


def offset_commit(request: Request) -> None:
    """Commit offsets of a group, all of them in one batch."""
    body = request.body
    refused = request.broker.groups.may_commit(
        body.group_id,
        body.member_id,
        body.group_instance_id,
        body.generation_id_or_member_epoch,
        request.version,
    )
    settle_refusal(request, refused, partial(_commit, request))


def settle_refusal(request: Request, refused: Code, then: Callable[[Code], None]) -> None:
    """Call ``then`` with the code for a commit: a group that only has offsets is there, without members."""
    group, store = request.body.group_id, request.broker.store

    def looked(found: bool | BaseException) -> None:
        then(Code.UNKNOWN_MEMBER_ID if found is True else refused)

    unknown = refused in (Code.GROUP_ID_NOT_FOUND, Code.ILLEGAL_GENERATION)
    if unknown and request.broker.groups.get(group) is None:
        request.off_loop(partial(store.groups.offsets.has, group), looked)
    else:
        then(refused)


def _commit(request: Request, refused: Code) -> None:
    body, made, broker = request.body, request.response, request.broker
    rows, found = collect(request, refused, "OffsetCommit", body.generation_id_or_member_epoch)

    def then(error: BaseException | None) -> None:
        if error is None:
            request.answer(made(topics=found))
            return
        broker.troubles.tell("commit", f"offsets of {body.group_id!r} are not committed: {error}")
        failed = Code.COORDINATOR_NOT_AVAILABLE
        told = partial(
            request.answer,
            made(
                topics=[
                    each._replace(
                        partitions=[
                            one if one.error_code else one._replace(error_code=failed)
                            for one in each.partitions
                        ]
                    )
                    for each in found
                ]
            ),
        )
        request.later(AGAIN_S, told)

    def made_topic(topic: object) -> None:
        if isinstance(topic, BaseException):
            then(topic)
        else:
            offset_commit(request)  # the group may have changed meanwhile

    offsets = broker.store.groups.offsets
    if not rows:
        then(None)
    elif OFFSETS_TOPIC not in broker.store.partitions.entries:
        request.off_loop(offsets.topic_to_write, made_topic)
    else:
        # Written before anything else happens to the group, however long the disk takes.
        try:
            kept = offsets.topic_to_write()
            number = partition_of(body.group_id, kept.partitions)
            data = encoded(rows, kept.config.max_message_bytes)
            placed = kept.append_batches(number, data, origin="coordinator", wait=False)
        except (StratalogError, OSError) as error:
            then(error)
        else:
            if placed.flush_due:
                broker.syncs.add(kept, number, placed.last_offset + 1, then)
            else:
                then(None)


def encoded(
    rows: list[Record], max_bytes: int, producer_id: int = -1, epoch: int = -1, *, transactional: bool = False
) -> bytearray:
    """Return records as batches of a coordinator, which have no sequence."""
    data, at = bytearray(), 0
    while at < len(rows):
        made, at = batches.encode_records(
            rows,
            at,
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=0,
                now_ms=int(time.time() * 1000),
                max_bytes=max_bytes,
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=transactional,
            ),
        )
        data += made.data
    return data


def collect(request: Request, refused: Code, api: str, epoch: int) -> tuple[list[Record], list[Any]]:
    """Return the records that commit what a request has, and the answer for each of its topics.

    ``refused`` is the code for all of them if it is not NONE, ``epoch`` the member's.
    """
    groups, entries = request.broker.groups, request.broker.store.partitions
    body, made = request.body, request.response
    topic, part = made.struct(f"{api}ResponseTopic"), made.struct(f"{api}ResponsePartition")
    now_ms = request.broker.store.partitions.context.clock.now_ms()
    rows: list[Record] = []
    found: list[Any] = []
    for each in body.topics:
        fields = {"topic_id": each.topic_id} if hasattr(each, "topic_id") else {}
        named = find_topic(request, each.name, fields.get("topic_id", NIL))
        parts = []
        for one in each.partitions:
            text = one.committed_metadata or ""
            code = refused
            if code is Code.NONE and named is None:
                by_id = bool(fields) and request.version >= 10
                code = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
            elif code is Code.NONE and named is not None and not 0 <= one.partition_index < named.partitions:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif code is Code.NONE and len(text) > MAX_METADATA:
                code = Code.OFFSET_METADATA_TOO_LARGE
            elif code is Code.NONE and named is not None:
                at = (id_of(entries.entry(named.name)), one.partition_index)
                code = groups.may_commit_at(body.group_id, body.member_id, epoch, *at)
            if code is Code.NONE and named is not None:
                value = CommittedOffset(one.committed_offset, one.committed_leader_epoch, text, now_ms)
                key = pack_key(body.group_id, named.name, one.partition_index)
                rows.append(Record(pack_value(value), key))
            parts.append(part(partition_index=one.partition_index, error_code=code))
        found.append(topic(name=each.name, partitions=parts, **fields))
    return rows, found


def offset_fetch(request: Request) -> None:
    """Tell what groups committed. Off the loop: it reads the log."""
    made, body = request.response, request.body
    several = request.version >= 8
    if several:
        wanted = [(each.group_id, each.topics) for each in body.groups]
    else:
        wanted = [(body.group_id, body.topics)]
    refused = {
        each.group_id: request.broker.groups.may_fetch(each.group_id, each.member_id, each.member_epoch)
        for each in (body.groups if several else ())
    }

    def work() -> list[tuple[str, Code, list[Any]]]:
        return [
            (name, refused[name], []) if refused.get(name) else (name, *_look(request, name, topics))
            for name, topics in wanted
        ]

    def then(found: list[tuple[str, Code, list[Any]]] | BaseException) -> None:
        if isinstance(found, BaseException):
            found = [(name, request.code_of(found), []) for name, _ in wanted]
        if several:
            one = made.struct("OffsetFetchResponseGroup")
            request.answer(
                made(
                    groups=[
                        one(group_id=name, topics=topics, error_code=code) for name, code, topics in found
                    ]
                )
            )
        else:
            [(_, code, topics)] = found
            request.answer(made(topics=topics, error_code=code))

    request.off_loop(work, then)


def _look(request: Request, group: str, topics: Any) -> tuple[Code, list[Any]]:
    made = request.response
    suffix = "s" if request.version >= 8 else ""
    topic, part = (
        made.struct(f"OffsetFetchResponseTopic{suffix}"),
        made.struct(f"OffsetFetchResponsePartition{suffix}"),
    )
    store = request.broker.store
    try:
        if topics is None:
            known = store.groups.offsets.all([group]).get(group, {})
            by_topic: dict[str, list[int]] = {}
            for name, number in sorted(known):
                by_topic.setdefault(name, []).append(number)
            asked = [(name, NIL, numbers) for name, numbers in by_topic.items()]
        else:
            asked = [(each.name, getattr(each, "topic_id", NIL), each.partition_indexes) for each in topics]
        found = []
        for name, topic_id, numbers in asked:
            named = find_topic(request, name, topic_id)
            if request.version >= 10 and topic_id == NIL and named is not None:
                topic_id = id_of(store.partitions.entry(named.name))
            parts = []
            unknown = named is None and not name
            places = [] if unknown else [(named.name if named else name, number) for number in numbers]
            looks = store.groups.offsets.look(group, places)
            for number in numbers:
                look = looks.get((named.name if named else name, number), NOTHING)
                at = look.committed
                code = Code.UNKNOWN_TOPIC_ID if unknown else Code.NONE
                if look.pending and request.body.require_stable:
                    at, code = None, Code.UNSTABLE_OFFSET_COMMIT
                parts.append(
                    part(
                        partition_index=number,
                        committed_offset=-1 if at is None else at.offset,
                        committed_leader_epoch=-1 if at is None else at.leader_epoch,
                        metadata="" if at is None else at.metadata,
                        error_code=code,
                    )
                )
            fields = {"name": name, "partitions": parts}
            if suffix:
                fields["topic_id"] = topic_id
            found.append(topic(**fields))
        return Code.NONE, found
    except (StratalogError, OSError) as error:
        return request.code_of(error), []
