"""The names of everything in a log directory, both ways.

    orders-0/                                    a partition: <topic>-<partition>
    orders-0.<unique id>-delete                  Kafka is deleting it (-stray, -future likewise)
      00000000000000000000.log                   <20-digit base offset>.<kind>
      00000000000000000000.index.swap            ... and a suffix while it is being replaced
      00000000000000004711.log.torn-81920        bytes cut off the segment at that position

Pure text, touches no disk. A directory listing may hold anything: a name that only looks like one of these
(nineteen digits, Arabic digits, a newline at the end, an offset past 2**63 - 1) parses to None, and such a
file is never touched.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast

from stratalog.errors import InvalidTopicError

Kind = Literal["log", "index", "timeindex", "txnindex", "snapshot", "seal", "keyindex", "torn"]
PartitionState = Literal["", "delete", "stray", "future"]

LOG: Final = "log"
TXNINDEX: Final = "txnindex"
SNAPSHOT: Final = "snapshot"
SEAL: Final = "seal"
KEYINDEX: Final = "keyindex"
TORN: Final = "torn"

DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
TMP: Final = ".tmp"

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
LOCK: Final = ".lock"
TAIL: Final = "stratalog.tail"
ARCHIVE: Final = "stratalog.archive"
MOVED: Final = "stratalog.moved"
ARRIVING: Final = "stratalog.arriving"

SEGMENT_KINDS: Final[tuple[Kind, ...]] = ("log", "index", "timeindex", "txnindex", "seal", "keyindex")
"""The files of one segment, in the order they are renamed: the log first."""

PARTITION_FILES: Final = frozenset({LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, TAIL, ARCHIVE})
"""Files of a partition without an offset in their name."""

MARKS: Final = frozenset({MOVED, ARRIVING})
"""A directory is about to stop or start being the partition. In the one that is, a crash left them."""

MAX_OFFSET: Final = 2**63 - 1
MAX_TOPIC_LENGTH: Final = 249

# What may follow the twenty digits. There is no ".log.tmp": only files that are written whole and then
# renamed have one.
_TAILS: Final[dict[str, tuple[Kind, str]]] = {
    f".{kind}{suffix}": (kind, suffix)
    for kind, suffixes in (
        *((kind, ("", DELETED, CLEANED, SWAP)) for kind in SEGMENT_KINDS),
        *((kind, (TMP,)) for kind in SEGMENT_KINDS if kind != LOG),
        (SNAPSHOT, ("", DELETED, TMP)),
    )
    for suffix in suffixes
}
_TORN_TAIL = re.compile(r"\.log\.torn-(0|[1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,8}))?")
_PARTITION_DIR = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})(?:\.[^.\s]+-(delete|stray|future))?")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")


class FileName(NamedTuple):
    """One parsed name. ``position`` and ``copy`` are set for torn files only."""

    base_offset: int
    kind: Kind
    suffix: str = ""
    position: int = -1
    copy: int = 0

    @property
    def name(self) -> str:
        """The name on disk; the inverse of ``parse_file``."""
        if self.kind == TORN:
            return torn_name(self.base_offset, self.position, self.copy)
        return f"{self.base_offset:020d}.{self.kind}{self.suffix}"


class PartitionDir(NamedTuple):
    """One parsed directory name. With a state, Kafka may have cut a very long topic short."""

    topic: str
    partition: int
    state: PartitionState = ""


def segment_name(base_offset: int) -> str:
    """Return the twenty digits every file of a segment starts with; names sort as offsets do."""
    if not 0 <= base_offset <= MAX_OFFSET:
        raise ValueError(f"a base offset lies in 0..2**63-1, not {base_offset}")
    return f"{base_offset:020d}"


def file_name(base_offset: int, kind: Kind, suffix: str = "") -> str:
    """Return a name such as ``00000000000000000042.index``; for torn files see ``torn_name``."""
    return f"{segment_name(base_offset)}.{kind}{suffix}"


def torn_name(base_offset: int, position: int, copy: int = 0) -> str:
    """Return where bytes cut off a ``.log`` at ``position`` are kept; ``copy`` > 0 if that name is taken."""
    name = f"{segment_name(base_offset)}.log.torn-{position}"
    return f"{name}.{copy}" if copy else name


def parse_file(name: str) -> FileName | None:
    """Parse the name of a file in a partition directory; None if it is not a segment's."""
    digits, tail = name[:20], name[20:]
    if not (len(digits) == 20 and digits.isascii() and digits.isdigit()):
        return None
    base_offset = int(digits)
    if base_offset > MAX_OFFSET:
        return None
    known = _TAILS.get(tail)
    if known is not None:
        return FileName(base_offset, *known)
    torn = _TORN_TAIL.fullmatch(tail)
    if torn is None:
        return None
    position, copy = torn.groups()
    return FileName(base_offset, TORN, "", int(position), int(copy or 0))


def partition_dir(topic: str, partition: int) -> str:
    """Return the directory name of a partition."""
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> PartitionDir | None:
    """Parse the name of a partition directory; None if it is none.

    The last dash parts topic and partition, as in Kafka, so topics may hold dashes and dots:
    ``a.b-1-0`` is partition 0 of ``a.b-1``.
    """
    match = _PARTITION_DIR.fullmatch(name)
    if match is None:
        return None
    topic, digits, state = match.groups()
    partition = int(digits)
    if partition > 2**31 - 1 or _topic_fault(topic) is not None:
        return None
    return PartitionDir(topic, partition, cast(PartitionState, state or ""))


def is_partition_file(name: str) -> bool:
    """Return True if only a partition's directory holds a file of this name."""
    return name in PARTITION_FILES or parse_file(name) is not None


def validate_topic(name: str) -> None:
    """Raise InvalidTopicError for a name that Kafka would refuse."""
    fault = _topic_fault(name)
    if fault is not None:
        shown = repr(name)
        shown = shown if len(shown) <= 80 else shown[:80] + "..."
        raise InvalidTopicError(f"invalid topic name {shown}: {fault}")


def collides(a: str, b: str) -> bool:
    """Return True if two topics differ only in ``.`` and ``_``, which are the same in Kafka's metric names.

    Kafka refuses to create the second of such a pair. A topic collides with itself.
    """
    return a.replace(".", "_") == b.replace(".", "_")


def _topic_fault(name: object) -> str | None:
    if not isinstance(name, str):
        return "a topic name is a string"
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "'.' and '..' are directories"
    if len(name) > MAX_TOPIC_LENGTH:
        return f"it has {len(name)} characters, more than {MAX_TOPIC_LENGTH}"
    if _TOPIC.fullmatch(name) is None:
        return "only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None
