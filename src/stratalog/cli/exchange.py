"""``stratalog export`` and ``import``, a topic as one file; ``graduate`` and ``adopt``, to and from Kafka."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli import guard
from stratalog.cli.console import Column, Table, note, progress, show, show_json
from stratalog.cli.copies import copies_table, show_notes
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.session import Session, TopicArgument, command
from stratalog.cli.topics import ConfigOption, parse_settings
from stratalog.config.units import format_bytes
from stratalog.errors import FormatError, InvalidArgumentError, TopicExistsError

if TYPE_CHECKING:
    from stratalog.store.copies import ExportReport, ImportReport

DryRunOption = Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")]
NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What the topic is called here; else its own name."),
]
KafkaDirs = Annotated[
    list[str],
    typer.Argument(
        metavar="KAFKA_DIR...",
        help="The log.dirs of the stopped Kafka broker, all of them.",
        show_default=False,
    ),
]


@command
def export(
    session: Session,
    topic: TopicArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write; - is stdout.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE when it is already there.")] = False,
) -> None:
    """Write a topic, records, indexes and settings, to one file with checksums."""
    from stratalog.store import copies

    if file == "-" and session.json:
        raise typer.BadParameter("--json and the topic itself cannot both go to stdout")
    if file != "-" and not force and os.path.exists(file):
        raise typer.BadParameter(f"{file} is already there; --force replaces it")
    session.require_store()
    with progress("exporting") as bar:
        target: Any = sys.stdout.buffer if file == "-" else file
        report = copies.export_topic(
            session.paths, topic, target, register=session.may_change, config=session.config, progress=bar
        )
    if session.json:
        show_json(report.to_json())
        return
    if file != "-":
        show(_offsets_table(report))
    show_notes(report.partitions)
    note(f"exported {topic} to {'stdout' if file == '-' else file}, {format_bytes(report.size_bytes)}")
    if not session.may_change:
        note("read-only: the store does not know of this copy, so `stratalog erase` will not name it")


@command
def import_(
    session: Session,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file that export made; - is stdin.", show_default=False)
    ],
    name: NameOption = None,
    config: ConfigOption = None,
    keep_retention: Annotated[
        bool,
        typer.Option(
            "--keep-retention",
            help="Keep retention.ms even where it would delete what came in; else it is set to -1.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file to its last byte; no store is needed.")
    ] = False,
) -> None:
    """Bring an exported topic in, and make the store when there is none. It appears whole or not at all."""
    from stratalog.store import copies

    source: Any = sys.stdin.buffer if file == "-" else file
    if check:
        with _from_file(), progress("checking") as bar:
            found = copies.check_export(source, progress=bar)
        if session.json:
            show_json(found.to_json())
        else:
            show(_offsets_table(found))
            note(f"{found.file} is whole: {found.topic}, {format_bytes(found.size_bytes)}")
        return
    settings = parse_settings(config)
    if file != "-":
        with open(file, "rb"):
            pass  # one that is not there makes no store
    with _naming(), _from_file(), session.change(create=True) as client, progress("importing") as bar:
        report = copies.import_topic(
            client, source, name=name, settings=settings, keep_retention=keep_retention, progress=bar
        )
    _tell(session, report, f"imported {report.topic}")


@command
def graduate(
    session: Session,
    topic: TopicArgument,
    kafka_log_dir: KafkaDirs,
    dry_run: DryRunOption = False,
    allow_retention: Annotated[
        bool,
        typer.Option(
            "--allow-retention", help="Go on although the topic's retention there would delete old records."
        ),
    ] = False,
) -> None:
    """Hand a topic to a real Kafka broker: fill the directories that the broker made for it.

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
    if session.json:
        show_json(report.to_json())
    else:
        show(copies_table(report.partitions))
        show_notes(report.partitions)
        for problem in report.problems:
            note(f"in the way: {problem}")
        for line in report.operator if not report.problems else ():
            note(f"- {line}")
        where = ", ".join(report.log_dirs)
        did = "would hand" if dry_run else "handed"
        note(f"{did} {topic} to {where}; {report.patched_batches:,} batches with the broker's leader epoch")
    if report.problems:
        raise typer.Exit(ExitCode.USAGE)


@command
def adopt(
    session: Session,
    topic: TopicArgument,
    kafka_log_dir: KafkaDirs,
    name: NameOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Take a topic over from a stopped Kafka broker, with its settings; its files are only read.

    What the broker's metadata does not say keeps everything, so that no default retention meets old records.
    """
    from stratalog.store import copies

    settings = parse_settings(config)
    with _naming(), ExitStack() as stack:
        target: Any = session.paths
        if not dry_run:
            target = stack.enter_context(session.change(create=True))
        elif session.exists:
            target = stack.enter_context(session.read())
        bar = stack.enter_context(progress("adopting"))
        report = copies.adopt(
            target, kafka_log_dir, topic, name=name, settings=settings, dry_run=dry_run, progress=bar
        )
    _tell(session, report, f"{'would adopt' if dry_run else 'adopted'} {report.topic}")
    if not session.json and report.notes:
        note(f"`stratalog topic alter {report.topic} --config …` sets what is missing")


def _naming() -> AbstractContextManager[None]:
    return guard.hinting(TopicExistsError, "--name NAME brings it in under another name")


def _from_file() -> AbstractContextManager[None]:
    """Damage in a file that export made is nothing that verify or repair could look at."""
    return guard.hinting(
        FormatError,
        "the file is damaged or cut short: export the topic again, or use another copy of the file",
    )


def _tell(session: Session, report: ImportReport, did: str) -> None:
    if session.json:
        show_json(report.to_json())
        return
    show(copies_table(report.partitions))
    show_notes(report.partitions, report.notes)
    said = " ".join(f"{name}={value}" for name, value in sorted(report.settings.items()))
    note(f"{did} ({said})" if said else did)


def _offsets_table(report: ExportReport) -> Table:
    table = Table(
        [
            Column("partition", style="bold"),
            Column("first offset", right=True),
            Column("next offset", right=True),
            Column("segments", right=True),
        ]
    )
    for each in report.partitions:
        table.add(
            f"{each.topic}-{each.partition}",
            str(each.log_start_offset),
            str(each.end_offset),
            f"{each.segments:,}",
        )
    return table
