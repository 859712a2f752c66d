"""What a materialized table is made of: its manifest, one JSON object that is replaced as a whole.

    <output>/00000003-p00001-000.parquet            the table: every row of these files, and of no other
    <output>/_stratalog/materialize.json            this manifest
    <output>/_stratalog/state/…                     where keys lie in several partitions: each partition's own
    <output>/_stratalog/staging/…                   what a run is writing

The manifest says up to which offset each partition was read, which files hold the result, and which files get
their names and which go after it is written; whoever comes next does that again, as far as it is left to do.

Crash policy: before the manifest is replaced the table is the old one, from then on the new one. Of two runs
at once one fails (`Objects.put_if_match`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from stratalog.archive import Objects
from stratalog.errors import ConfigError, CorruptionError, UnsupportedFormat
from stratalog.log.reader import Isolation
from stratalog.spark.pipelines.export_places import STAGING, Place

FORMAT = 1
NAME = "materialize.json"
STATE = "_stratalog/state"

Mode = Literal["partition", "key"]
"""Whether every key lies in one partition only, or keys are brought together."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the output, or of a partition's state."""

    name: str
    rows: int
    bytes: int
    bucket: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One partition as of the last run."""

    end: int
    """The first offset that was not read."""
    read_ms: int
    """When there was nothing behind that offset; 0 when there was."""
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole table."""

    version: int
    topic: str
    topic_id: str
    partitions: int
    """How many the topic had."""
    isolation: Isolation
    headers: bool
    mode: Mode
    checked: bool
    """Whether keys were found to be where the Java client puts them."""
    buckets: int
    written_ms: int
    parts: Mapping[int, Part]
    merged: tuple[DataFile, ...] = ()
    """In mode ``key`` the table; in mode ``partition`` the files of the parts are."""
    moves: tuple[tuple[str, str], ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The table."""
        if self.mode == "key":
            return self.merged
        return tuple(file for number in sorted(self.parts) for file in self.parts[number].files)

    def every_name(self) -> set[str]:
        """All files, those of the state too."""
        return {file.name for part in self.parts.values() for file in part.files} | {
            file.name for file in self.merged
        }

    def pack(self) -> bytes:
        said = {"format": FORMAT, **asdict(self)}
        return json.dumps(said, indent=1, sort_keys=True).encode() + b"\n"


def parse(data: bytes, url: str) -> Manifest:
    """CorruptionError for what is no manifest, UnsupportedFormat for one of another version."""
    try:
        said = json.loads(data)
        version = said.pop("format")
        if version != FORMAT:
            raise UnsupportedFormat(f"{url}: a materialized table of format {version}, this reads {FORMAT}")
        parts = {
            int(number): Part(part["end"], part["read_ms"], _files(part["files"]))
            for number, part in said.pop("parts").items()
        }
        merged, moves = _files(said.pop("merged")), tuple((a, b) for a, b in said.pop("moves"))
        return Manifest(parts=parts, merged=merged, moves=moves, gone=tuple(said.pop("gone")), **said)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"not the manifest of a materialized table: {error!r}", path=url) from error


def _files(said: Iterable[Mapping[str, object]]) -> tuple[DataFile, ...]:
    return tuple(DataFile(**each) for each in said)  # type: ignore[arg-type]  # TypeError is caught


@dataclass(frozen=True)
class Stored:
    """The manifest as it was found, and the tag that replaces exactly this one."""

    manifest: Manifest | None
    tag: str


def load(place: Place) -> Stored:
    """What the last run left; nothing at first. ConfigError when the output is something else."""
    objects = place.objects
    try:
        found = objects.get(NAME)
    except FileNotFoundError:
        others = [info.key for info in objects.list("") if not info.key.startswith((f"{STAGING}/", "state/"))]
        if others:
            raise ConfigError(
                f"output={place.url}: another pipeline writes there ({others[0]}); takes a directory of its"
                " own"
            ) from None
        return Stored(None, "")
    return Stored(parse(found.data, objects.url_of(NAME)), found.tag)


def commit(objects: Objects, before: Stored, manifest: Manifest) -> None:
    """Make this the table; ConfigError when another run was faster."""
    data = manifest.pack()
    if before.manifest is None:
        done = objects.put_if_absent(NAME, data)
    else:
        done = objects.put_if_match(NAME, data, before.tag)
    if done is None:
        raise ConfigError(
            f"{objects.url_of(NAME)}: another run has written this output meanwhile; nothing was changed by"
            " this one; run one at a time"
        )


def settle(place: Place, manifest: Manifest) -> None:
    """Give the files of the last commit their names, remove those it replaced. Again is fine."""
    lost = place.publish(manifest.moves)
    if lost:
        raise CorruptionError(
            f"the manifest names {lost[0]}, which is not there; a full run makes the table again",
            path=place.url,
        )
    place.remove(manifest.gone)
