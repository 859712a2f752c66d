"""``stratalog pipeline compact``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.console import Column, Table, show
from stratalog.cli.pipelines.common import Run, pipeline_command, show_counts
from stratalog.cli.session import PartitionOption, TopicsOption
from stratalog.cli.steps import compactions_table
from stratalog.config.units import format_bytes

if TYPE_CHECKING:
    from stratalog.spark.pipelines import PipelineResult

PreviewOption = Annotated[bool, typer.Option("--preview", "-n", help="Only show what would be compacted.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Compact whatever can be, due or not: no ratio, no rest in between.")
]


@pipeline_command
def compact(
    run: Run,
    topic: TopicsOption = None,
    partition: PartitionOption = None,
    force: ForceOption = False,
    preview: PreviewOption = False,
) -> None:
    """Compact topics on Spark's executors, partitions side by side: the same files as `stratalog compact`."""
    run("compact", show=show_compact, topics=topic, partition=partition, force=force, preview=preview)


def show_compact(result: PipelineResult) -> None:
    """What was done to each partition, or is due."""
    done, steps = result.details["compactions"], result.details["steps"]
    assert isinstance(done, list)
    assert isinstance(steps, list)
    if done:
        show(compactions_table(done))
    elif any(step["due"] for step in steps) and "due" in result.counts:
        table = Table(
            [Column("partition", style="bold"), Column("size", right=True), Column("why", fold=True)]
        )
        for step in steps:
            table.add(f"{step['topic']}-{step['partition']}", format_bytes(step["size_bytes"]), step["why"])
        show(table)
    else:
        show_counts(result)
