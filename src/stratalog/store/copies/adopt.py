"""`adopt`: a topic of a stopped Kafka broker (or of a copy of its log directories) becomes one of ours.

Every batch is checked and copied; the broker's files are only read. Offsets, timestamps, producers, aborted
transactions, leader epochs and the topic's id come along. Its settings are in the cluster's metadata log,
which is read where it lies in one of the directories; what nobody set is set here to keep everything, so that
no default retention meets old records. A crash leaves no topic (see `stratalog.store.arriving`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from stratalog.config import topic_config
from stratalog.errors import InvalidArgumentError, StoreLockedError, TopicExistsError
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import FileSystem
from stratalog.store import logdir
from stratalog.store.catalog import NO_POLICY
from stratalog.store.copies.copying import copy_partition, make_builder
from stratalog.store.copies.kafka_metadata import read_topics
from stratalog.store.copies.landing import Target, landing
from stratalog.store.copies.reports import ImportReport, Meter, PartitionCopy, Progress
from stratalog.store.copies.source import Source, open_source
from stratalog.store.paths import Paths, path_list


def adopt(
    target: Target,
    kafka_log_dir: Paths,
    topic: str,
    *,
    name: str | None = None,
    settings: Mapping[str, object] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> ImportReport:
    """Take a topic over from a Kafka broker's log directories: all of them, when it has several.

    ``settings`` go over those found in the broker's metadata; ``dry_run`` only tells what would be done.
    """
    wanted = name or topic
    with ExitStack() as stack:
        land = stack.enter_context(landing(target, fs, only_looks=dry_run))
        paths = path_list(land.context.fs, kafka_log_dir)
        own = next((path for path in paths if path in land.paths), None)
        if own is not None:
            raise InvalidArgumentError(
                f"{own} is the store itself, its topics are here already; give a broker's log directories"
            )
        origin = stack.enter_context(open_source(paths, fs=land.context.fs, clock=land.context.clock))
        refuse_running(land.context.fs, paths)
        parts = origin.complete(topic)
        if wanted in land.topics:
            raise TopicExistsError(f"topic {wanted} already exists")
        found, notes = _kafka_settings(origin, topic)
        overrides, left = land.settings({**NO_POLICY, **found}, settings)
        notes += left
        config = topic_config(land.broker, overrides)
        topic_id = parts[0].entry.id or new_id()
        if dry_run:
            copies = [
                PartitionCopy(topic, each.partition, each.log_start_offset, each.end_offset, each.end_offset)
                for each in parts
            ]
            return ImportReport(
                wanted, id_to_text(topic_id), overrides, tuple(copies), tuple(notes), dry_run=True
            )
        meter = Meter(progress, sum(segment.size for part in parts for segment in part.segments))
        staged = stack.enter_context(land.staging(wanted, len(parts)))
        builders, copies = [], []
        for part, directory in zip(parts, staged, strict=True):
            builder = make_builder(part, directory, meter, topic_id=topic_id, topic=wanted, config=config)
            copy = copy_partition(part, builder, lambda each: each.end_offset, meter, anew=True)
            copies.append(replace(copy, topic=wanted))
            builders.append(builder)
        land.take_in(wanted, topic_id, overrides, copies, builders)
        return ImportReport(wanted, id_to_text(topic_id), overrides, tuple(copies), tuple(notes))


def refuse_running(fs: FileSystem, paths: list[str]) -> None:
    """A running broker's files change under a copy; its lock says that it runs."""
    for path in paths:
        holder = fs.lock_holder(f"{path}/{logdir.LOCK}")
        if holder is not None:
            pid = holder.get("pid")
            who = f"process {pid}" if pid is not None else "another process"
            raise StoreLockedError(
                f"{path} is in use by {who}; stop the broker first, or work on a copy of its log directories",
                pid=pid if isinstance(pid, int) else None,
            )


def _kafka_settings(origin: Source, topic: str) -> tuple[dict[str, str], list[str]]:
    for path in origin.paths:
        topics = read_topics(origin.context.fs, path)
        if topics is not None and topic in topics:
            return dict(topics[topic].config), []
    note = (
        "no metadata log of the cluster in the directories given: the topic keeps everything until its"
        " settings are told"
    )
    return {}, [note]
