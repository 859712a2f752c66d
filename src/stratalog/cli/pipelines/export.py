"""``stratalog pipeline export``."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.pipelines.common import Run, pipeline_command
from stratalog.cli.session import TopicsOption, parse_pairs

OutputArgument = Annotated[
    str,
    typer.Argument(
        metavar="OUTPUT",
        help="Where the table goes: a directory, s3://, gs://, az://. With --table iceberg the directory of "
        "the table and its catalog.",
        show_default=False,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Records from this time on: ISO, -10m or epoch ms. For the first export of a topic, which later "
        "runs go on from, and for --replace.",
        show_default=False,
    ),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Records before this time.", show_default=False)
]
ReplaceOption = Annotated[
    bool,
    typer.Option("--replace", help="Write the dates from --since to --until again, as the log has them now."),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="DDL",
        help="Values are JSON with these fields, which become columns: 'id BIGINT, name STRING'. What cannot "
        "be decoded goes to TOPIC.dead-letters.",
        show_default=False,
    ),
]
KeepValueOption = Annotated[
    bool, typer.Option("--keep-value", help="With --schema: keep the value itself beside its columns.")
]
DeadLettersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dead-letters",
        metavar="DIR",
        help="The store whose topics take the dead letters; --data unless given.",
        show_default=False,
    ),
]
TableOption = Annotated[
    str, typer.Option("--table", metavar="KIND", help="delta, iceberg, or parquet: plain files.")
]
NameOption = Annotated[
    str, typer.Option("--table-name", metavar="NAMESPACE.TABLE", help="The Iceberg table.")
]
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="NAME=VALUE",
        help="A property of the Iceberg catalog: type=rest, uri=http://…; as often as needed. Without any, a "
        "catalog in SQLite lies in OUTPUT.",
        show_default=False,
    ),
]
ActiveOption = Annotated[
    bool, typer.Option("--include-active", help="Also the active segments, up to what readers see.")
]
UncommittedOption = Annotated[
    bool, typer.Option("--read-uncommitted", help="Take records of open and aborted transactions, too.")
]
LossOption = Annotated[
    bool,
    typer.Option("--allow-data-loss", help="Go on where offsets left the log before they were exported."),
]
MergeOption = Annotated[
    bool,
    typer.Option(
        "--merge",
        help="Compact the Delta table, and remove files that no version within its retention needs.",
    ),
]
CompressionOption = Annotated[
    str, typer.Option("--compression", metavar="CODEC", help="zstd, snappy, gzip, lz4 or none.")
]


@pipeline_command
def export(
    run: Run,
    output: OutputArgument,
    topic: TopicsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    replace: ReplaceOption = False,
    schema: SchemaOption = None,
    keep_value: KeepValueOption = False,
    dead_letters: DeadLettersOption = None,
    table: TableOption = "delta",
    table_name: NameOption = "stratalog.records",
    catalog: CatalogOption = None,
    include_active: ActiveOption = False,
    read_uncommitted: UncommittedOption = False,
    allow_data_loss: LossOption = False,
    merge: MergeOption = False,
    compression: CompressionOption = "zstd",
) -> None:
    """Sealed segments to a Delta or Iceberg table, or to plain Parquet files; each run writes what is new."""
    run(
        "export",
        output=output,
        topics=topic,
        since=since,
        until=until,
        replace=replace,
        schema=schema,
        keep_value=keep_value,
        dead_letters_path=dead_letters,
        table=table,
        table_name=table_name,
        catalog=parse_pairs(catalog, "--catalog") or None,
        isolation="read_uncommitted" if read_uncommitted else "read_committed",
        include_active=include_active,
        fail_on_data_loss=not allow_data_loss,
        merge=merge,
        compression=compression,
    )
