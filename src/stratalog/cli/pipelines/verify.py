"""``stratalog pipeline verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.cli.check import damage_table
from stratalog.cli.console import note, show
from stratalog.cli.pipelines.common import Run, pipeline_command, show_counts
from stratalog.cli.session import PartitionOption, TopicsOption
from stratalog.log.check.damage import UNKNOWN, Damage

if TYPE_CHECKING:
    from stratalog.spark.pipelines import PipelineResult


@pipeline_command
def verify(run: Run, topic: TopicsOption = None, partition: PartitionOption = None) -> None:
    """Check every byte on Spark's executors, the archive's too, and name each damaged range (exit code 1)."""
    run("verify", show=show_verify, topics=topic, partition=partition)


def show_verify(result: PipelineResult) -> None:
    """The damaged ranges, if any, and what was looked at."""
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
