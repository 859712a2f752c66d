"""The commit log of an export: what an output of Parquet files holds, and since when.

    <output>/_stratalog/commits/00000001.json       one object a commit, created once, never changed
    <output>/_stratalog/commits/00000001.applied    its files have their final names
    <output>/_stratalog/checkpoints/00000032.json   everything up to that commit in one object
    <output>/_stratalog/staging/00000002-<run>/     files of the run that means to make commit 2

A commit is made by creating its object, which succeeds for one of those who try: that is the moment at which
its records are exported. What is still to do then (staged files get their final names, replaced ones go,
dead letters are sent) is in the object and is rolled forward, by whoever made it or by the next run.

Crash policy: before the object is there nothing happened, and the staged files are swept once another run
makes a commit of that number; after it everything will have happened. An object that cannot be read is an
error with its address, never an empty log: that would export everything twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stratalog.archive import Objects
from stratalog.errors import CorruptionError, StoreError, UnsupportedFormat
from stratalog.spark.pipelines.export_coverage import Extent, joined

T = TypeVar("T")

FORMAT = 1
CHECKPOINT_EVERY = 32
COMMITS = "commits"
CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"(?:commits|checkpoints)/([0-9]{8,})\.(json|applied)\Z")


@dataclass(frozen=True, slots=True)
class Held:
    """What a data file holds of one partition: its first and last offset and how many records."""

    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of the output. ``path`` is below the output, ``staged`` where it was written."""

    path: str
    topic: str
    date: str
    records: int
    size_bytes: int
    held: tuple[Held, ...]
    columns: str = ""
    """Which payload columns it has; files of different ones are not merged."""
    staged: str = ""

    def to_json(self) -> dict[str, object]:
        held = [[each.partition, each.first, each.last, each.records] for each in self.held]
        said = {name: getattr(self, name) for name in _TEXTS + _NUMBERS}
        return said | {"held": held}

    @classmethod
    def from_json(cls, said: Any) -> DataFile:
        """ValueError when it is not what `to_json` makes."""
        texts = [said[name] for name in _TEXTS]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError(f"{said!r} is no file")
        path, topic, date, columns, staged = texts
        records, size_bytes = (int(said[name]) for name in _NUMBERS)
        return cls(path, topic, date, records, size_bytes, tuple(map(_held, said["held"])), columns, staged)


_TEXTS = ("path", "topic", "date", "columns", "staged")
_NUMBERS = ("records", "size_bytes")


