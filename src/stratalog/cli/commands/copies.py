"""Copies: ``clone`` and ``restore``, a new store out of this one; ``export`` and ``import``, a topic as one
file; ``graduate`` and ``adopt``, to and from Kafka."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli import guard
from stratalog.cli.commands.append import open_input
from stratalog.cli.commands.topics import ConfigOption, parse_settings
from stratalog.cli.console import Table, note, progress
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import Session, TopicArgument, TopicsOption, arg, command, opt
from stratalog.config.units import format_bytes, format_time, parse_time
from stratalog.errors import FormatError, InvalidArgumentError, StratalogError, TopicExistsError

if TYPE_CHECKING:
    from stratalog.store import AdminClient
    from stratalog.store.copies import CloneReport, ExportReport, ImportReport, PartitionCopy

_TO_OFFSET = re.compile(r"(?:(?P<topic>[^:=]+):(?P<partition>[0-9]{1,9})=)?(?P<offset>[0-9]{1,19})\Z")

TargetArgument = Annotated[str, arg("TARGET", "The directory of the new store.")]
KeepRetentionOption = Annotated[
    bool,
    opt(
        "--keep-retention",
        "Keep retention.ms even if it would delete copied records; by default it is set to -1 then.",
    ),
]
DryRunOption = Annotated[bool, opt("--dry-run -n", "Only show what would be done.")]
NameOption = Annotated[str | None, opt("--name NAME", "New name of the topic; its own by default.")]
KafkaDirs = Annotated[
    list[str], arg("KAFKA_DIR...", "The log.dirs of the stopped Kafka broker, all of them.")
]


@command
def clone(
    session: Session,
    target: TargetArgument,
    topics: TopicsOption = None,
) -> None:
    """Clone the store: sealed segments are hard-linked, only active ones are copied.

    On another filesystem everything is copied. The copy is a store of its own: changes to one of them do not
    affect the other.
    """
    from stratalog.store import copies

    session.refuse_read_only()  # the source records its copies
    session.require_store()
    with progress("cloning") as bar:
        report = copies.clone(session.paths, target, topics or None, config=session.config, progress=bar)
    _tell_copy(session, report, f"cloned to {report.target}")


@command
def restore(
    session: Session,
    target: TargetArgument,
    to_time: Annotated[
        str | None, opt("--to-time TIME", "The state at this time: 2026-01-01T12:00:00Z, -10m or epoch ms.")
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        opt(
            "--to-offset TOPIC:PARTITION=N",
            "Up to this offset (exclusive); repeatable. Other partitions are restored completely. "
            "With one partition in all, N alone.",
        ),
    ] = None,
    from_archive: Annotated[
        str | None,
        opt(
            "--archive URL",
            "From this archive alone, a directory or s3://…; the store it belonged to may be gone. "
            "All of it unless a time or offsets are given.",
        ),
    ] = None,
    topics: TopicsOption = None,
    abort_open: Annotated[
        bool, opt("--abort-open", "Abort transactions that were open at that time.")
    ] = False,
    keep_retention: KeepRetentionOption = False,
) -> None:
    """Build a new store with the state of this one at a given time, from local and archived segments.

    Records that retention or compaction removed since then are not restored. This store stays as it is.
    """
    from stratalog.store import copies

    if to_time is None and not to_offset and from_archive is None:
        raise WrongUsage("no target given: use --to-time TIME or --to-offset TOPIC:PARTITION=N")
    session.refuse_read_only()
    moment = None if to_time is None else parse_time(to_time, time.time_ns() // 1_000_000)
    source = None
    if from_archive is None:
        session.require_store()
        source = session.paths
    offsets = _offsets(session, to_offset or [], topics, known=source is not None)
    with progress("restoring") as bar:
        report = copies.restore(
            source,
            target,
            archive=from_archive,
            to_time=moment,
            to_offsets=offsets or None,
            topics=topics or None,
            open_transactions="abort" if abort_open else "keep",
            keep_retention=keep_retention,
            config=session.config,
            progress=bar,
        )
    as_of = "" if moment is None else f" as of {format_time(moment)}"
    _tell_copy(session, report, f"restored to {report.target}{as_of}")
    if not session.json:
        for topic, was in report.held_retention.items():
            note(f"{topic}: retention.ms is -1 in the copy (it was {was}): its records are past it")


def copies_table(partitions: Sequence[PartitionCopy]) -> Table:
    """Return each partition of a copy: its offsets, and how its bytes got there."""
    columns = (">first offset", ">next offset", ">left out", ">segments", ">linked", ">copied")
    table = Table("*partition", *columns)
    for each in partitions:
        left = each.source_end_offset - each.end_offset
        table.add(
            f"{each.topic}-{each.partition}",
            str(each.log_start_offset),
            str(each.end_offset),
            left or "",
            each.segments,
            format_bytes(each.linked_bytes),
            format_bytes(each.copied_bytes),
        )
    return table


def copy_notes(partitions: Sequence[PartitionCopy], notes: Sequence[str] = ()) -> list[str]:
    """Return what a copy lacks, and other notes about it."""
    found = []
    for each in partitions:
        found += [f"note: {each.topic}-{each.partition}: {line}" for line in each.notes]
        found += [
            f"note: {each.topic}-{each.partition}: the transaction producer {producer} began at offset "
            f"{first} has no end in the copy"
            for producer, first in each.open_transactions
        ]
    return found + [f"note: {line}" for line in notes]


def _tell_copy(session: Session, report: CloneReport, did: str) -> None:
    sizes = f"{format_bytes(report.linked_bytes)} linked, {format_bytes(report.copied_bytes)} copied"
    notes = copy_notes(report.partitions, report.notes)
    session.tell(report.to_json(), copies_table(report.partitions), *notes, f"{did}: {sizes}")


def _offsets(
    session: Session, given: list[str], topics: list[str] | None, *, known: bool
) -> dict[tuple[str, int], int]:
    """Parse ``TOPIC:PARTITION=N``, or N alone if a store is ``known`` and it has only one partition."""
    found: dict[tuple[str, int], int] = {}
    for text in given:
        match = _TO_OFFSET.match(text.strip())
        if match is None or (match["topic"] is None and not known):
            raise InvalidArgumentError(f"--to-offset {text}: write TOPIC:PARTITION=N, such as orders:0=1000")
        if match["topic"] is not None:
            key = (match["topic"], int(match["partition"]))
        else:
            key = _only_partition(session, text, topics)
        if key in found:
            raise InvalidArgumentError(f"--to-offset {key[0]}:{key[1]} is given twice")
        found[key] = int(match["offset"])
    return found


def _only_partition(session: Session, text: str, topics: list[str] | None) -> tuple[str, int]:
    with session.read() as store:
        names = topics or store.topics()
        if len(names) == 1 and store.topic(names[0]).partitions == 1:
            return names[0], 0
    raise InvalidArgumentError(
        f"--to-offset {text}: there is more than one partition; write TOPIC:PARTITION=N, as in orders:0=1000"
    )


@command
def export(
    session: Session,
    topic: TopicArgument,
    file: Annotated[str, arg("FILE", "The file to write; - is stdout.")],
    force: Annotated[bool, opt("--force", "Replace FILE if it exists.")] = False,
) -> None:
    """Write a topic with its records, indexes and settings to one checksummed file; - is stdout."""
    from stratalog.store import copies

    if file == "-" and session.json:
        raise WrongUsage("--json and the topic itself cannot both go to stdout")
    if file != "-" and not force and os.path.exists(file):
        raise WrongUsage(f"{file} already exists; --force replaces it")
    session.require_store()
    with progress("exporting") as bar:
        target: Any = sys.stdout.buffer if file == "-" else file
        report = copies.export_topic(
            session.paths, topic, target, register=session.may_change, config=session.config, progress=bar
        )
    shown: list[Table | str] = [] if file == "-" else [_offsets_table(report)]
    shown += copy_notes(report.partitions)
    where = "stdout" if file == "-" else file
    shown.append(f"exported {topic} to {where}, {format_bytes(report.size_bytes)}")
    if not session.may_change:
        shown.append("read-only: this copy was not recorded, so `stratalog erase` will not name it")
    session.tell(report.to_json(), *shown)


@command
def import_(
    session: Session,
    file: Annotated[str, arg("FILE", "A file that export made; - is stdin.")],
    name: NameOption = None,
    config: ConfigOption = None,
    keep_retention: KeepRetentionOption = False,
    check: Annotated[
        bool, opt("--check", "Only check the file to its last byte; no store is needed.")
    ] = False,
) -> None:
    """Import an exported topic completely or not at all; create the store if there is none.

    FILE is what export wrote; - is stdin: stratalog export T - | stratalog import - --data OTHER
    """
    from stratalog.store import copies

    source: Any = sys.stdin.buffer if file == "-" else file
    if check:
        with _from_file(), progress("checking") as bar:
            found = copies.check_export(source, progress=bar)
        whole = f"{found.file} is whole: {found.topic}, {format_bytes(found.size_bytes)}"
        session.tell(found.to_json(), _offsets_table(found), whole)
        return
    settings = parse_settings(config)
    with open_input(file):
        pass  # a missing file must not make a store
    with _naming(), _from_file(), _new_store(session) as client, progress("importing") as bar:
        report = copies.import_topic(
            client, source, name=name, settings=settings, keep_retention=keep_retention, progress=bar
        )
    _tell_import(session, report, f"imported {report.topic}")


@command
def graduate(
    session: Session,
    topic: TopicArgument,
    kafka_log_dir: KafkaDirs,
    dry_run: DryRunOption = False,
    allow_retention: Annotated[
        bool, opt("--allow-retention", "Continue even if the broker's retention would delete old records.")
    ] = False,
) -> None:
    """Copy a topic into a Kafka broker's directories, created by the broker for it.

    Create the topic there first, with as many partitions and retention.ms=-1, and stop the broker. The topic
    here stays as it is.
    """
    from stratalog.store import copies

    if not dry_run:
        session.refuse_read_only()
    session.require_store()
    looking = guard.hinting(InvalidArgumentError, "--dry-run shows all of it and changes nothing")
    with looking, progress("reading" if dry_run else "copying") as bar:
        report = copies.graduate(
            session.paths,
            topic,
            kafka_log_dir,
            dry_run=dry_run,
            allow_retention=allow_retention,
            config=session.config,
            progress=bar,
        )
    notes = copy_notes(report.partitions) + [f"problem: {problem}" for problem in report.problems]
    notes += [f"- {line}" for line in report.operator if not report.problems]
    did, where = "would hand" if dry_run else "handed", ", ".join(report.log_dirs)
    count = report.patched_batches
    batches = f"{count:,} {'batch' if count == 1 else 'batches'}"
    notes.append(f"{did} {topic} to {where}; {batches} with the broker's leader epoch")
    session.tell(report.to_json(), copies_table(report.partitions), *notes)
    if report.problems:
        raise typer.Exit(guard.ExitCode.USAGE)


@command
def adopt(
    session: Session,
    topic: TopicArgument,
    kafka_log_dir: KafkaDirs,
    name: NameOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Copy a topic and its settings from a stopped Kafka broker; the broker's files are not changed.

    Without settings in the broker's metadata everything is kept: no default retention deletes old records.
    """
    from stratalog.store import copies

    settings = parse_settings(config)
    with _naming(), ExitStack() as stack:
        target: Any = session.paths
        if not dry_run:
            target = stack.enter_context(_new_store(session))
        elif session.exists:
            target = stack.enter_context(session.read())
        bar = stack.enter_context(progress("adopting"))
        report = copies.adopt(
            target, kafka_log_dir, topic, name=name, settings=settings, dry_run=dry_run, progress=bar
        )
    _tell_import(session, report, f"{'would adopt' if dry_run else 'adopted'} {report.topic}")
    if not session.json and report.notes:
        note(f"`stratalog topic alter {report.topic} --config …` sets what is missing")


