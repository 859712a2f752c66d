"""An export to plain Parquet files: no table format, only names.

    <output>/topic=orders/date=2026-01-31/<partition>-<first>-<last>-1of2-<topic id>.parquet
    <output>/_dead_letters/topic=orders/<partition>-<first>-<last>-2of2-<topic id>.parquet    to be sent
    <output>/_dead_letters/topic=orders/<partition>-<first>-<last>-2of2-<topic id>.sent       sent
    <output>/_temporary/<run>/…                                            what a run is writing

A name says the partition, the first and the last offset of the range, which file of how many the range has,
and the topic id. A range is exported when all of its files are there; where to go on is what a listing shows.
The ranges of a partition get their names in the order of offsets, so only the last one can be incomplete: the
next run removes it and exports from its first offset. A range that is written twice gets the same names.

Limits: no dates are replaced, no files merged, a range is visible file by file, and one run at a time writes.
Two runs at once that pinned different ends leave ranges that overlap; the next run finds them and says so.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratalog.errors import ConfigError, StoreError
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.lake.files import FileTarget, WrittenFile, place_of
from stratalog.spark.pipelines.lake.json_columns import Payload
from stratalog.spark.pipelines.lake.tables import (
    COLUMNS,
    LETTERS_PLACE,
    Change,
    Dates,
    Letters,
    Log,
    Pending,
)

TEMPORARY = "_temporary"
FORGOTTEN_MS = 86_400_000
"""Files of a dead run in ``_temporary`` are removed after this time; another run may be writing there."""
NO_ID = "none"
"""Instead of the topic id, for a directory that is older than topic ids."""
_NAME = re.compile(
    r"(?:_dead_letters/)?topic=(?P<topic>[^/]+)/(?:date=[^/]+/)?"
    r"(?P<partition>\d{5,})-(?P<first>\d{20})-(?P<last>\d{20})-(?P<number>\d+)of(?P<count>\d+)"
    r"-(?P<id>[A-Za-z0-9_-]+)\.(?:parquet|sent)\Z"
)


@dataclass
class _Range:
    """One exported range, as far as a listing shows its files."""

    log: Log
    first: int
    last: int
    count: int
    numbers: set[int] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return len(self.numbers) == self.count


class ParquetFiles:
    """Plain files in a directory or below a prefix of an object store."""

    columns: tuple[str, ...] = COLUMNS
    split = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._place = place_of(url)

    def prepare(self, logs: Sequence[Log], payloads: Sequence[Payload], *, value: bool) -> list[Payload]:
        old_ms = time.time_ns() // 1_000_000 - FORGOTTEN_MS
        left = [info.key for info in self._place.list(f"{TEMPORARY}/") if info.modified_ms < old_ms]
        self._place.remove(left)
        return list(payloads)

    # -- the files as they are -----------------------------------------------------------------------

    def ends(self, logs: Sequence[Log]) -> dict[Log, int]:
        """Return the end offset of each log; remove an incomplete range, always the last of its log."""
        ends: dict[Log, int] = {}
        wanted = set(logs)
        for each in self._ranges({log.topic for log in logs}):
            if each.log not in wanted:
                continue
            if not each.whole:
                self._place.remove(each.keys)
                continue
            if each.first < ends.get(each.log, 0):
                raise StoreError(
                    f"{self._place.address(each.keys[0])}: another file of this partition holds offset"
                    f" {each.first} too: two exports wrote at once; remove the files of one of these ranges"
                )
            ends[each.log] = each.last + 1
        return ends

    def _ranges(self, topics: set[str]) -> list[_Range]:
        found: dict[tuple[Log, int, int, int], _Range] = {}
        for topic in sorted(topics):
            for prefix in (f"topic={topic}/", f"{LETTERS_PLACE}/topic={topic}/"):
                for info in self._place.list(prefix):
                    if (name := _NAME.match(info.key)) is None:
                        continue
                    topic_id = "" if name["id"] == NO_ID else name["id"]
                    log = Log(topic, topic_id, int(name["partition"]))
                    key = (log, int(name["first"]), int(name["last"]), int(name["count"]))
                    each = found.setdefault(key, _Range(*key))
                    each.numbers.add(int(name["number"]))
                    each.keys.append(info.key)
        return [found[key] for key in sorted(found)]

    def ids_of(self, topic: str) -> set[str]:
        return {each.log.topic_id for each in self._ranges({topic})}

    def oldest(self, dates: Dates) -> dict[Pair, int]:
        raise ConfigError("replace: plain Parquet files are not replaced; export with table=delta or iceberg")

    def facts(self) -> dict[str, object]:
        return {"output": self.url, "table": "parquet"}

    # -- commits -------------------------------------------------------------------------------------

    def target(self, run: str) -> FileTarget:
        return place_of(self._place.address(f"{TEMPORARY}/{run}"))

    def commit(self, change: Change) -> int:
        logs = {(log.topic, log.partition): log for log in change.ends}
        ranges: dict[tuple[Log, int, int], list[WrittenFile | Letters]] = {}
        for file in change.files:
            log = logs[file.topic, file.spans["partition"][0]]
            ranges.setdefault((log, file.start, file.end), []).append(file)
        for letters in change.letters:
            log = logs[letters.topic, letters.partition]
            ranges.setdefault((log, letters.start, letters.end), []).append(letters)
        for (log, start, end), files in sorted(ranges.items()):
            for number, each in enumerate(files, 1):
                name = (
                    f"{log.partition:05d}-{start:020d}-{end - 1:020d}-{number}of{len(files)}"
                    f"-{log.topic_id or NO_ID}.parquet"
                )
                place = f"topic={log.topic}"
                if isinstance(each, WrittenFile):
                    place = f"{place}/date={each.date}"
                else:
                    place = f"{LETTERS_PLACE}/{place}"
                self._place.move(f"{TEMPORARY}/{change.run}/{each.name}", f"{place}/{name}")
        self.discard(change.run)
        return 0

    def discard(self, run: str) -> None:
        self._place.remove([info.key for info in self._place.list(f"{TEMPORARY}/{run}/")])

    def merge(self, topics: Sequence[str], compression: str) -> int:
        raise ConfigError("merge: plain Parquet files are not merged; export with table=delta")

    # -- dead letters --------------------------------------------------------------------------------

    def pending(self) -> list[Pending]:
        listed = [info.key for info in self._place.list(f"{LETTERS_PLACE}/")]
        topics = {name["topic"] for key in listed if (name := _NAME.match(key)) and key.endswith(".parquet")}
        found = []
        for each in self._ranges(topics):
            files = tuple(
                key for key in each.keys if key.startswith(LETTERS_PLACE) and key.endswith(".parquet")
            )
            if each.whole and files:
                scope = f"{self.url}/{each.log.key}"
                query = f"export-{uuid.uuid5(uuid.NAMESPACE_URL, scope).hex}"
                found.append(Pending(each.log.topic, query, each.last, files, self._place))
        return found

    def sent(self, letters: Pending) -> None:
        for name in letters.files:
            self._place.move(name, f"{name.removesuffix('.parquet')}.sent")
