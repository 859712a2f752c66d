"""The pipeline commands: each is a list of options, handed to the pipeline under the names in front."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.check import damage_table
from stratalog.cli.console import Table, counted, note, show
from stratalog.cli.guard import ExitCode, WrongUsage
from stratalog.cli.lifecycle import compactions_table
from stratalog.cli.pipelines.run import Run, pipeline_command, show_counts
from stratalog.cli.session import (
    PartitionOption,
    TopicArgument,
    TopicsOption,
    option,
    parameter,
    parse_pairs,
)
from stratalog.config.units import format_bytes, parse_bytes
from stratalog.log.check.damage import UNKNOWN, Damage

if TYPE_CHECKING:
    from stratalog.spark.pipelines import PipelineResult


def _text(names: str, help: str, default: str | None = None, **more: Any) -> inspect.Parameter:
    return option(names, str | None, default, help, **more)


def _many(names: str, help: str, **more: Any) -> inspect.Parameter:
    return option(names, list[str] | None, None, help, **more)


def _number(name: str, help: str, least: int | None = 1, default: int | None = None) -> inspect.Parameter:
    return option(f"{name} N", int | None, default, help, min=least)


def _flag(names: str, help: str, default: bool = False) -> inspect.Parameter:
    return option(names, bool, default, help)


def _argument(name: str, metavar: str, help: str, kind: Any = str) -> inspect.Parameter:
    return parameter(
        name, Annotated[kind, typer.Argument(metavar=metavar, help=help)], inspect.Parameter.empty
    )


def _isolation(read_uncommitted: bool) -> str:
    return "read_uncommitted" if read_uncommitted else "read_committed"


TOPIC = parameter("topic", TopicArgument, inspect.Parameter.empty)
TOPICS = parameter("topics", TopicsOption, None)
PARTITION = parameter("partition", PartitionOption, None)
UNTIL = _text("--until TIME", "Records before this time.")
UNCOMMITTED = _flag("--read-uncommitted", "Also records of open and aborted transactions.")
DATA_LOSS = _flag("--allow-data-loss", "Continue if records were deleted before they were read.")
SPARK = _flag("--spark", "Run on Spark even if this process could do it.")
MAKE_TOPIC = _number("--partitions", "Create the topic with N partitions if it does not exist.")


@pipeline_command(
    TOPIC,
    _argument(
        "files",
        "FILE...",
        "Files, patterns or directories; also s3a://… and everything else Spark reads.",
        list[str],
    ),
    _text("--format -f KIND", "json (one object per line), csv or parquet; by default from the file names."),
    _text(
        "--schema COLUMNS",
        "The columns: 'id bigint, at timestamp'; by default inferred for JSON, all text for CSV.",
    ),
    _many(
        "--option -o NAME=VALUE",
        "An option of Spark's reader: sep=';', multiLine=true; repeatable.",
        name="options",
    ),
    _text("--key -k SQL", "The key, from the columns."),
    _text("--value SQL", "The value; by default the line itself, or the row as JSON."),
    _text(
        "--timestamp -T SQL",
        "The timestamp: a time, ISO text or epoch milliseconds; by default the current time.",
    ),
    _many("--header -H NAME=SQL", "A header; repeatable. _file is the file's name.", name="headers"),
    _text(
        "--partition -p SQL",
        "The partition; by default, and where it is null, chosen by key as the Java client does.",
    ),
    _many(
        "--allow-null KEY|VALUE",
        "Accept rows whose key, or value (a tombstone), is null; by default they are dead letters.",
    ),
    MAKE_TOPIC,
    _text(
        "--dead-letters TOPIC",
        "The topic for unreadable rows; TOPIC.dead-letters by default.",
        name="dead_letter_topic",
    ),
    _number(
        "--max-dead-letters", "Fail if a batch of files has more dead letters, and ingest nothing of it.", 0
    ),
    _text("--name NAME", "The name of this ingest; under another name the same files are ingested again."),
    _text(
        "--changed HOW",
        "What to do with ingested files that have changed: report (exit 1), ingest again, or skip.",
        default="report",
    ),
    _flag(
        "--ordered/--unordered",
        "Ingest files in the order of their names; --unordered is faster for small files.",
        default=True,
    ),
    _text("--batch-size SIZE", "Bytes of the files that go into one commit.", default="1GiB"),
)
def ingest(
    run: Run,
    *,
    options: list[str] | None,
    headers: list[str] | None,
    allow_null: list[str] | None,
    batch_size: str,
    **rest: Any,
) -> None:
    """Ingest files into a topic, each exactly once; unreadable rows become dead letters."""
    run(
        "ingest",
        options=parse_pairs(options, "--option"),
        headers=parse_pairs(headers, "--header"),
        allow_null=[each.lower() for each in allow_null or ()],
        batch_bytes=parse_bytes(batch_size),
        **rest,
    )


@pipeline_command(
    _argument(
        "output",
        "OUTPUT",
        "The place of the table: a directory, s3://, gs://, az://. With --table iceberg the directory of "
        "the table and its catalog.",
    ),
    TOPICS,
    _text(
        "--since TIME",
        "Records from this time on: ISO, -10m or epoch ms. For the first export of a topic (later runs "
        "continue where it ended), and for --replace.",
    ),
    UNTIL,
    _flag("--replace", "Write the dates from --since to --until again, as the log has them now."),
    _text(
        "--schema DDL",
        "Values are JSON with these fields, which become columns: 'id BIGINT, name STRING'. Values that "
        "cannot be decoded go to TOPIC.dead-letters.",
    ),
    _flag("--keep-value", "With --schema: also keep the value itself."),
    _text(
        "--on-misfit HOW",
        "What to do with a value that does not fit its column: dead-letter; null (the column is null); text "
        "(a STRING column takes the JSON text).",
        default="dead-letter",
    ),
    _number("--max-dead-letters", "Fail and export nothing if there are more dead letters.", 0),
    _many(
        "--dead-letters DIR",
        "The store for dead letters; --data by default.",
        name="dead_letters_path",
    ),
    _text("--table KIND", "delta, iceberg, or parquet: plain files.", default="delta"),
    _text("--table-name NAMESPACE.TABLE", "The Iceberg table.", default="stratalog.records"),
    _many(
        "--catalog NAME=VALUE",
        "A property of the Iceberg catalog: type=rest, uri=http://…; repeatable. Without any, the "
        "catalog is an SQLite file in OUTPUT.",
    ),
    _flag("--table-per-topic", "A table for each topic, in OUTPUT/TOPIC; the Iceberg table NAMESPACE.TOPIC."),
    _flag("--include-active", "Also the active segments, up to the last record readers see."),
    UNCOMMITTED,
    DATA_LOSS,
    _flag("--merge", "Compact the Delta table, and remove files that no version within its retention needs."),
    _flag(
        "--rewrite-wider",
        "When a column of the Delta table must become wider (INT to BIGINT), rewrite the whole table in one "
        "commit.",
    ),
    _text("--compression CODEC", "zstd, snappy, gzip, lz4 or none.", default="zstd"),
)
def export(
    run: Run, *, catalog: list[str] | None, read_uncommitted: bool, allow_data_loss: bool, **rest: Any
) -> None:
    """Export sealed segments to a Delta or Iceberg table, or to Parquet; each run writes what is new."""
    run(
        "export",
        catalog=parse_pairs(catalog, "--catalog") or None,
        isolation=_isolation(read_uncommitted),
        fail_on_data_loss=not allow_data_loss,
        **rest,
    )


@pipeline_command(
    TOPICS,
    PARTITION,
    _flag("--force", "Compact everything that can be, due or not: no ratio, no pause in between."),
    _flag("--preview -n", "Only show what would be compacted."),
)
def compact(run: Run, **options: Any) -> None:
    """Compact topics on Spark's executors, several partitions at once, as `stratalog compact` does."""
    run("compact", show=_show_compact, **options)


