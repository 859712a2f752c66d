"""One run of an export, whatever it writes: what was asked for, and what its commits have in common."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.spark.options import Where
from stratalog.spark.pipelines import dead_letters
from stratalog.spark.pipelines.export_files import Target
from stratalog.spark.pipelines.export_json import Payload
from stratalog.spark.pipelines.export_plan import Plan, Wanted
from stratalog.spark.pipelines.export_tasks import Exporting, ReadingLetters
from stratalog.spark.pipelines.result import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Outcome = tuple[dict[str, int], dict[str, object], tuple[str, ...]]
"""Counts, details and notes."""


@dataclass(frozen=True)
class Job:
    """One run of an export, checked."""

    spark: SparkSession
    where: Where
    output: str
    wanted: Wanted
    replace: bool
    payloads: Mapping[str, Payload]
    """By topic; under ``""`` the one for all."""
    keep_value: bool
    letters_to: tuple[str, ...]
    compression: str
    now_ms: int
    progress: Progress | None

    def payloads_of(self, topics: Sequence[str]) -> tuple[tuple[str, Payload], ...]:
        """The decoding of each of these topics that has one; dead letters are not decoded again."""
        found = []
        for topic in sorted(set(topics)):
            general = None if topic.endswith(dead_letters.SUFFIX) else self.payloads.get("")
            payload = self.payloads.get(topic, general)
            if payload is not None:
                found.append((topic, payload))
        return tuple(found)

    def exporting(self, planned: Plan, target: Target, columns: tuple[str, ...]) -> Exporting:
        """The work on the executors."""
        return Exporting(
            self.where,
            target,
            self.wanted.isolation,
            self.wanted.fail_on_data_loss,
            columns=columns,
            payloads=self.payloads_of([each.topic for each in planned.ranges]),
            keep_value=self.keep_value,
            compression=self.compression,
        )

    def notes(self, planned: Plan) -> tuple[str, ...]:
        lost = (
            f"{each.topic}-{each.partition}: offsets {each.start} to {each.end - 1} left the log before"
            " they were exported"
            for each in planned.lost
        )
        renamed = {
            f"the payload's field {old} is the column {new}: the record has a {old} of its own"
            for payload in self.payloads.values()
            for old, new in payload.renamed.items()
        }
        return (*lost, *sorted(renamed))


def send_letters(
    job: Job,
    target: Target,
    export_id: str,
    version: int,
    files: Sequence[tuple[str, str, int]],
    to: Sequence[str],
) -> None:
    """Send the dead letters of a commit to a store, exactly once by its number, topic by topic."""
    for topic in sorted({topic for topic, _, _ in files}):
        rows = ReadingLetters(target, tuple(file for of, file, _ in files if of == topic))
        dead_letters.send(
            rows.frame(job.spark),
            path=tuple(to),
            topic=topic,
            source=f"export {topic}",
            query=f"export-{uuid.uuid5(uuid.NAMESPACE_URL, f'{export_id}/{topic}').hex}",
            batch=version,
        )
