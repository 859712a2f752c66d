"""What a store reports: the outcome of lifecycle work, numbers that show a leak, and verification.

Reports travel over the control socket as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.errors import (
    CorruptionError,
    FormatError,
    LogDirOfflineError,
    UnknownTopicError,
    UnsupportedFormat,
)
from stratalog.format.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT, parse_offsets
from stratalog.format.metadata import META_PROPERTIES, parse_meta_properties
from stratalog.format.settings import FILE_NAME as SETTINGS
from stratalog.format.settings import parse as parse_settings
from stratalog.log import names
from stratalog.log.arguments import wrong_type
from stratalog.log.check.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.check.verify import VerifyReport, verify_partition
from stratalog.log.names import parse_file
from stratalog.log.policy.preview import Step
from stratalog.log.segment.directory_state import list_files, view_of
from stratalog.model import SegmentState
from stratalog.store.lifecycle.planning import overdue
from stratalog.store.moving import unmoved
from stratalog.store.settings import WITHOUT_SETTINGS

if TYPE_CHECKING:
    from stratalog.store.catalog import TopicEntry, View
    from stratalog.store.lifecycle.lifecycle import Lifecycle
    from stratalog.store.logdir import LogDir
    from stratalog.store.partitions import Partitions
    from stratalog.store.store import Store


@dataclass(frozen=True, slots=True)
class LifecycleReport:
    """Steps in the order they were, or would be, carried out.

    ``notes`` say what was left alone and why (a clock that jumped, a damaged segment, a full disk).
    ``compactions`` hold the numbers of each partition that was compacted.
    """

    preview: bool
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    compactions: tuple[Mapping[str, Any], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that the deletions of now free on this machine."""
        return sum(
            step.size_bytes for step in self.steps if step.due and step.action in ("delete", "drop-local")
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "preview": self.preview,
            "steps": [step.to_json() for step in self.steps],
            "notes": list(self.notes),
            "compactions": [dict(each) for each in self.compactions],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LifecycleReport:
        return cls(
            bool(value["preview"]),
            tuple(Step(**step) for step in value["steps"]),
            tuple(value["notes"]),
            tuple(value["compactions"]),
        )


@dataclass(frozen=True, slots=True)
class StateNumbers:
    """Segments of one partition in one state."""

    segments: int = 0
    size_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """The numbers that show a leak: what a partition holds by state, and what should have gone by now."""

    topic: str
    partition: int
    states: Mapping[str, StateNumbers]
    oldest_deletable: int | None
    """Base offset of the oldest segment that retention would take now; None when there is none."""
    overdue_ms: int | None
    """How long past due it is; None when time is not the reason."""
    torn_files: int = 0
    quarantined: tuple[str, ...] = ()
    """Damaged segments that compaction goes around."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionNumbers:
        states = {name: StateNumbers(**numbers) for name, numbers in value["states"].items()}
        return cls(**{**value, "states": states, "quarantined": tuple(value["quarantined"])})


@dataclass(frozen=True, slots=True)
class EraseReport:
    """What erasing keys removed, and where it could not reach."""

    topic: str
    keys: int
    dry_run: bool
    records: int
    segments: tuple[str, ...] = ()
    """Files that were rewritten."""
    archived: tuple[str, ...] = ()
    """Archived segments that were rewritten."""
    leftovers: tuple[str, ...] = ()
    """Torn and deleted files that went."""
    clones: tuple[str, ...] = ()
    """Clones made of this store earlier: they may still hold the keys and must be erased by themselves."""
    quarantined: tuple[str, ...] = ()
    """Damaged segments that could not be rewritten."""
    audit: str | None = None
    """The audit file that tells of it."""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EraseReport:
        fields: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in value.items()
        }
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    """The numbers of one log directory."""

    path: str
    partitions: int
    segments: int
    size_bytes: int
    free_bytes: int | None
    offline: str | None
    offline_partitions: dict[str, str] = field(default_factory=dict)
    """Partitions of this directory that could not be opened, with the reason."""


def log_dir_numbers(partitions: Partitions, where: LogDir) -> LogDirInfo:
    """Partitions, segments and bytes of one log directory; archived segments do not count."""
    if where.offline is not None:
        return LogDirInfo(where.path, 0, 0, 0, None, str(where.offline))
    count = segments = size = 0
    offline = {}
    for entry in partitions.entries.values():
        for partition, (each, _) in entry.directories.items():
            if each is not where:
                continue
            count += 1
            try:
                view = partitions.view(entry.name, partition)
                view.refresh()
            except (LogDirOfflineError, FormatError) as error:
                offline[f"{entry.name}-{partition}"] = str(error)
                continue
            segments += len(view.local_segments())
            size += sum(segment.size for segment in view.local_segments())
    free_bytes = partitions.context.fs.free_bytes(where.path)
    return LogDirInfo(where.path, count, segments, size, free_bytes, None, offline)


def partition_numbers(lifecycle: Lifecycle) -> list[PartitionNumbers]:
    """Return the numbers of every partition that can be opened."""
    found = []
    for name in sorted(lifecycle.partitions.entries):
        with suppress(UnknownTopicError):  # deleted meanwhile
            for entry, view in lifecycle.views(name):
                with suppress(FileNotFoundError):  # deleted meanwhile; one that moves is looked at again
                    look = partial(_numbers, lifecycle, entry)
                    found.append(unmoved(lifecycle.partitions, view, look))
    return found


def _numbers(lifecycle: Lifecycle, entry: TopicEntry, log: View) -> PartitionNumbers:
    listing = list_files(log.context.fs, log.directory)
    view = view_of(listing)
    files: defaultdict[int, int] = defaultdict(int)
    doomed_files = doomed_bytes = rewriting_files = rewriting_bytes = 0
    for name, size in listing.items():
        parsed = parse_file(name)
        if parsed is None or parsed.kind == names.TORN:
            continue
        if parsed.suffix == names.DELETED:
            doomed_files, doomed_bytes = doomed_files + 1, doomed_bytes + size
        elif parsed.suffix in (names.CLEANED, names.SWAP):
            rewriting_files, rewriting_bytes = rewriting_files + 1, rewriting_bytes + size
        else:
            files[parsed.base_offset] += 1
    states: dict[str, StateNumbers] = {}
    for info in log.segment_infos():
        known = states.get(info.state, StateNumbers())
        here = 0 if info.state is SegmentState.ARCHIVED else files[info.base_offset]
        states[info.state] = StateNumbers(
            known.segments + 1, known.size_bytes + info.size_bytes, known.files + here
        )
    if view.cleaning:
        states[SegmentState.COMPACTING] = StateNumbers(len(view.cleaning), rewriting_bytes, rewriting_files)
    if doomed_files:
        states[SegmentState.DELETED] = StateNumbers(len(view.deleted), doomed_bytes, doomed_files)
    late = overdue(lifecycle.situation(entry, log, cleaning=False))
    return PartitionNumbers(
        log.topic,
        log.partition,
        {str(state): numbers for state, numbers in states.items()},
        late[0] if late is not None else None,
        late[1] if late is not None else None,
        len(view.torn),
        lifecycle.quarantined.get((log.topic, log.partition), ()),
    )


def verify(
    store: Store,
    topic: str | None = None,
    partition: int | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Check every CRC, offset, index and sidecar; ``progress`` is called with the bytes checked.

    Without a topic, an offline log directory and unreadable settings are also reported as damage.
    """
    if not hasattr(store, "partitions"):
        raise wrong_type("store", "an open Store, as stratalog.open returns it", store)
    report = VerifyReport(damages=() if topic is not None else tuple(_check_dirs(store)))
    for name in store.topics() if topic is None else [topic]:
        count = store.topic(name).partitions
        for number in range(count) if partition is None else [partition]:
            report = report.merge(_verify(store, name, number, progress))
    return report


NEXT_CHANGE = "another log directory has them, and the next change of a topic writes them here again"
MADE_AGAIN = "remove it, the next open for writing makes it again"


def _check_dirs(store: Store) -> Iterator[Damage]:
    """Check what belongs to no partition: that each log directory can be used, and Kafka's files in it."""
    for each in store.partitions.dirs.all:
        if each.offline is not None:
            # What it holds is unknown.
            yield Damage(each.path, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, f"it is offline: {each.offline}")
            continue
        elsewhere = store.partitions.settings.current.generation
        for name, parse, way_out in (
            (SETTINGS, parse_settings, NEXT_CHANGE if elsewhere else WITHOUT_SETTINGS),
            (META_PROPERTIES, _parse_meta_properties, f"{MADE_AGAIN}, with new ids"),
            (RECOVERY_POINT, parse_offsets, MADE_AGAIN),
            (HIGH_WATERMARK, parse_offsets, MADE_AGAIN),
            (CLEANER, parse_offsets, MADE_AGAIN),
            (LOG_START, parse_offsets, f"{MADE_AGAIN}; records deleted by offset may show again"),
        ):
            try:
                parse(store.partitions.context.fs.read_file(each.file(name)))
            except FileNotFoundError:
                continue
            except FormatError as error:
                if isinstance(error, UnsupportedFormat) and name != SETTINGS:
                    continue  # another broker's, and not damage
                yield derived_damage(each.file(name), f"{reason_of(error)}; {way_out}")


def _parse_meta_properties(data: bytes) -> None:
    known = parse_meta_properties(data)
    if (known.cluster_id, known.node_id, known.directory_id) == (None, None, None):
        raise CorruptionError(f"{META_PROPERTIES}: no id in it")


def _verify(store: Store, name: str, number: int, progress: Callable[[int], None] | None) -> VerifyReport:
    """Check one partition; one that is offline, or cannot be looked at, is damage as a whole."""
    try:
        return verify_partition(store.partitions.view(name, number), progress=progress)
    except (LogDirOfflineError, FormatError, FileNotFoundError) as error:
        where = f"{name}-{number}"
        return VerifyReport(damages=(Damage(where, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, str(error)),))