def _show_compact(result: PipelineResult) -> None:
    done, steps = result.details["compactions"], result.details["steps"]
    assert isinstance(done, list)
    assert isinstance(steps, list)
    if done:
        show(compactions_table(done))
    elif any(step["due"] for step in steps) and "due" in result.counts:
        table = Table("*partition", ">size", "~why")
        for step in steps:
            table.add(f"{step['topic']}-{step['partition']}", format_bytes(step["size_bytes"]), step["why"])
        show(table)
    else:
        show_counts(result)


@pipeline_command(
    TOPIC,
    _argument("output", "OUTPUT", "The place of the table: a directory, s3://, gs://, az://."),
    _many(
        "--as-of-offset [P:]OFFSET",
        "The first offset to leave out; for a topic with several partitions PARTITION:OFFSET, repeatable.",
    ),
    _text("--as-of-time TIME", "The state at this time: ISO, epoch ms, -10m, now."),
    _flag("--full", "Rebuild the table from the whole log."),
    UNCOMMITTED,
    _flag("--headers", "Add a column with the records' headers."),
    DATA_LOSS,
)
def materialize(
    run: Run, *, as_of_offset: list[str] | None, read_uncommitted: bool, allow_data_loss: bool, **rest: Any
) -> None:
    """Keep the latest value of every key as a Delta table; a later run reads and merges only what is new."""
    run(
        "materialize",
        as_of_offset=_offsets(as_of_offset),
        isolation=_isolation(read_uncommitted),
        fail_on_data_loss=not allow_data_loss,
        **rest,
    )


