"""The manifest of one partition's archive: its values, its bytes, and the object that holds it.

The manifest lists the archived segments, their objects and checksums. It is JSON whose first line holds the
CRC-32C of everything behind that line, so it can be checked and still be read by any JSON tool:

    {"crc32c": "7bff9b32",
    "version": 1, "generation": 12, "token": "…", "owner": "…", "session": "…", "topic": "orders", …
     "segments": [
      {"base": 0, "next": 5000, "name": "00000000000000000000/91b2c3d4e5f60718", "size": 1048576, …
       "objects": [["log.00000", 1048576, "0a1b2c3d"], ["index", 128, "…"], …]}
     ]}

``generation`` rises by one with every change; ``token`` identifies the put that made it. ``owner`` is the
store that writes here and ``session`` the process of it that does.

The copy in the partition's own directory, `stratalog.archive`, has the same bytes behind a first line
``{"local_start_offset": N, "crc32c": …}``: segments that end at or below N are in the archive only, and
leftovers of their files are to be removed. It is replaced atomically before any local file is removed.

There is one writer (`ManifestObject`). Every change is a conditional put on the manifest it was made from. A
process claims the session before it puts its first object; from then on no earlier process can commit.

Crash policy: the old manifest or the new one. The local copy may lag; it is never ahead. A put may have
happened although its answer was lost: the token tells.
"""

from __future__ import annotations

import json
import re
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from stratalog import locks
from stratalog.archive.objects import Objects
from stratalog.errors import ArchiveConflictError, ArchiveError, CorruptionError, UnsupportedFormat
from stratalog.format.checked_json import Fields
from stratalog.format.metadata import id_to_text, text_to_id
from stratalog.kernel import crc32c

VERSION = 1
NOT_ONE = "not a manifest"
FILE_NAME = "manifest.json"
LOCAL_NAME = "stratalog.archive"
KINDS = ("log", "index", "timeindex", "txnindex", "seal", "keyindex", "snapshot")
"""What an archived segment may have. A log is one or several objects, ``log.00000`` on; the rest one each.
The snapshot is the producers' state at the segment's end."""
_OBJECT = re.compile(r"log\.[0-9]{5}|index|timeindex|txnindex|seal|keyindex|snapshot")
_SEGMENT = re.compile(r"[0-9]{20}/[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9a-f]{16}")


T = TypeVar("T")


