"""``stratalog pipeline ingest``."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.pipelines.common import Run, pipeline_command
from stratalog.cli.session import TopicArgument, parse_pairs
from stratalog.config.units import parse_bytes


@pipeline_command
def ingest(
    run: Run,
    topic: TopicArgument,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files, patterns or directories; also s3a://… and whatever else Spark reads.",
            show_default=False,
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="KIND",
            help="json (an object a line), csv or parquet; by the files' names unless given.",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            help="The columns: 'id bigint, at timestamp'; inferred for JSON, all text for CSV unless given.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of Spark's reader: sep=';', multiLine=true; as often as needed.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="SQL", help="The key, from the columns.", show_default=False),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="SQL",
            help="The value; the line as it is, or the row as JSON, unless given.",
            show_default=False,
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            "-T",
            metavar="SQL",
            help="The timestamp: a time, ISO text or epoch milliseconds; the time of now unless given.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=SQL",
            help="A header; as often as needed. _file is the file's name.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="SQL",
            help="The partition; by the key as the Java client does unless given, or where it is null.",
            show_default=False,
        ),
    ] = None,
    allow_null: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-null",
            metavar="KEY|VALUE",
            help="Take rows whose key, or value (tombstones), is null; else they are dead letters.",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            metavar="N",
            help="Make the topic, with so many, when it is missing.",
            show_default=False,
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters",
            metavar="TOPIC",
            help="Where rows go that cannot be taken; TOPIC.dead-letters unless given.",
            show_default=False,
        ),
    ] = None,
    max_dead_letters: Annotated[
        int | None,
        typer.Option(
            "--max-dead-letters",
            min=0,
            metavar="N",
            help="With more of them in a batch of files, fail and take nothing of it in.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Ingest the same files into the same topic once more, under another name.",
            show_default=False,
        ),
    ] = None,
    changed: Annotated[
        str,
        typer.Option(
            "--changed",
            metavar="HOW",
            help="Files that were ingested and are others now: report (exit 1), ingest again, or skip.",
        ),
    ] = "report",
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered/--unordered",
            help="In the order of the files' names; without it small files go faster.",
        ),
    ] = True,
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="SIZE", help="As much of the files in a commit.")
    ] = "1GiB",
) -> None:
    """Bring files into a topic, each exactly once; what cannot be read becomes a dead letter."""
    run(
        "ingest",
        topic=topic,
        files=files,
        format=format,
        schema=schema,
        options=parse_pairs(option, "--option"),
        key=key,
        value=value,
        timestamp=timestamp,
        headers=parse_pairs(header, "--header"),
        partition=partition,
        allow_null=[each.lower() for each in allow_null or ()],
        partitions=partitions,
        dead_letter_topic=dead_letters,
        max_dead_letters=max_dead_letters,
        name=name,
        changed=changed,
        ordered=ordered,
        batch_bytes=parse_bytes(batch_size),
    )
