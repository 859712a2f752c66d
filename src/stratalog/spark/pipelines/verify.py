"""``verify``: every CRC, every index, every gap, segments spread over Spark's executors.

Checks what `stratalog verify` checks, by the same code (`stratalog.log.check.verify`). A task reads segments
to the last byte and returns what is wrong in them. A second, short job checks what only the whole partition
shows: transactions, and gaps between segments. Archived segments are read in the archive, and so are the
archive's copies of local segments. Works beside a running program; changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import ConfigError
from stratalog.log.check.damage import Damage
from stratalog.log.check.segment_check import CheckedSegment, check_segment
from stratalog.log.check.verify import (
    VerifyReport,
    check_files,
    check_segments,
    check_standing_still,
    is_named,
)
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import LogView
from stratalog.log.segment.segment import Segment
from stratalog.spark.logs import Logs, opened
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Subscription, Where
from stratalog.spark.pipelines import PipelineResult, Progress
from stratalog.spark.pipelines.executors import Path, names_of, slots, spread, watched, where_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 128 << 20
SMALLEST_TASK_BYTES = 16 << 20
SEGMENT_COST_BYTES = 256 << 10
"""The cost of opening one more segment, as bytes."""
PARTITIONS_AT_ONCE = 64


def verify(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | str | None = None,
    partition: int | None = None,
    progress: Progress | None = None,
) -> PipelineResult:
    """Check topics, or every topic, to the last byte. Not ``ok`` when something is damaged.

    ``details["damages"]`` names each damaged range: file, bytes, offsets lost, the reason, and whether it can
    be made again from the log (``derived``).
    """
    began = time.monotonic()
    chosen = names_of(topics)
    if partition is not None and len(chosen) != 1:
        raise ConfigError("verify: partition needs exactly one topic beside it")
    where = where_of(path, archive)
    with opened(where) as logs:
        pairs = logs.choose(Subscription(topics=chosen))
        pairs = [each for each in pairs if partition is None or each[1] == partition]
        if partition is not None and not pairs:
            logs.view(chosen[0], partition)  # raises UnknownPartitionError
        units = [unit for pair in pairs for unit in _units(logs, pair)]
    size = sum(unit.cost_bytes for unit in units)
    most = min(TASK_BYTES, max(SMALLEST_TASK_BYTES, size // (3 * slots(spark))))
    with watched(spark, progress, "verify"):
        found = spread(spark, list(_bundles(units, most)), CheckingSegments(where))
        verdicts: dict[Pair, list[Verdict]] = {pair: [] for pair in pairs}
        for verdict in (each for part in found for each in part.verdicts):
            verdicts[verdict.pair].append(verdict)
        every = list(verdicts.items())
        whole = [every[at : at + PARTITIONS_AT_ONCE] for at in range(0, len(every), PARTITIONS_AT_ONCE)]
        reports = [each for part in spread(spark, whole, CheckingPartitions(where)) for each in part]
    copies = [copy for part in found for copy in part.copies]
    return _result(reports, copies, time.monotonic() - began)


def _result(
    reports: Sequence[tuple[Pair, VerifyReport]], copies: Sequence[CopyCheck], seconds: float
) -> PipelineResult:
    total = VerifyReport()
    damages: list[dict[str, object]] = []
    for pair, report in reports:
        total = total.merge(report)
        damages += [_facts(pair, each) for each in report.damages]
    for copy in copies:
        damages += [_facts(copy.pair, each) for each in copy.damages]
    counts = {
        "partitions": len(reports),
        "segments": total.segments,
        "records": total.records,
        "bytes": total.bytes,
    }
    if copies:
        counts |= {"archived_copies": len(copies), "archived_copies_bytes": sum(each.size for each in copies)}
    counts["damages"] = len(damages)
    notes = () if not damages else ("run `stratalog repair` to see what can be done",)
    return PipelineResult("verify", counts, {"damages": damages}, notes, ok=not damages, seconds=seconds)


def _facts(pair: Pair, damage: Damage) -> dict[str, object]:
    """Return a damaged range as `stratalog verify --json` prints it."""
    return {
        "topic": pair[0],
        "partition": pair[1],
        "path": damage.path,
        "start": damage.start,
        "end": damage.end,
        "first_offset": damage.first_offset if damage.first_offset >= 0 else None,
        "last_offset": damage.last_offset if damage.last_offset >= 0 else None,
        "reason": damage.reason,
        "derived": damage.derived,
    }


# -- planning ----------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """One segment to read. ``copy``: the archive's copy of a local one."""

    pair: Pair
    base_offset: int
    size: int
    copy: bool

    @property
    def cost_bytes(self) -> int:
        return self.size + SEGMENT_COST_BYTES


