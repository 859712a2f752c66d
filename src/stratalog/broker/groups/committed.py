"""OffsetCommit and OffsetFetch: how far groups have got, in `__consumer_offsets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code, code_of
from stratalog.broker.metadata import NIL, find_topic, id_of
from stratalog.errors import StratalogError, UnstableOffsetCommitError
from stratalog.model import Record
from stratalog.store.groups.offsets import CommittedOffset, pack_key, pack_value, partition_of

if TYPE_CHECKING:
    from stratalog.broker.server import Request

MAX_METADATA = 4096


def offset_commit(request: Request) -> None:
    """Commit offsets of a group, all of them in one batch."""
    body, made, broker = request.body, request.response, request.broker
    topic, part = made.struct("OffsetCommitResponseTopic"), made.struct("OffsetCommitResponsePartition")
    member_id, epoch = body.member_id, body.generation_id_or_member_epoch
    refused = broker.groups.may_commit(
        body.group_id, member_id, body.group_instance_id, epoch, request.version
    )
    now_ms = broker.store.partitions.context.clock.now_ms()
    rows: list[Record] = []
    found: list[Any] = []
    for each in body.topics:
        named = find_topic(request, each.name, each.topic_id)
        parts = []
        for one in each.partitions:
            text = one.committed_metadata or ""
            code = refused
            if code is Code.NONE and named is None:
                code = Code.UNKNOWN_TOPIC_ID if request.version >= 10 else Code.UNKNOWN_TOPIC_OR_PARTITION
            elif code is Code.NONE and named is not None and not 0 <= one.partition_index < named.partitions:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif code is Code.NONE and len(text) > MAX_METADATA:
                code = Code.OFFSET_METADATA_TOO_LARGE
            elif code is Code.NONE and named is not None:
                topic_id = id_of(broker.store.partitions.entry(named.name))
                code = broker.groups.may_commit_at(
                    body.group_id, member_id, epoch, topic_id, one.partition_index
                )
            if code is Code.NONE and named is not None:
                value = CommittedOffset(one.committed_offset, one.committed_leader_epoch, text, now_ms)
                key = pack_key(body.group_id, named.name, one.partition_index)
                rows.append(Record(pack_value(value), key))
            parts.append(part(partition_index=one.partition_index, error_code=code))
        found.append(topic(name=each.name, topic_id=each.topic_id, partitions=parts))

    def write() -> None:
        kept = offsets.topic_to_write()
        kept.append_many(rows, partition=partition_of(body.group_id, kept.partitions))

    def then(error: BaseException | None) -> None:
        if error is None:
            request.answer(made(topics=found))
            return
        broker.store.partitions.context.warn(f"offsets of {body.group_id!r} are not committed: {error}")
        failed = Code.COORDINATOR_NOT_AVAILABLE
        request.answer(
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
            )
        )

    offsets = broker.store.groups.offsets
    if not rows:
        then(None)
    elif offsets.waits_for_disk:
        request.off_loop(write, then)
    else:
        try:
            write()
        except (StratalogError, OSError) as error:
            then(error)
        else:
            then(None)


def offset_fetch(request: Request) -> None:
    """Tell what groups committed. Off the loop: a look waits for transactions that are being ended."""
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
            found = [(name, code_of(found), []) for name, _ in wanted]
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
            known = store.groups.offsets.all().get(group, {})
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
            for number in numbers:
                at = None
                if named is not None or name:
                    at = store.groups.offsets.committed(group, named.name if named else name, number)
                unknown = named is None and not name
                parts.append(
                    part(
                        partition_index=number,
                        committed_offset=-1 if at is None else at.offset,
                        committed_leader_epoch=-1 if at is None else at.leader_epoch,
                        metadata="" if at is None else at.metadata,
                        error_code=Code.UNKNOWN_TOPIC_ID if unknown else Code.NONE,
                    )
                )
            fields = {"name": name, "partitions": parts}
            if suffix:
                fields["topic_id"] = topic_id
            found.append(topic(**fields))
        return Code.NONE, found
    except UnstableOffsetCommitError:
        return Code.UNSTABLE_OFFSET_COMMIT, []
    except (StratalogError, OSError) as error:
        return code_of(error), []
