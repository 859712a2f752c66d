"""``materialize``: the latest value of every key, as of an offset or a time, as a table of Parquet files.

    materialize(spark, path="/var/lib/stratalog", topic="users", output="/data/users")
    spark.read.parquet("/data/users")

Deleted keys (tombstones) are not in it, and neither is what was not committed. Run again it reads only what
came since, merges it with the last result and replaces the table as a whole: exactly once, whatever crashes,
by a manifest in the output (`materialize_manifest`). `read` reads exactly the files of the manifest; whoever
lists the directory while a run is finishing may see old and new files for a moment.

A task does one partition (`materialize_tasks`), which is all there is to do while every key lies in one
partition: that is checked against where the Java client puts keys. Where it is not so, because the topic was
given more partitions or somebody chose them otherwise, keys are brought together, by the timestamp of their
records; ``by`` says which way instead of ``auto``.

What retention deletes from the log stays in the table, and so does a key that is erased: ``full=True`` makes
it again from the log as it is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from stratalog.config.units import parse_time
from stratalog.errors import ConfigError, InvalidArgumentError
from stratalog.format.metadata import id_to_text
from stratalog.log.reader import Isolation, check_isolation
from stratalog.spark.logs import opened
from stratalog.spark.options import Where, parse_options
from stratalog.spark.pipelines.export_places import Place, place_of, staging
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.materialize_join import Bucket, Joining
from stratalog.spark.pipelines.materialize_manifest import (
    STATE,
    DataFile,
    Manifest,
    Mode,
    Part,
    Stored,
    commit,
    load,
    settle,
)
from stratalog.spark.pipelines.materialize_plan import AsOf, Now, look
from stratalog.spark.pipelines.materialize_tasks import Merge, Merged, Merging
from stratalog.spark.pipelines.places import Path, place_options, subscription
from stratalog.spark.pipelines.result import PipelineResult, Progress
from stratalog.spark.pipelines.spread import slots, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

By = Literal["auto", "partition", "key"]
MEMORY_BYTES = 256 << 20
SMALLEST_MEMORY_BYTES = 1 << 16
BUCKET_BYTES = 512 << 20
MOST_BUCKETS = 64


def materialize(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topic: str,
    output: str,
    as_of_offset: int | Mapping[int, int] | None = None,
    as_of_time: str | int | None = None,
    by: By = "auto",
    isolation: Isolation = "read_committed",
    headers: bool = False,
    full: bool = False,
    fail_on_data_loss: bool = True,
    memory_bytes: int = MEMORY_BYTES,
    compression: str = "zstd",
    progress: Progress | None = None,
) -> PipelineResult:
    """Bring the table at ``output`` up to date.

    ``as_of_offset`` is the first offset not to take, for each partition; ``as_of_time`` (ISO, ``-10m``, epoch
    ms) stands for the first offset at that time or later, as ``endingTimestamp`` does. ``memory_bytes`` is
    what a task takes for keys; with more keys it takes more steps.
    """
    began = time.monotonic()
    if by not in ("auto", "partition", "key"):
        raise ConfigError(f"by={by!r}: takes auto, partition or key")
    if memory_bytes < SMALLEST_MEMORY_BYTES:
        raise ConfigError(f"memory_bytes={memory_bytes}: takes {SMALLEST_MEMORY_BYTES} or more")
    now_ms = time.time_ns() // 1_000_000
    as_of = AsOf(_offsets(as_of_offset), _moment(as_of_time, now_ms))
    where = parse_options(place_options(path, archive) | subscription([topic])).where
    place = place_of(output)
    stored = load(place)
    if stored.manifest is not None:
        settle(place, stored.manifest)
        place.sweep(stored.manifest.version)
    with opened(where) as logs:
        now = look(logs, topic, check_isolation(isolation), as_of, now_ms)
    run = _Run(spark, where, place, stored, now, isolation, headers, memory_bytes, compression)
    run.fail_on_data_loss = fail_on_data_loss
    with watched(spark, progress, "materialize"):
        made = run.run(by, full)
    return _result(made, run, time.monotonic() - began)


def read(spark: SparkSession, output: str) -> DataFrame:
    """The table as the last run left it: the files that its manifest names, where Spark can read them."""
    place = place_of(output)
    manifest = load(place).manifest
    if manifest is None:
        raise ConfigError(f"output={output}: there is no materialized table; `materialize` makes one")
    names = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
    if manifest.headers:
        names += ", headers array<struct<key: string, value: binary>>"
    files = [place.address(file.name) for file in manifest.files]
    return spark.read.schema(names).parquet(*files) if files else spark.createDataFrame([], names)


def _offsets(said: int | Mapping[int, int] | None) -> dict[int, int] | int | None:
    if said is None or isinstance(said, int):
        return said
    try:
        return {int(number): int(offset) for number, offset in said.items()}  # keys are texts in TOML
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"as_of_offset={said!r}: takes an offset, or one for each partition") from None


def _moment(said: str | int | None, now_ms: int) -> int | None:
    if said is None or isinstance(said, int):
        return said
    try:
        return parse_time(said, now_ms)
    except InvalidArgumentError as error:
        raise ConfigError(f"as_of_time={said!r}: {error}") from None


@dataclass
class _Run:
    """One run; what it did is in its counters and notes."""

    spark: SparkSession
    where: Where
    place: Place
    stored: Stored
    now: Now
    isolation: Isolation
    headers: bool
    memory_bytes: int
    compression: str
    fail_on_data_loss: bool = True
    checked: bool = False

    def __post_init__(self) -> None:
        self.notes: list[str] = list(self.now.notes)
        self.merged: list[Merged] = []
        self.version = 1 if self.stored.manifest is None else self.stored.manifest.version + 1
        self.staging = staging(self.version, uuid.uuid4().hex[:12])

    def run(self, by: By, full: bool) -> Manifest:
        """The table after the run, committed and in place."""
        before, mode = self._before(by, full)
        if before is not None and not self._changed(before):
            return before
        self.checked = by == "auto"
        made = self._merge(before, mode)
        if made is None:
            self.notes.append(
                f"{self.now.topic}: keys are in other partitions than the Java client would choose; they are"
                " brought together by the timestamp of their records"
            )
            made = self._merge(None, "key")
            assert made is not None
        commit(self.place.objects, self.stored, made)
        settle(self.place, made)
        self.place.sweep(self.version)
        return made

    def _before(self, by: By, full: bool) -> tuple[Manifest | None, Mode]:
        """The table to go on from, if it can be, and how keys are brought together."""
        manifest, now = self.stored.manifest, self.now
        wanted: Mode = "key" if by == "key" else "partition"
        if manifest is None:
            return None, wanted
        if (manifest.topic, manifest.topic_id) != (now.topic, _id(now)) and not full:
            raise ConfigError(
                f"output={self.place.url} is the table of {manifest.topic} ({manifest.topic_id}), not of"
                f" {now.topic} ({_id(now)}); takes another output, or full=True to begin anew"
            )
        why = ""
        if by == "auto" and not full:
            wanted = manifest.mode
            if wanted == "partition" and manifest.partitions != len(now.partitions):
                wanted, why = "key", "the topic has more partitions now"
            elif wanted == "partition" and not manifest.checked:
                why = "the last run was not asked to look where keys are"
        if manifest.mode != wanted:
            why = why or f"the last result was by {manifest.mode}"
        if (manifest.isolation, manifest.headers) != (self.isolation, self.headers):
            why = "the last result was made with other options"
        if why and not full:
            self.notes.append(f"everything is read again: {why}")
        return (None if full or why else manifest), wanted

    def _changed(self, before: Manifest) -> bool:
        """Whether there is something to do; also to say that there was nothing, before it is too late."""
        parts, now = before.parts, self.now
        stale_ms = now.now_ms - now.delete_retention_ms // 4
        return any(
            number not in parts
            or parts[number].end != looked.end
            or (looked.whole and parts[number].read_ms < stale_ms)
            for number, looked in now.partitions.items()
        )

    # -- one way or the other --------------------------------------------------------------------------

    def _merge(self, before: Manifest | None, mode: Mode) -> Manifest | None:
        """The next manifest, its files staged; None when keys turn out to be in several partitions."""
        now = self.now
        buckets = self._buckets(before, mode)
        kept: dict[int, Part] = {}
        merges: list[Merge] = []
        for number, looked in now.partitions.items():
            part = None if before is None else before.parts.get(number)
            if part is not None and part.end == looked.end:
                kept[number] = replace(part, read_ms=looked.read_ms(now))
                continue
            if part is not None and (why := looked.why_again(part, now)):
                self.notes.append(f"{now.topic}-{number}: read again from its start: {why}")
                part = None
            merges.append(
                Merge(
                    now.topic,
                    number,
                    looked.start if part is None else part.end,
                    looked.end,
                    () if part is None else part.files,
                    part is not None,
                    len(now.partitions) if self.checked and mode == "partition" else 0,
                )
            )
        work = Merging(
            self.where,
            self.place.url,
            self.staging,
            self.isolation,
            self.headers,
            buckets,
            mode == "key",
            self.memory_bytes,
            self.compression,
            self.fail_on_data_loss,
        )
        merges.sort(key=lambda merge: merge.start - merge.end)  # the longest first
        merged = spread(self.spark, merges, work)
        if any(each.misplaced for each in merged):
            self.place.remove(file.name for each in merged for file in each.files)
            return None
        self.merged = merged
        ends = {merge.partition: merge.end for merge in merges}
        moves: list[tuple[str, str]] = []
        parts = kept | {
            each.partition: Part(
                ends[each.partition],
                now.partitions[each.partition].read_ms(now),
                self._named(each.files, f"p{each.partition:05d}", moves, state=mode == "key"),
            )
            for each in merged
        }
        made = Manifest(
            version=self.version,
            topic=now.topic,
            topic_id=_id(now),
            partitions=len(now.partitions),
            isolation=self.isolation,
            headers=self.headers,
            mode=mode,
            checked=self.checked,
            buckets=buckets,
            written_ms=now.now_ms,
            parts=dict(sorted(parts.items())),
        )
        if mode == "key":
            made = replace(made, merged=self._join(made, moves))
        old = set() if self.stored.manifest is None else self.stored.manifest.every_name()
        return replace(made, moves=tuple(moves), gone=tuple(sorted(old - made.every_name())))

    def _join(self, made: Manifest, moves: list[tuple[str, str]]) -> tuple[DataFile, ...]:
        """Bring the partitions' states together, bucket by bucket."""
        staged = {name: at for at, name in moves}
        buckets: dict[int, list[str]] = {}
        for part in made.parts.values():
            for file in part.files:
                buckets.setdefault(file.bucket, []).append(staged.get(file.name, file.name))
        work = Joining(self.place.url, self.staging, self.headers, self.compression)
        found = spread(
            self.spark, [Bucket(number, tuple(files)) for number, files in sorted(buckets.items())], work
        )
        return tuple(
            named
            for files in found
            for named in self._named(files, f"b{files[0].bucket:05d}" if files else "", moves, state=False)
        )

    def _named(
        self, files: tuple[DataFile, ...], of: str, moves: list[tuple[str, str]], *, state: bool
    ) -> tuple[DataFile, ...]:
        """The files under the names they will have."""
        named = []
        for at, file in enumerate(files):
            name = f"{self.version:08d}-{of}-{at:03d}.parquet"
            name = f"{STATE}/{name}" if state else name
            moves.append((file.name, name))
            named.append(replace(file, name=name))
        return tuple(named)

    def _buckets(self, before: Manifest | None, mode: Mode) -> int:
        if mode == "partition":
            return 1
        if before is not None:
            return before.buckets
        size = sum(looked.size_bytes for looked in self.now.partitions.values())
        return min(MOST_BUCKETS, max(slots(self.spark), -(-size // BUCKET_BYTES)))


def _id(now: Now) -> str:
    return "" if now.topic_id is None else id_to_text(now.topic_id)


def _result(made: Manifest, run: _Run, seconds: float) -> PipelineResult:
    vanished = sum(each.vanished for each in run.merged)
    if vanished:
        run.notes.append(
            f"{vanished} keys came again and were compacted while this ran; the next run brings them"
            " up to date"
        )
    counts = {
        "records": sum(each.records for each in run.merged),
        "tombstones": sum(each.tombstones for each in run.merged),
        "keys": sum(file.rows for file in made.files),
        "files": len(made.files),
        "bytes": sum(file.bytes for file in made.files),
    }
    details: dict[str, object] = {
        "output": run.place.url,
        "version": made.version,
        "by": made.mode,
        "partitions": {
            str(number): {"end": part.end, "changed": number in {each.partition for each in run.merged}}
            for number, part in made.parts.items()
        },
        "files": [run.place.address(file.name) for file in made.files],
    }
    return PipelineResult("materialize", counts, details, tuple(run.notes), seconds=seconds)
