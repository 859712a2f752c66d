"""``stratalog pipeline replay``."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.pipelines.common import Run, pipeline_command
from stratalog.cli.session import TopicsOption


@pipeline_command
def replay(
    run: Run,
    into: Annotated[
        str, typer.Argument(metavar="INTO", help="The topic the records go to.", show_default=False)
    ],
    topic: TopicsOption = None,
    parquet: Annotated[
        str | None,
        typer.Option(
            "--parquet",
            metavar="DIR",
            help="From Parquet, as export writes it, instead of from the log.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="The store they go to; again for each further log directory. --data unless given.",
            show_default=False,
        ),
    ] = None,
    starting_offsets: Annotated[
        str | None,
        typer.Option(
            "--starting-offsets",
            metavar="OFFSETS",
            help='earliest, or JSON: {"orders": {"0": 23, "1": -2}}.',
            show_default=False,
        ),
    ] = None,
    ending_offsets: Annotated[
        str | None,
        typer.Option(
            "--ending-offsets", metavar="OFFSETS", help="latest, or JSON; excluded.", show_default=False
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Records from this time on: ISO, -10m or epoch ms.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Records before this time.", show_default=False),
    ] = None,
    latest_per_key: Annotated[
        bool, typer.Option("--latest-per-key", help="Of each key only the latest record of the range.")
    ] = False,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="The partitions they came from; else by key.")
    ] = False,
    keep_timestamps: Annotated[
        bool, typer.Option("--keep-timestamps/--new-timestamps", help="Their timestamps, or the time of now.")
    ] = True,
    isolation: Annotated[
        str, typer.Option("--isolation", metavar="LEVEL", help="read_committed or read_uncommitted.")
    ] = "read_committed",
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--allow-data-loss", help="Whether offsets that are gone are an error."
        ),
    ] = True,
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
            help="Where records go that INTO does not take; INTO.dead-letters unless given.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="What to go on with, or not to do twice; made of the other options unless given.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Replay anew what was replayed under this name.")
    ] = False,
    batch_records: Annotated[
        int, typer.Option("--batch-records", min=1, metavar="N", help="About so many records in a commit.")
    ] = 5_000_000,
) -> None:
    """Write a range of times or offsets into a topic, exactly once; from the log, an archive or Parquet."""
    run(
        "replay",
        into=into,
        topics=topic,
        parquet=parquet,
        to_path=to,
        starting_offsets=starting_offsets,
        ending_offsets=ending_offsets,
        since=since,
        until=until,
        latest_per_key=latest_per_key,
        keep_partitions=keep_partitions,
        keep_timestamps=keep_timestamps,
        isolation=isolation,
        fail_on_data_loss=fail_on_data_loss,
        partitions=partitions,
        dead_letter_topic=dead_letters,
        name=name,
        again=again,
        batch_records=batch_records,
    )