def _offsets(given: list[str] | None) -> dict[int, int] | int | None:
    if not given:
        return None
    try:
        if len(given) == 1 and ":" not in given[0]:
            return int(given[0])
        return {int(number): int(offset) for number, _, offset in (each.partition(":") for each in given)}
    except ValueError:
        raise WrongUsage(
            f"--as-of-offset {' '.join(given)}: expected OFFSET, or PARTITION:OFFSET for each partition"
        ) from None


@pipeline_command(TOPICS, PARTITION)
def verify(run: Run, **options: Any) -> None:
    """Check every byte on Spark's executors, the archive's too, and name each damaged range (exit code 5)."""
    run("verify", show=_show_verify, exit_code=ExitCode.CORRUPTION, **options)


def _show_verify(result: PipelineResult) -> None:
    damages = result.details["damages"]
    assert isinstance(damages, list)
    if damages:
        show(damage_table([_damage(each) for each in damages]))
    else:
        note("no damage")
    show_counts(result)


def _damage(facts: dict[str, object]) -> Damage:
    named = {name: value for name, value in facts.items() if name not in ("topic", "partition")}
    for name in ("first_offset", "last_offset"):
        named[name] = UNKNOWN if named[name] is None else named[name]
    return Damage(**named)  # type: ignore[arg-type]  # as the pipeline made it


@pipeline_command(
    _argument("into", "INTO", "The topic the records go to."),
    TOPICS,
    _text("--parquet DIR", "Read Parquet files that export wrote, instead of the log."),
    _many(
        "--to DIR",
        "The target store; repeat for several log directories. --data by default.",
        name="to_path",
    ),
    _text("--starting-offsets OFFSETS", 'earliest, or JSON: {"orders": {"0": 23, "1": -2}}.'),
    _text("--ending-offsets OFFSETS", "latest, or JSON (exclusive)."),
    _text("--since TIME", "Records from this time on: ISO, -10m or epoch ms."),
    UNTIL,
    _flag("--latest-per-key", "Only the latest record of each key in the range."),
    _flag("--keep-partitions", "Keep each record's partition; by default it is chosen by key."),
    _flag(
        "--keep-timestamps/--new-timestamps",
        "Keep the records' timestamps, or use the current time.",
        default=True,
    ),
    _text("--isolation LEVEL", "read_committed or read_uncommitted.", default="read_committed"),
    _flag(
        "--fail-on-data-loss/--allow-data-loss",
        "Whether deleted offsets in the range are an error.",
        default=True,
    ),
    MAKE_TOPIC,
    _text(
        "--dead-letters TOPIC",
        "The topic for records that INTO does not accept; INTO.dead-letters by default.",
        name="dead_letter_topic",
    ),
    _text(
        "--name NAME",
        "Identifies the replay, so that it can be resumed; derived from the other options by default.",
    ),
    _flag("--again", "Repeat a replay that is complete under this name."),
    _number("--batch-records", "About how many records go into one commit.", default=5_000_000),
)
def replay(run: Run, **options: Any) -> None:
    """Write a range of times or offsets into a topic, exactly once; from the log, an archive or Parquet."""
    run("replay", **options)


@pipeline_command(
    TOPICS,
    _flag(
        "--keys/--no-keys",
        "Count keys, which reads every record; --no-keys reads headers only.",
        default=True,
    ),
    option("--key-sample SHARE", float, 1.0, "Count this share of the keys, and scale up."),
    _number("--top", "How many of the most frequent keys to list.", default=10),
    _flag("--partitions", "Show a row for each partition."),
    SPARK,
)
def stats(run: Run, *, keys: bool, partitions: bool, spark: bool, **rest: Any) -> None:
    """Show sizes, rates, keys, duplicates (what compaction would save) and skew of topics."""

    def show_stats(result: PipelineResult) -> None:
        topics: Any = result.details["topics"]
        show(partitions_table(topics, keys) if partitions else topics_table(topics, keys))
        hot: Any = result.details["hot_keys"]
        if hot:
            print()
            show(hot_keys_table(hot))

    run("stats", show=show_stats, needs_spark=spark, keys=keys, **rest)


