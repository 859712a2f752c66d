"""A topic as one file: a plain tar archive, its manifest first.

    stratalog-topic.json                    what is in the archive, and the CRC-32C of every other member
    0/00000000000000000000.log              partition 0, its segments in order, each followed by its
    0/00000000000000000000.txnindex           index of aborted transactions where it has one
    0/00000000000000000000.snapshot         the producers' state at the start of a segment
    0/00000000000000004711.log
    1/00000000000000000000.log
    …                                       and two blocks of zeros, as every tar ends

Any tar lists and unpacks it. The manifest is JSON with one line behind it, `crc32c: 7bff9b32`, over every
byte before that line; it names every member with size and CRC-32C, in the order in which they follow. So the
archive can be written to a pipe and read from one, every byte is checked by one that was checked before it,
and where each member begins is known from the manifest alone: a check that was interrupted goes on there.
Everything else a partition has (indexes, seals, keys) is derived and made again from the logs.

Pure bytes: touches no disk. A file cut short is a CorruptionError that says where.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError, UnsupportedFormat
from stratalog.kernel import crc32c
from stratalog.log.names import MAX_OFFSET, MAX_TOPIC_LENGTH, Kind, file_name, parse_file

MANIFEST = "stratalog-topic.json"
FORMAT = "stratalog-topic"
VERSION = 1
BLOCK = 512
MAX_MANIFEST_BYTES = 256 << 20
MEMBER_KINDS: tuple[Kind, ...] = ("log", "txnindex", "snapshot")

_CRC_LINE = b"crc32c: "
_MAX_MEMBER = 8**11 - 1

Read = Callable[[int], bytes]
"""So many bytes of a stream; fewer only at its end."""


class Member(NamedTuple):
    """One file of a partition. ``mtime_ms`` is when a log was last written, -1 where nothing says."""

    name: str
    size: int
    crc: int
    mtime_ms: int = -1

    @property
    def blocks(self) -> int:
        """Its bytes in the archive, header included."""
        return BLOCK + -(-self.size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment. ``cleaned`` is what its seal said; None when it had none."""

    base_offset: int
    next_offset: int
    cleaned: bool | None


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    partition: int
    log_start_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    segments: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the archive holds."""

    topic: str
    topic_id: str
    settings: dict[str, str]
    partitions: tuple[PartitionEntry, ...]
    members: tuple[Member, ...]
    made_ms: int = 0
    crc: int = field(default=0, compare=False)

    @property
    def total_bytes(self) -> int:
        return sum(member.size for member in self.members)


def member_name(partition: int, base_offset: int, kind: Kind) -> str:
    return f"{partition}/{file_name(base_offset, kind)}"


# -- the manifest


def pack_manifest(manifest: Manifest) -> bytes:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "topic": manifest.topic,
        "topic_id": manifest.topic_id,
        "made_ms": manifest.made_ms,
        "settings": manifest.settings,
        "partitions": [
            {
                "partition": each.partition,
                "log_start_offset": each.log_start_offset,
                "end_offset": each.end_offset,
                "leader_epochs": [list(epoch) for epoch in each.leader_epochs],
                "segments": [
                    [segment.base_offset, segment.next_offset, segment.cleaned] for segment in each.segments
                ],
            }
            for each in manifest.partitions
        ],
        "members": [[m.name, m.size, f"{m.crc:08x}", m.mtime_ms] for m in manifest.members],
    }
    body = json.dumps(content, indent=1).encode() + b"\n"
    return body + _CRC_LINE + f"{crc32c(body):08x}\n".encode()


def parse_manifest(data: bytes) -> Manifest:
    """The manifest, every name and number in it checked."""
    body, line, given = data.rpartition(_CRC_LINE)
    if not line or given != f"{crc32c(body):08x}\n".encode():
        raise CorruptionError("the manifest fails its CRC", position=BLOCK)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"the manifest is not JSON: {error}", position=BLOCK) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptionError("not an exported topic", position=BLOCK)
    if content.get("version") != VERSION:
        raise UnsupportedFormat(f"an exported topic of version {content.get('version')!r}")
    try:
        manifest = Manifest(
            _text(content["topic"], MAX_TOPIC_LENGTH),
            _text(content["topic_id"], 22),
            {_text(name, 200): _text(value, 4096) for name, value in content["settings"].items()},
            tuple(_partition(each) for each in content["partitions"]),
            tuple(_member(each) for each in content["members"]),
            _number(content["made_ms"]),
            crc32c(data),
        )
        _check(manifest)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"the manifest lacks or misspells something: {error}", position=BLOCK) from None
    return manifest


def _partition(value: Any) -> PartitionEntry:
    return PartitionEntry(
        _number(value["partition"], 2**31 - 1),
        _number(value["log_start_offset"]),
        _number(value["end_offset"]),
        tuple((_number(epoch, 2**31 - 1), _number(start)) for epoch, start in value["leader_epochs"]),
        tuple(
            SegmentEntry(_number(base), _number(end), _flag(cleaned))
            for base, end, cleaned in value["segments"]
        ),
    )


def _member(value: Any) -> Member:
    name, size, crc, mtime_ms = value
    return Member(
        _text(name, 100),
        _number(size, _MAX_MEMBER),
        int(_text(crc, 8), 16),
        -1 if mtime_ms == -1 else _number(mtime_ms),
    )


def _check(manifest: Manifest) -> None:
    """Segments rise, and the members are theirs, in order."""
    if not manifest.partitions or [each.partition for each in manifest.partitions] != list(
        range(len(manifest.partitions))
    ):
        raise CorruptionError("the manifest does not count its partitions from 0", position=BLOCK)
    logs = []
    for part in manifest.partitions:
        at = -1
        for segment in part.segments:
            if not at <= segment.base_offset < segment.next_offset <= part.end_offset:
                raise CorruptionError(
                    f"segment {segment.base_offset} of partition {part.partition} does not follow",
                    position=BLOCK,
                )
            at = segment.next_offset
            logs.append(member_name(part.partition, segment.base_offset, "log"))
        if part.log_start_offset > part.end_offset:
            raise CorruptionError("a log start offset behind the end", position=BLOCK)
    given = [member.name for member in manifest.members]
    if len(set(given)) != len(given) or [name for name in given if name.endswith(".log")] != logs:
        raise CorruptionError("the members are not those of the segments", position=BLOCK)
    for name in given:
        number, _, file = name.partition("/")
        parsed = parse_file(file)
        known = number.isascii() and number.isdigit() and int(number) < len(manifest.partitions)
        if (
            parsed is None
            or parsed.suffix
            or parsed.kind not in MEMBER_KINDS
            or not known
            or str(int(number)) != number
        ):
            raise CorruptionError(f"a member called {name!r}", position=BLOCK)


def _number(value: Any, most: int = MAX_OFFSET) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def _flag(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true, false or null")
    return value


def _text(value: Any, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"{str(value)[:40]!r} is no text of at most {longest} characters")
    return value


# -- the archive


def tar_header(name: str, size: int, mtime_s: int = 0) -> bytes:
    """The block before a member, as POSIX has it (ustar)."""
    encoded = name.encode()
    if len(encoded) > 100 or not 0 <= size <= _MAX_MEMBER:
        raise InvalidArgumentError(f"{name} of {size} bytes does not fit a tar header")
    block = bytearray(BLOCK)
    block[0 : len(encoded)] = encoded
    block[100:108] = b"0000644\0"
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"%011o\0" % min(max(mtime_s, 0), _MAX_MEMBER)
    block[148:156] = b" " * 8
    block[156:157] = b"0"
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def parse_header(block: bytes, position: int) -> tuple[str, int]:
    """Name and size of the member that follows; CorruptionError at ``position`` when it cannot be told."""
    if len(block) < BLOCK:
        raise CorruptionError(
            f"the file ends here; {BLOCK - len(block)} bytes are missing", position=position
        )
    try:
        stated = int(block[148:156].rstrip(b"\0 ") or b"0", 8)
        actual = sum(block) - sum(block[148:156]) + 8 * 32
        if stated != actual or block[257:262] != b"ustar":
            raise ValueError("checksum")
        return block[:100].rstrip(b"\0").decode(), int(block[124:136].rstrip(b"\0 "), 8)
    except ValueError:
        raise CorruptionError("not the header of a member", position=position) from None


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def read_manifest(read: Read) -> tuple[Manifest, int]:
    """The manifest at the beginning of a stream, and where the first member begins."""
    name, size = parse_header(read(BLOCK), 0)
    if name != MANIFEST or size > MAX_MANIFEST_BYTES:
        raise CorruptionError("not an exported topic: it does not begin with its manifest", position=0)
    data = read(size)
    if len(data) < size:
        raise CorruptionError("the file ends inside its manifest", position=BLOCK + len(data))
    read(len(padding(size)))
    return parse_manifest(data), BLOCK + size + len(padding(size))


def read_member(read: Read, member: Member, position: int, chunk_bytes: int) -> Iterator[bytes]:
    """The bytes of the member that is next in a stream; the last thing it does is to check their CRC."""
    name, size = parse_header(read(BLOCK), position)
    if (name, size) != (member.name, member.size):
        raise CorruptionError(
            f"{name} of {size} bytes where the manifest has {member.name} of {member.size}", position=position
        )
    crc, left = 0, size
    while left:
        data = read(min(chunk_bytes, left))
        if not data:
            raise CorruptionError(
                f"the file ends inside {name}, {left} bytes before its end",
                position=position + BLOCK + size - left,
            )
        crc = crc32c(data, crc)
        left -= len(data)
        yield data
    if crc != member.crc:
        raise CorruptionError(
            f"{name}: CRC {crc:08x} of its bytes is not the manifest's {member.crc:08x}", position=position
        )
    read(len(padding(size)))


def positions(members: Iterable[Member], first: int) -> Iterator[tuple[Member, int]]:
    """Each member and where its header begins."""
    at = first
    for member in members:
        yield member, at
        at += member.blocks