@contextmanager
def _new_store(session: Session) -> Iterator[AdminClient]:
    """Open the store, or make it; one that was made here is removed again if the command fails."""
    is_new = not any(map(os.path.lexists, session.paths))
    above = [_missing_above(path) for path in session.paths]
    try:
        with session.change(create=True) as client:
            yield client
    except BaseException:
        if is_new and session.exists:
            with suppress(StratalogError, OSError):
                _remove_empty(session, above)
        raise


def _remove_empty(session: Session, above: Sequence[Sequence[str]]) -> None:
    """Remove a store without topics, and the directories above it; not while another process has it open."""
    from stratalog.fs import RealFileSystem
    from stratalog.log.names import LOCK

    fs = RealFileSystem()
    with ExitStack() as locked:
        for path in session.paths:
            locked.callback(fs.lock(f"{path}/{LOCK}", {"pid": os.getpid()}).release)
        with session.read() as store:
            if store.topics():
                return
        for path in session.paths:
            fs.remove_tree(path)
    for parents in above:
        for parent in parents:
            fs.remove_dir(parent)


def _missing_above(path: str) -> list[str]:
    """Return the directories above a path that do not exist, the innermost first."""
    found = []
    path = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _naming() -> AbstractContextManager[None]:
    return guard.hinting(TopicExistsError, "--name NAME gives it another name here")


def _from_file() -> AbstractContextManager[None]:
    """Replace the usual hint: verify and repair cannot look at a file that export made."""
    return guard.hinting(
        FormatError,
        "the file is damaged or cut short: export the topic again, or use another copy of the file",
    )


def _tell_import(session: Session, report: ImportReport, did: str) -> None:
    settings = " ".join(f"{name}={value}" for name, value in sorted(report.settings.items()))
    notes = copy_notes(report.partitions, report.notes)
    shown = f"{did} ({settings})" if settings else did
    session.tell(report.to_json(), copies_table(report.partitions), *notes, shown)


def _offsets_table(report: ExportReport) -> Table:
    table = Table("*partition", ">first offset", ">next offset", ">segments")
    for each in report.partitions:
        first, end = str(each.log_start_offset), str(each.end_offset)
        table.add(f"{each.topic}-{each.partition}", first, end, each.segments)
    return table