def _units(logs: Logs, pair: Pair) -> Iterator[Unit]:
    view = logs.view(*pair)
    view.refresh()
    for segment in view.segments():
        yield Unit(pair, segment.base_offset, segment.size, False)
    for segment in archived_copies(logs, pair, view):
        yield Unit(pair, segment.base_offset, segment.size, True)


def archived_copies(logs: Logs, pair: Pair, view: LogView) -> list[Segment]:
    """Return the archive's copies of segments that are still local, which no reader looks at."""
    local = logs.local
    entry = None if local is None else local.entries.get(pair[0])
    if local is None or entry is None:
        return []
    seen = {each.base_offset for each in view.segments() if isinstance(each, ArchivedSegment)}
    there, _ = local.cold(entry, pair[1], view.directory)()
    return [each for each in there if each.base_offset not in seen]


def _bundles(units: Iterable[Unit], most_bytes: int) -> Iterator[list[Unit]]:
    """Bundle segments into tasks of about the same size."""
    bundle: list[Unit] = []
    size = 0
    for unit in units:
        if bundle and size + unit.cost_bytes > most_bytes:
            yield bundle
            bundle, size = [], 0
        bundle.append(unit)
        size += unit.cost_bytes
    if bundle:
        yield bundle


# -- on the executors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """One segment after its check, without the file: the input of the partition's check."""

    pair: Pair
    base_offset: int
    path: str
    inode: int
    checked: CheckedSegment
    """Without its ``segment``."""

    @classmethod
    def of(cls, pair: Pair, checked: CheckedSegment) -> Verdict:
        segment = checked.segment
        seal = checked.seal
        bare = replace(
            checked,
            segment=None,  # type: ignore[arg-type]  # put back by `on`
            seal=None if seal is None else replace(seal, blocks=()),
        )
        return cls(pair, segment.base_offset, segment.path(), _identity(segment, checked.inode), bare)

    def on(self, view: LogView) -> CheckedSegment | None:
        """Return the same with the segment as it is now; None if that is another one."""
        for segment in view.segments():
            if segment.base_offset == self.base_offset:
                try:
                    inode = segment.inode()
                except FileNotFoundError:
                    return None
                if segment.path() != self.path or _identity(segment, inode) != self.inode:
                    return None
                return replace(
                    self.checked, segment=segment, inode=inode, sidecars=dict(self.checked.sidecars)
                )
        return None


def _identity(segment: Segment, inode: int) -> int:
    """Objects of an archive have no inode: their address is unique."""
    return 0 if isinstance(segment, ArchivedSegment) else inode


@dataclass(frozen=True)
class CopyCheck:
    """An archived copy after its check."""

    pair: Pair
    size: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True)
class Checked:
    """What one task found."""

    verdicts: tuple[Verdict, ...]
    copies: tuple[CopyCheck, ...]


@dataclass(frozen=True)
class CheckingSegments:
    """The first job: segments, each by itself."""

    where: Where

    def __call__(self, units: list[Unit]) -> Checked:
        verdicts: list[Verdict] = []
        copies: list[CopyCheck] = []
        with opened(self.where) as logs:
            for unit in units:
                view = logs.view(*unit.pair)
                view.refresh()
                if unit.copy:
                    copies += _check_copy(logs, unit, view)
                    continue
                checked = check_standing_still(view, unit.base_offset)
                if checked is not None:
                    verdicts.append(Verdict.of(unit.pair, checked))
        return Checked(tuple(verdicts), tuple(copies))


def _check_copy(logs: Logs, unit: Unit, view: LogView) -> Iterator[CopyCheck]:
    for segment in archived_copies(logs, unit.pair, view):
        if segment.base_offset != unit.base_offset:
            continue
        try:
            checked = check_segment(segment)
        except FileNotFoundError:
            return  # replaced or removed meanwhile
        yield CopyCheck(unit.pair, segment.size, checked.damages)


@dataclass(frozen=True)
class CheckingPartitions:
    """The second job: what shows between segments. A segment that changed since the first is checked
    again."""

    where: Where

    def __call__(self, parts: list[tuple[Pair, list[Verdict]]]) -> list[tuple[Pair, VerifyReport]]:
        with opened(self.where) as logs:
            return [(pair, self._one(logs, pair, verdicts)) for pair, verdicts in parts]

    def _one(self, logs: Logs, pair: Pair, verdicts: list[Verdict]) -> VerifyReport:
        view = logs.view(*pair)
        known = {verdict.base_offset: verdict for verdict in verdicts}

        def check(base_offset: int) -> CheckedSegment | None:
            verdict = known.get(base_offset)
            checked = None if verdict is None else verdict.on(view)
            return check_standing_still(view, base_offset) if checked is None else checked

        segments = list(check_segments(view, check=check))
        found = [damage for each in segments for damage in each.damages]
        found += [each for each in check_files(view) if not is_named(each, found)]
        size, records = sum(each.segment.size for each in segments), sum(each.records for each in segments)
        return VerifyReport(len(segments), size, records, tuple(found))