def _held(said: Any) -> Held:
    partition, first, last, records = map(int, said)
    return Held(partition, first, last, records)


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the log."""

    version: int
    run: str
    export_id: str
    """Stays with the output; with ``version`` it names the batch of dead letters."""
    kind: str
    time_ms: int
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    covered: tuple[Extent, ...] = ()
    dead_letters: tuple[tuple[str, str, int], ...] = ()
    """Staged files of records that could not be decoded: topic, file, records."""
    dead_letters_to: tuple[str, ...] = ()
    """The log directories whose dead-letter topics take them."""

    def to_json(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": self.version,
            "run": self.run,
            "export_id": self.export_id,
            "kind": self.kind,
            "time_ms": self.time_ms,
            "add": [each.to_json() for each in self.add],
            "remove": list(self.remove),
            "covered": [each.to_json() for each in self.covered],
            "dead_letters": [list(each) for each in self.dead_letters],
            "dead_letters_to": list(self.dead_letters_to),
        }

    @classmethod
    def from_json(cls, said: Any) -> Commit:
        """ValueError, KeyError or TypeError when it is not what `to_json` makes."""
        return cls(
            version=int(said["version"]),
            run=str(said["run"]),
            export_id=str(said["export_id"]),
            kind=str(said["kind"]),
            time_ms=int(said["time_ms"]),
            add=tuple(map(DataFile.from_json, said["add"])),
            remove=tuple(map(str, said["remove"])),
            covered=tuple(map(Extent.from_json, said["covered"])),
            dead_letters=tuple((str(t), str(f), int(n)) for t, f, n in said["dead_letters"]),
            dead_letters_to=tuple(map(str, said["dead_letters_to"])),
        )


@dataclass(frozen=True, slots=True)
class State:
    """Everything the commits up to ``version`` add up to."""

    version: int = 0
    export_id: str = ""
    covered: tuple[Extent, ...] = ()
    files: Mapping[str, DataFile] = field(default_factory=dict)

    def after(self, commit: Commit) -> State:
        files = {path: file for path, file in self.files.items() if path not in set(commit.remove)}
        files |= {file.path: replace(file, staged="") for file in commit.add}
        covered = tuple(joined((*self.covered, *commit.covered)))
        return State(commit.version, commit.export_id, covered, files)

    def to_json(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": self.version,
            "export_id": self.export_id,
            "covered": [each.to_json() for each in self.covered],
            "files": [each.to_json() for each in self.files.values()],
        }

    @classmethod
    def from_json(cls, said: Any) -> State:
        files = [DataFile.from_json(each) for each in said["files"]]
        return cls(
            int(said["version"]),
            str(said["export_id"]),
            tuple(map(Extent.from_json, said["covered"])),
            {each.path: each for each in files},
        )


class CommitLog:
    """The log below ``<output>/_stratalog``."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def load(self) -> tuple[State, list[Commit]]:
        """What the output holds, and the commits that are yet to be rolled forward, oldest first."""
        state, pending = self._checkpoint(), []
        for commit, applied in self._after(state.version):
            state = state.after(commit)
            if not applied:
                pending.append(commit)
        return state, pending

    def visible(self, exists: Callable[[str], bool]) -> State:
        """The newest state of which every file has its final name: what it removes goes only after that."""
        state = self._checkpoint()
        for commit, applied in self._after(state.version):
            if not applied and not all(exists(file.path) for file in commit.add):
                break
            state = state.after(commit)
        return state

    def _after(self, version: int) -> Iterator[tuple[Commit, bool]]:
        commits: set[int] = set()
        applied: set[int] = set()
        for info in self._objects.list(f"{COMMITS}/"):
            if found := _NAME.match(info.key):
                (commits if found[2] == "json" else applied).add(int(found[1]))
        for expected, number in enumerate(sorted(each for each in commits if each > version), version + 1):
            key = f"{COMMITS}/{number:08d}.json"
            if number != expected:
                raise CorruptionError(
                    f"commit {expected} is missing and commit {number} is there",
                    path=self._objects.url_of(key),
                )
            yield self._read(key, Commit.from_json), number in applied

    def commit(self, commit: Commit) -> None:
        """Create the commit's object; StoreError when another run made a commit of that number first."""
        key = f"{COMMITS}/{commit.version:08d}.json"
        data = _pack(commit.to_json())
        try:
            made = self._objects.put_if_absent(key, data) is not None
        except Exception:
            # It may have taken effect all the same; then it is ours and it counts.
            if not self._is_ours(key, commit.run):
                raise
            made = True
        if not made and not self._is_ours(key, commit.run):
            raise StoreError(
                f"{self._objects.url_of(key)}: another export to this output made commit {commit.version}"
                " first; run this one again"
            )

    def applied(self, version: int) -> None:
        """Note that a commit is rolled forward."""
        self._objects.put(f"{COMMITS}/{version:08d}.applied", b"")

    def is_applied(self, version: int) -> bool:
        return self._objects.head(f"{COMMITS}/{version:08d}.applied") is not None

    def checkpoint(self, state: State) -> None:
        """Now and then keep the sum of the commits, so that a later run reads few of them."""
        if state.version and state.version % CHECKPOINT_EVERY == 0:
            self._objects.put(f"{CHECKPOINTS}/{state.version:08d}.json", _pack(state.to_json()))

    def exists(self, version: int) -> bool:
        return self._objects.head(f"{COMMITS}/{version:08d}.json") is not None

    def _is_ours(self, key: str, run: str) -> bool:
        try:
            return self._read(key, Commit.from_json).run == run
        except FileNotFoundError:
            return False

    def _checkpoint(self) -> State:
        known = [int(m[1]) for m in map(_NAME.match, self._keys(f"{CHECKPOINTS}/")) if m and m[2] == "json"]
        if not known:
            return State()
        return self._read(f"{CHECKPOINTS}/{max(known):08d}.json", State.from_json)

    def _keys(self, prefix: str) -> Iterable[str]:
        return (info.key for info in self._objects.list(prefix))

    def _read(self, key: str, parse: Callable[[Any], T]) -> T:
        data = self._objects.get(key).data
        url = self._objects.url_of(key)
        try:
            said = json.loads(data)
            version = said["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"not an entry of an export's commit log: {error}", path=url) from error
        if version != FORMAT:
            raise UnsupportedFormat(
                f"{url}: written in version {version!r} of this format, known is {FORMAT}"
            )
        try:
            return parse(said)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(f"not an entry of an export's commit log: {error!r}", path=url) from error


def _pack(said: Mapping[str, object]) -> bytes:
    return json.dumps(said, indent=1, ensure_ascii=False).encode() + b"\n"
