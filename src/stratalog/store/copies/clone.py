"""`clone`: an instant copy of a store by hard links; `restore`: a store as it was at some moment.

Both build a new store (see `target`) from what readers of the source may see: `clone` up to each
partition's high watermark, `restore` up to given offsets or to a moment (see `cutting` for what that
means). Whole sealed segments are linked where the filesystem allows, what the cut goes through is copied.
They work beside a program that holds the source, and write nothing there but a line in `stratalog.clones`.

A copy's topics get ids of their own, so that it shares nothing with the source that is kept by id.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, get_args

from stratalog.config import topic_config
from stratalog.errors import InvalidArgumentError, OffsetOutOfRangeError
from stratalog.format.metadata import id_to_text, new_id
from stratalog.format.settings import TopicSettings
from stratalog.fs import FileSystem
from stratalog.log.context import Clock
from stratalog.log.segment.segment import Segment
from stratalog.log.write import produce
from stratalog.log.write.recovery import OpenAs, open_partition
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.copies.archived import open_archive_source
from stratalog.store.copies.building import FOR_EVER_MS, would_expire
from stratalog.store.copies.copying import copy_partition, make_builder
from stratalog.store.copies.cutting import Moment, end_at_time
from stratalog.store.copies.parts import Origin, Part
from stratalog.store.copies.registry import CopyEntry, remember
from stratalog.store.copies.reports import CloneReport, Meter, PartitionCopy, Progress, RestoreReport
from stratalog.store.copies.source import open_source, settle
from stratalog.store.copies.target import NewStore, check_target, new_store
from stratalog.store.paths import Paths, path_of
from stratalog.store.store import Store

OpenTransactions = Literal["keep", "abort"]


def clone(
    source: Store | Paths,
    target: str | os.PathLike[str],
    topics: Iterable[str] | None = None,
    *,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> CloneReport:
    """Copy a store, or some of its topics, to the new directory ``target``.

    Segments that are only in an archive are not part of it: the clone begins with the first local one. Its
    sealed segments are the very files of the source, which both only ever replace; a program that writes
    into them must not be let loose on either (to hand a topic to a Kafka broker there is `graduate`).
    """
    settle(source, fs)
    with open_source(source, config, fs=fs, clock=clock) as origin:
        parts = origin.partitions(topics)
        target = path_of(origin.context.fs, target, "directory for the copy")
        check_target(origin.context.fs, target)
        entry = _entry("clone", origin, target, parts)
        notes = _remember(origin, entry)
        ids = {part.topic: new_id() for part in parts}
        meter = Meter(progress, sum(segment.size for part in parts for segment in _local(part)))
        with new_store(origin.context, target) as made:
            copies = [_clone_one(part, made, ids[part.topic], meter) for part in parts]
            made.write_root(_settings(parts, ids), copies)
        return CloneReport(entry.id, target, entry.made_ms, tuple(copies), tuple(notes))


def restore(
    source: Store | Paths | None,
    target: str | os.PathLike[str],
    *,
    archive: str | None = None,
    to_time: int | None = None,
    to_offsets: Mapping[tuple[str, int], int] | None = None,
    topics: Iterable[str] | None = None,
    open_transactions: OpenTransactions = "keep",
    keep_retention: bool = False,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> RestoreReport:
    """Build a new store as the source was at a moment.

    With ``archive``, an archive's URL, and None for the source, it is built from that archive alone; then all
    of it is taken unless a moment or offsets are given.

    ``to_time`` (ms) holds for every partition; ``to_offsets`` cuts those it names, by (topic, partition), and
    takes the others whole; with both the smaller counts. What compaction or retention has removed since that
    moment does not come back.

    ``open_transactions``: those without a marker before the cut stay open ("keep"), or are ended by an abort
    marker at the end of the copy, as a database rolls back what was in flight. A topic whose
    ``retention.ms`` would delete records of the copy at once gets -1 instead, unless ``keep_retention``.
    """
    if (source is None) == (archive is None):
        raise InvalidArgumentError("restore from a store or from archive=…: one of the two")
    if to_time is None and to_offsets is None and archive is None:
        raise InvalidArgumentError("say where to restore to: to_time=…, to_offsets={(topic, partition): …}")
    if open_transactions not in get_args(OpenTransactions):
        raise InvalidArgumentError(f"open_transactions is 'keep' or 'abort', not {open_transactions!r}")
    opened: AbstractContextManager[Origin]
    if source is None:
        opened = open_archive_source(archive or "", config, fs=fs, clock=clock)
    else:
        settle(source, fs)
        opened = open_source(source, config, fs=fs, clock=clock)
    with opened as origin:
        parts = origin.partitions(topics)
        offsets = _check_offsets(parts, to_offsets or {})
        target = path_of(origin.context.fs, target, "directory for the copy")
        check_target(origin.context.fs, target)
        entry = _entry("restore", origin, target, parts)
        notes = _remember(origin, entry)
        ids = {part.topic: new_id() for part in parts}
        meter = Meter(progress)
        for part in parts:
            meter.expect(sum(segment.size for segment in part.segments))
        with new_store(origin.context, target) as made:
            copies = []
            for part in parts:
                to_offset = offsets.get((part.topic, part.partition))
                copy = _restore_one(part, made, ids[part.topic], to_time, to_offset, meter)
                if open_transactions == "abort" and copy.open_transactions:
                    copy = _abort_open(part, made.partition_dir(part.topic, part.partition), copy)
                copies.append(copy)
            settings, held = _hold_retention(origin, copies, _settings(parts, ids), keep=keep_retention)
            made.write_root(settings, copies)
        return RestoreReport(entry.id, target, entry.made_ms, tuple(copies), tuple(notes), to_time, held)


def _local(part: Part) -> list[Segment]:
    return [segment for segment in part.segments if segment.base_offset in part.directory_files]


def _clone_one(part: Part, made: NewStore, topic_id: uuid.UUID, meter: Meter) -> PartitionCopy:
    directory = made.partition_dir(part.topic, part.partition)
    builder = make_builder(part, directory, meter, topic_id=topic_id)
    copy = copy_partition(part, builder, lambda each: each.end_offset, meter, archived=False)
    if copy.log_start_offset > part.log_start_offset:
        note = (
            f"offsets {part.log_start_offset} to {copy.log_start_offset - 1} are only in the archive and"
            " not part of the clone; `restore` takes them along"
        )
        copy = replace(copy, notes=(*copy.notes, note))
    return copy


def _restore_one(
    part: Part,
    made: NewStore,
    topic_id: uuid.UUID,
    to_time: int | None,
    to_offset: int | None,
    meter: Meter,
) -> PartitionCopy:
    moments: list[Moment] = []

    def cut_at(each: Part) -> int:
        first, end = each.log_start_offset, each.end_offset
        if to_offset is not None:
            end = max(min(to_offset, end), first)
        moment = Moment(end)
        if to_time is not None:
            moment = end_at_time(each.segments, first, end, to_time)
        moments.append(moment)
        return moment.offset

    directory = made.partition_dir(part.topic, part.partition)
    builder = make_builder(part, directory, meter, topic_id=topic_id)
    copy = copy_partition(part, builder, cut_at, meter)
    moment = moments[-1]
    notes = list(copy.notes)
    if moment.late_from_offset is not None:
        notes.append(
            f"offset {moment.late_from_offset}, and perhaps more behind the cut, is stamped at or before the"
            f" moment asked for but was appended after offset {moment.offset}, which is later; to_offsets"
            " takes more"
        )
    if moment.timestamp is not None and moment.offset == part.log_start_offset > 0:
        notes.append(f"what the log held below offset {part.log_start_offset} has been deleted since")
    return replace(
        copy, cut_timestamp=moment.timestamp, late_from_offset=moment.late_from_offset, notes=tuple(notes)
    )


def _check_offsets(
    parts: Sequence[Part], wanted: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    known = {(part.topic, part.partition): part for part in parts}
    for key, offset in wanted.items():
        part = known.get(key)
        if part is None:
            raise InvalidArgumentError(f"to_offsets names {key!r}, which is no partition of what is restored")
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidArgumentError(f"to_offsets: an offset is a number, not {offset!r}")
        first, end = part.log_start_offset, part.end_offset
        if not first <= offset <= end:
            raise OffsetOutOfRangeError(
                f"{part.topic}-{part.partition}: cannot restore to offset {offset}; the log holds {first} to"
                f" {end} (the end is not included)",
                offset=offset,
                first=first,
                end=end,
            )
    return dict(wanted)


def _entry(kind: str, origin: Origin, target: str, parts: Sequence[Part]) -> CopyEntry:
    names = tuple(sorted({part.topic for part in parts}))
    return CopyEntry(id_to_text(new_id()), kind, target, origin.context.clock.now_ms(), names)


def _remember(origin: Origin, entry: CopyEntry) -> list[str]:
    why = remember(origin.context.fs, origin.paths, entry)
    if why is None:
        return []
    return [f"the copy could not be written down in the source, so `erase` there will not name it: {why}"]


def _settings(parts: Sequence[Part], ids: Mapping[str, uuid.UUID]) -> dict[str, TopicSettings]:
    return {
        part.topic: TopicSettings(ids[part.topic], part.entry.partitions, part.entry.effective_overrides())
        for part in parts
    }


def _hold_retention(
    origin: Origin,
    copies: list[PartitionCopy],
    settings: dict[str, TopicSettings],
    *,
    keep: bool,
) -> tuple[dict[str, TopicSettings], dict[str, str]]:
    """Topics whose retention would delete records of the copy at its first look."""
    held: dict[str, str] = {}
    if keep:
        return settings, held
    now = origin.context.clock.now_ms()
    for copy in copies:
        known = settings[copy.topic]
        config = topic_config(origin.config, dict(known.config))
        if would_expire(config, copy, now):
            held[copy.topic] = str(config.retention_ms)
            overrides = {**known.config, "retention.ms": "-1"}
            settings[copy.topic] = TopicSettings(known.id, known.partitions, overrides)
    return settings, held


def _abort_open(part: Part, directory: str, copy: PartitionCopy) -> PartitionCopy:
    """End what is open by markers, in a partition that nobody sees yet."""
    how = OpenAs(clean=True, log_start_offset=copy.log_start_offset, producer_expiration_ms=FOR_EVER_MS)
    state, _ = open_partition(part.context, directory, part.topic, part.partition, part.config, how)
    writer = PartitionWriter(part.context, directory, part.topic, part.partition, part.config, state)
    try:
        epochs = {entry.producer_id: entry.producer_epoch for entry in state.producers.to_entries()}
        for producer_id, _ in copy.open_transactions:
            produce.append_marker(
                writer, "abort", producer_id=producer_id, producer_epoch=epochs[producer_id], sync=True
            )
    finally:
        writer.close()
        for segment in writer.segments():
            segment.forget()
    return replace(copy, end_offset=writer.next_offset, open_transactions=())
