"""``stratalog pipeline materialize``."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.pipelines.common import Run, pipeline_command
from stratalog.cli.session import TopicArgument

OutputArgument = Annotated[
    str,
    typer.Argument(metavar="OUTPUT", help="Where the table goes: a directory, s3://, gs://, az://."),
]
OffsetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--as-of-offset",
        metavar="[P:]OFFSET",
        help="The first offset not to take; with its partition where there are several: 2:1500.",
        show_default=False,
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option("--as-of-time", metavar="TIME", help="As of then: an ISO time, epoch ms, -10m, now."),
]
FullOption = Annotated[bool, typer.Option("--full", help="Make the table again from all of the log.")]
UncommittedOption = Annotated[
    bool, typer.Option("--read-uncommitted", help="Take records of open and aborted transactions, too.")
]
HeadersOption = Annotated[bool, typer.Option("--headers", help="A column with the records' headers.")]
LossOption = Annotated[
    bool,
    typer.Option("--allow-data-loss", help="Go on where offsets left the log before they were read."),
]


@pipeline_command
def materialize(
    run: Run,
    topic: TopicArgument,
    output: OutputArgument,
    as_of_offset: OffsetOption = None,
    as_of_time: TimeOption = None,
    full: FullOption = False,
    read_uncommitted: UncommittedOption = False,
    headers: HeadersOption = False,
    allow_data_loss: LossOption = False,
) -> None:
    """The latest value of every key as a Delta table; run again, only what is new is read and merged."""
    run(
        "materialize",
        topic=topic,
        output=output,
        as_of_offset=_offsets(as_of_offset),
        as_of_time=as_of_time,
        full=full,
        isolation="read_uncommitted" if read_uncommitted else "read_committed",
        headers=headers,
        fail_on_data_loss=not allow_data_loss,
    )


def _offsets(said: list[str] | None) -> dict[int, int] | int | None:
    if not said:
        return None
    try:
        if len(said) == 1 and ":" not in said[0]:
            return int(said[0])
        return {int(number): int(offset) for number, _, offset in (each.partition(":") for each in said)}
    except ValueError:
        raise typer.BadParameter(
            f"{' '.join(said)}: takes OFFSET, or PARTITION:OFFSET for each partition",
            param_hint="--as-of-offset",
        ) from None
