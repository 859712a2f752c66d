"""``stratalog pipeline stats``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Column, Table
from stratalog.cli.console import show as show_table
from stratalog.cli.pipelines.common import Run, pipeline_command
from stratalog.cli.session import TopicsOption
from stratalog.config.units import format_bytes

if TYPE_CHECKING:
    from stratalog.spark.pipelines import PipelineResult


@pipeline_command
def stats(
    run: Run,
    topic: TopicsOption = None,
    keys: Annotated[
        bool,
        typer.Option("--keys/--no-keys", help="Count keys, which reads every record; else headers only."),
    ] = True,
    key_sample: Annotated[
        float,
        typer.Option("--key-sample", metavar="SHARE", help="Count this share of the keys, and scale up."),
    ] = 1.0,
    top: Annotated[
        int, typer.Option("--top", min=1, metavar="N", help="How many frequent keys to name.")
    ] = 10,
    partitions: Annotated[bool, typer.Option("--partitions", help="A row for each partition.")] = False,
) -> None:
    """Sizes, rates, keys, duplicates (what compaction would save) and skew of topics."""

    def show(result: PipelineResult) -> None:
        topics: Any = result.details["topics"]
        show_table(partitions_table(topics, keys) if partitions else topics_table(topics, keys))
        hot: Any = result.details["hot_keys"]
        if hot:
            print()
            show_table(hot_keys_table(hot))

    run("stats", show=show, topics=topic, keys=keys, key_sample=key_sample, top=top)


def topics_table(topics: Sequence[Mapping[str, Any]], keys: bool) -> Table:
    """A row for each topic; skew is the largest partition over the mean, in bytes."""
    table = Table([Column("topic", style="bold"), Column("partitions", right=True), *_columns(keys)])
    table.columns = [*table.columns, Column("skew", right=True)]
    for each in topics:
        table.add(
            each["topic"], f"{each['partitions']:,}", *_cells(each, keys), f"{each['skew']['bytes']:.2f}"
        )
    size = sum(each["bytes"] for each in topics)
    table.footer = f"{sum(each['records'] for each in topics):,} records, {format_bytes(size)} on disk"
    if archived := sum(each["archived_bytes"] for each in topics):
        table.footer += f", {format_bytes(archived)} more only in the archive"
    return table


def partitions_table(topics: Sequence[Mapping[str, Any]], keys: bool) -> Table:
    """A row for each partition."""
    table = Table([Column("topic", style="bold"), Column("partition", right=True), *_columns(keys)])
    for each in topics:
        for row in each["by_partition"]:
            table.add(each["topic"], str(row["partition"]), *_cells(row, keys))
    return table


def hot_keys_table(hot: Sequence[Mapping[str, Any]]) -> Table:
    """The most frequent keys."""
    table = Table(
        [
            Column("frequent key", style="bold", fold=True),
            Column("topic"),
            Column("partition", right=True),
            Column("records", right=True),
            Column("of it", right=True),
        ]
    )
    for each in hot:
        key = repr(each["key"]) if "key" in each else f"base64 {each['key_base64']}"
        share = f"{each['share_of_partition']:.1%}"
        table.add(key, each["topic"], str(each["partition"]), f"{each['records']:,}", share)
    return table


def _columns(keys: bool) -> list[Column]:
    names = ["segments", "batches", "records", "size", "records/s"]
    names += ["keys", "no key", "duplicates", "would save"] if keys else []
    return [Column(name, right=True) for name in names]


def _cells(row: Mapping[str, Any], keys: bool) -> list[str]:
    rate = row.get("records_per_second")
    cells = [f"{row[name]:,}" for name in ("segments", "batches", "records")]
    cells += [format_bytes(row["bytes"] + row["archived_bytes"]), "" if rate is None else f"{rate:,.1f}"]
    if keys:
        cells += [f"{row['keys']:,}", f"{row['null_keys']:,}", f"{row['duplicate_ratio']:.1%}"]
        cells.append(format_bytes(row["compaction_saves_bytes"]))
    return cells