class StoredObject(NamedTuple):
    """One object of a segment."""

    name: str
    size: int
    crc: int

    @property
    def kind(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One archived segment. Timestamps and counts are None where its seal was missing."""

    base_offset: int
    next_offset: int
    name: str
    """Its folder below ``segments/``: base offset and a number that was never used before."""
    size_bytes: int
    """Of the log."""
    crc: int
    """CRC-32C of the log: with its size, what tells one version of a segment from another."""
    objects: tuple[StoredObject, ...]
    records: int | None = None
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    cleaned: bool = False
    modified_ms: int | None = None
    """When the log file was last written (its mtime)."""
    uploaded_ms: int = 0

    def parts(self) -> tuple[StoredObject, ...]:
        """Return the objects of the log, in order."""
        return tuple(each for each in self.objects if each.kind == "log")

    def object(self, kind: str) -> StoredObject | None:
        """Return the object of a kind other than the log."""
        return next((each for each in self.objects if each.name == kind), None)

    @property
    def stored_bytes(self) -> int:
        return sum(each.size for each in self.objects)

    def same_log(self, size_bytes: int, crc: int) -> bool:
        return (self.size_bytes, self.crc) == (size_bytes, crc)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The archived segments of a partition, in offset order without overlap."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    owner: str
    session: str = ""
    generation: int = 0
    token: str = ""
    partitions: int = 1
    """How many the topic has."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The topic's overrides."""
    log_start_offset: int = 0
    leader_epochs: tuple[tuple[int, int], ...] = ((0, 0),)
    deleted: bool = False
    """The topic is being deleted: nothing in here counts any more."""
    segments: tuple[SegmentEntry, ...] = ()

    def entry(self, base_offset: int) -> SegmentEntry | None:
        return next((each for each in self.segments if each.base_offset == base_offset), None)

    def overlapping(self, start: int, end: int) -> tuple[SegmentEntry, ...]:
        return tuple(each for each in self.segments if each.base_offset < end and each.next_offset > start)

    @property
    def next_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else self.log_start_offset


class LocalCopy(NamedTuple):
    """The file `stratalog.archive`: the manifest as last seen, and the first local offset."""

    manifest: Manifest
    local_start_offset: int


def is_number(name: str) -> bool:
    """Return whether a folder's name has the form of a segment's number."""
    return _NUMBER.fullmatch(name) is not None


def pack(manifest: Manifest) -> bytes:
    content = {
        "version": VERSION,
        "generation": manifest.generation,
        "token": manifest.token,
        "owner": manifest.owner,
        "session": manifest.session,
        "topic": manifest.topic,
        "topic_id": id_to_text(manifest.topic_id),
        "partition": manifest.partition,
        "partitions": manifest.partitions,
        "config": dict(sorted(manifest.config.items())),
        "log_start_offset": manifest.log_start_offset,
        "leader_epochs": [list(each) for each in manifest.leader_epochs],
        "deleted": manifest.deleted,
    }
    rows = ",\n  ".join(json.dumps(_entry_to_json(each)) for each in manifest.segments)
    body = json.dumps(content)[1:-1] + ',\n "segments": [\n  ' + rows + "\n ]}\n"
    return _with_crc({}, body.encode())


def parse(data: bytes, where: str = "manifest") -> Manifest:
    """Parse a manifest; CorruptionError or UnsupportedFormat naming ``where`` for anything else."""
    return _parse_at(where, lambda: _manifest(_checked(data)[0]))


def pack_local(copy: LocalCopy) -> bytes:
    body = pack(copy.manifest).partition(b"\n")[2]
    return _with_crc({"local_start_offset": copy.local_start_offset}, body)


def parse_local(data: bytes, where: str = LOCAL_NAME) -> LocalCopy:
    def parsed() -> LocalCopy:
        root, head = _checked(data)
        root.pop("local_start_offset", None)
        return LocalCopy(_manifest(root), Fields(head, NOT_ONE).count("local_start_offset"))

    return _parse_at(where, parsed)


def _parse_at(where: str, parsed: Callable[[], T]) -> T:
    try:
        return parsed()
    except CorruptionError as error:
        raise error.at(where) from None
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{where}: {error}") from None


# -- bytes ---------------------------------------------------------------------------------------------


def _with_crc(head: dict[str, object], body: bytes) -> bytes:
    """Build the first line, which opens the JSON object that ``body`` goes on with."""
    known = json.dumps({**head, "crc32c": f"{crc32c(body, crc32c(json.dumps(head).encode())):08x}"})
    return known[:-1].encode() + b",\n" + body


def _checked(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    first, _, body = bytes(data).partition(b"\n")
    try:
        if not first.endswith(b","):
            raise ValueError("the first line does not end as one of a manifest")
        head = json.loads(first[:-1] + b"}")
        crc = head.pop("crc32c", None)
        if crc != f"{crc32c(body, crc32c(json.dumps(head).encode())):08x}":
            raise CorruptionError("the CRC does not match", position=len(first) + 1)
        root = json.loads(data)
    except (ValueError, RecursionError, AttributeError) as error:
        raise CorruptionError(f"{NOT_ONE}: {error}") from None
    root.pop("crc32c", None)
    return root, head


def _manifest(root: dict[str, Any]) -> Manifest:
    fields = Fields(root, NOT_ONE)
    version = fields.take("version")
    if version != VERSION:
        raise UnsupportedFormat(f"an archive manifest of version {version!r}")
    manifest = Manifest(
        generation=fields.count("generation"),
        token=fields.text("token"),
        owner=fields.text("owner"),
        session=fields.text("session"),
        topic=fields.text("topic"),
        topic_id=text_to_id(fields.text("topic_id")),
        partition=fields.count("partition"),
        partitions=fields.count("partitions"),
        config=fields.strings("config"),
        log_start_offset=fields.count("log_start_offset"),
        leader_epochs=tuple(
            (fields.as_count(epoch, "leader_epochs"), fields.as_count(start, "leader_epochs"))
            for epoch, start in fields.rows("leader_epochs", 2)
        ),
        deleted=bool(fields.take("deleted")),
        segments=tuple(_entry(each) for each in fields.items("segments")),
    )
    fields.nothing_left()
    _check_order(manifest)
    return manifest


def _check_order(manifest: Manifest) -> None:
    end = 0
    for each in manifest.segments:
        if not end <= each.base_offset < each.next_offset:
            raise CorruptionError(
                f"segment {each.base_offset} to {each.next_offset} behind one that ends at {end}"
            )
        end = each.next_offset


def _entry_to_json(entry: SegmentEntry) -> dict[str, object]:
    return {
        "base": entry.base_offset,
        "next": entry.next_offset,
        "name": entry.name,
        "size": entry.size_bytes,
        "crc32c": f"{entry.crc:08x}",
        "records": entry.records,
        "min_timestamp": entry.min_timestamp,
        "max_timestamp": entry.max_timestamp,
        "cleaned": entry.cleaned,
        "modified_ms": entry.modified_ms,
        "uploaded_ms": entry.uploaded_ms,
        "objects": [[each.name, each.size, f"{each.crc:08x}"] for each in entry.objects],
    }


def _entry(value: object) -> SegmentEntry:
    fields = Fields(value, NOT_ONE)
    entry = SegmentEntry(
        base_offset=fields.count("base"),
        next_offset=fields.count("next"),
        name=_matching(fields, fields.take("name"), _SEGMENT),
        size_bytes=fields.count("size"),
        crc=fields.as_crc(fields.take("crc32c")),
        records=_number(fields, "records"),
        min_timestamp=_number(fields, "min_timestamp"),
        max_timestamp=_number(fields, "max_timestamp"),
        cleaned=bool(fields.take("cleaned")),
        modified_ms=_number(fields, "modified_ms"),
        uploaded_ms=fields.count("uploaded_ms"),
        objects=tuple(
            StoredObject(
                _matching(fields, name, _OBJECT), fields.as_count(size, "objects"), fields.as_crc(crc)
            )
            for name, size, crc in fields.rows("objects", 3)
        ),
    )
    fields.nothing_left()
    if sum(each.size for each in entry.parts()) != entry.size_bytes:
        fields.fail(f"the parts of segment {entry.base_offset} are not {entry.size_bytes} bytes")
    return entry


def _matching(fields: Fields, value: object, pattern: re.Pattern[str]) -> str:
    name = fields.as_text(value, "name")
    if pattern.fullmatch(name) is None:
        fields.fail(f"{name[:60]!r} is not a name of a segment or of its objects")
    return name


def _number(fields: Fields, name: str) -> int | None:
    value = fields.take(name)
    if value is not None and (not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63):
        fields.fail(f"{name} {value!r} is not a number")
    return None if value is None else int(value)


ATTEMPTS = 20
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class About:
    """What a rebuilt store must know of the topic; written into every manifest."""

    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: tuple[tuple[int, int], ...] = ((0, 0),)


class ManifestObject:
    """The manifest object of one partition. The caller serializes changes within this process."""

    def __init__(
        self, objects: Objects, key: str, blank: tuple[str, uuid.UUID, int], store_id: str, session: str
    ) -> None:
        self.url = objects.url_of(key)
        self.about: About | None = None
        """None leaves in the manifest what it says."""
        self._objects = objects
        self._key = key
        self._blank = blank
        self._store_id = store_id
        self._session = session
        self._mutex = locks.lock("archive.manifest")
        self._known: tuple[Manifest, str] | None = None
        self._fresh = False
        self._claimed = False

    def read(self, *, refresh: bool = False) -> Manifest | None:
        """Return the manifest; None when the archive holds nothing of this partition, not even a claim."""
        known = self._fetch() if refresh or not self._fresh else self._known
        return None if known is None else known[0]

    def _fetch(self) -> tuple[Manifest, str] | None:
        self._fresh = False
        known: tuple[Manifest, str] | None = None
        try:
            found = self._objects.get(self._key)
            known = parse(found.data, self.url), found.tag
        except FileNotFoundError:
            pass
        with self._mutex:
            self._known, self._fresh = known, True
        return known

    def claim(self, *, take_over: bool = False) -> Manifest:
        """Become the writer. ``take_over`` takes the archive away from the store that owns it.

        Raise ArchiveConflictError when another store, or a later process of this store, owns it.
        """
        known = self._known if self._claimed and self._fresh else self._fetch()
        if known is None:
            try:
                return self._put(self._stamped(Manifest(*self._blank, self._store_id)), None)
            except _Lost:
                known = self._known
        if known is not None and self._is_mine(known[0]):
            self._claimed = True
            return known[0]
        return self.change(lambda current: current, take_over=take_over)

    def _is_mine(self, manifest: Manifest) -> bool:
        return (manifest.owner, manifest.session) == (self._store_id, self._session)

    def change(self, change: Callable[[Manifest], Manifest], *, take_over: bool = False) -> Manifest:
        """Commit a change: apply it to the newest manifest until no other change comes between."""
        for attempt in range(ATTEMPTS):
            known = self._known if self._fresh else self._fetch()
            if known is None:
                raise ArchiveError("the manifest is gone", url=self.url)
            current, tag = known
            fenced = self._claimed and not self._is_mine(current)
            if not take_over and (current.owner != self._store_id or fenced):
                raise self._conflict(current)
            try:
                return self._put(self._stamped(change(current)), tag)
            except _Lost:
                time.sleep(_PAUSE_S * attempt * secrets.randbelow(100) / 100)
        raise ArchiveConflictError(
            f"other processes changed the manifest {ATTEMPTS} times in a row: try again", url=self.url
        )

    def forget(self) -> None:
        with self._mutex:
            self._known, self._fresh, self._claimed = None, False, False

    def _conflict(self, manifest: Manifest) -> ArchiveConflictError:
        if manifest.owner == self._store_id:
            reason = "another process with the id of this store writes to this archive; only one may"
        else:
            reason = f"this archive belongs to the store {manifest.owner}; take it over if that one is gone"
        return ArchiveConflictError(reason, url=self.url, owner=manifest.owner)

    def _stamped(self, manifest: Manifest) -> Manifest:
        about = self.about or About(manifest.partitions, manifest.config, manifest.leader_epochs)
        return replace(
            manifest,
            owner=self._store_id,
            session=self._session,
            generation=manifest.generation + 1,
            token=secrets.token_hex(8),
            partitions=about.partitions,
            config=dict(about.config),
            leader_epochs=about.leader_epochs,
        )

    def _put(self, wanted: Manifest, tag: str | None) -> Manifest:
        """Do one conditional put; raise ``_Lost``, with the newest manifest known, when another was first."""
        data = pack(wanted)
        self._fresh = False
        try:
            if tag is None:
                put = self._objects.put_if_absent(self._key, data)
            else:
                put = self._objects.put_if_match(self._key, data, tag)
        except ArchiveError:
            # It may have happened all the same.
            if not self._happened(wanted):
                raise
            return wanted
        if put is None:
            if not self._happened(wanted):
                raise _Lost
            return wanted
        with self._mutex:
            self._known, self._fresh, self._claimed = (wanted, put), True, True
        return wanted

    def _happened(self, wanted: Manifest) -> bool:
        known = self._fetch()
        if known is None or known[0].token != wanted.token:
            return False
        self._claimed = True
        return True


class _Lost(Exception):  # noqa: N818 - not an error: the race goes on
    """Another conditional put was first."""