def topics_table(topics: Sequence[Mapping[str, Any]], keys: bool) -> Table:
    """Return a row for each topic; skew is the largest partition over the mean, in bytes."""
    table = Table("*topic", ">partitions", *_columns(keys), ">skew")
    for each in topics:
        table.add(each["topic"], each["partitions"], *_cells(each, keys), f"{each['skew']['bytes']:.2f}")
    size = sum(each["bytes"] for each in topics)
    records = counted(sum(each["records"] for each in topics), "record")
    table.footer = f"{records}, {format_bytes(size)} on disk"
    if archived := sum(each["archived_bytes"] for each in topics):
        table.footer += f", {format_bytes(archived)} more only in the archive"
    return table


def partitions_table(topics: Sequence[Mapping[str, Any]], keys: bool) -> Table:
    """Return a row for each partition."""
    table = Table("*topic", ">partition", *_columns(keys))
    for each in topics:
        for row in each["by_partition"]:
            table.add(each["topic"], str(row["partition"]), *_cells(row, keys))
    return table


def hot_keys_table(hot: Sequence[Mapping[str, Any]]) -> Table:
    """Return the most frequent keys."""
    table = Table("*~frequent key", "topic", ">partition", ">records", ">of it")
    for each in hot:
        key = repr(each["key"]) if "key" in each else f"base64 {each['key_base64']}"
        share = f"{each['share_of_partition']:.1%}"
        table.add(key, each["topic"], str(each["partition"]), each["records"], share)
    return table


def _columns(keys: bool) -> list[str]:
    names = [">segments", ">batches", ">records", ">size", ">records/s"]
    return names + ([">keys", ">no key", ">duplicates", ">would save"] if keys else [])


def _cells(row: Mapping[str, Any], keys: bool) -> list[object]:
    rate = row.get("records_per_second")
    cells: list[object] = [row[name] for name in ("segments", "batches", "records")]
    cells += [format_bytes(row["bytes"] + row["archived_bytes"]), "" if rate is None else f"{rate:,.1f}"]
    if keys:
        saved = format_bytes(row["compaction_saves_bytes"])
        cells += [row["keys"], row["null_keys"], f"{row['duplicate_ratio']:.1%}", saved]
    return cells


@pipeline_command(
    TOPICS,
    _text("--limits FILE", "TOML with [limits] and [topics.NAME]; options win.", name="limits_file"),
    _text("--since TIME", "Check only records appended since then (except for freshness): -1h, ISO."),
    _text("--until TIME", "Check only records appended before this time."),
    _text("--max-age TIME", "Freshness: how old the newest record may be."),
    _text("--max-ahead TIME", "How far in the future the newest record may be."),
    _number("--min-records", "Volume: the least number of records.", None),
    _number("--max-records", "The largest number of records.", None),
    _text("--min-bytes SIZE", "The least number of bytes of keys and values."),
    _text("--max-bytes SIZE", "The largest number of bytes."),
    _text("--max-null-keys SHARE", "Share of records without a key: 0.01 or 1%."),
    _text("--max-null-values SHARE", "Share of records without a value."),
    _many("--max-null-field NAME=SHARE", "Share of JSON values without this field; repeatable."),
    _text(
        "--late-after TIME",
        "A record is late if it is this far behind the largest timestamp before it; 0 by default.",
    ),
    _text("--max-late SHARE", "Share of late records."),
    _text("--max-lateness TIME", "How late any record may be."),
    SPARK,
)
def check(
    run: Run,
    *,
    topics: list[str] | None,
    limits_file: str | None,
    since: str | None,
    until: str | None,
    max_null_field: list[str] | None,
    spark: bool,
    **limits: Any,
) -> None:
    """Check limits on freshness, volume, nulls and late data; the exit code is 1 if one is exceeded."""
    limits["max_null_fields"] = parse_pairs(max_null_field, "--max-null-field") or None
    given = {name: value for name, value in limits.items() if value is not None}
    if not given and limits_file is None:
        raise WrongUsage("no limit is given: pass one such as --max-age 15m, or --limits FILE")
    run(
        "check",
        show=_show_check,
        needs_spark=spark,
        topics=topics,
        limits=given,
        limits_file=limits_file,
        since=since,
        until=until,
    )


def _show_check(result: PipelineResult) -> None:
    table = Table("*limit", "", "~what was found")
    findings: Any = result.details["findings"]
    for each in findings:
        table.add(each["limit"], "kept" if each["ok"] else "broken", each["text"])
    show(table)
