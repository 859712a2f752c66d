"""A partition directory: listing it, what a listing means, and settling what a crash left in it.

`view_of` is a pure function of a listing, for readers and for recovery; the rest of the module reads and
changes the directory.

A directory can be caught at any step of a replacement, Kafka's or ours:

    1  the new segments are written as  X.log.cleaned  X.index.cleaned ...
    2  renamed to .swap, the highest base offset first (by us each .log last, when its sidecars are safe)
    3  the segments they replace are renamed to .deleted, the lowest first (and removed a minute later; by
       us in the order of `removal_order`)
    4  .swap is taken off, the lowest first, the .log of each before its other files

Step 2 going down and a crash in it leave some ``.cleaned`` below or beside every ``.swap``: so a ``.swap`` at
or above the smallest ``.cleaned`` belongs to a replacement that never became whole, and the old segments
are all still there. With no such ``.cleaned`` the ``.swap`` files are whole and win. These are the rules of
Kafka's LogLoader; where its own renames go in any order, ours go up and are separated by directory
syncs, so that a crash between two of them is not the beginning of a loss.

Recovery carries out ``leftovers`` in order; stopped after any of them, and after a power cut that kept any of
what was not yet behind a `SyncDir`, a new listing leads to the same end. Readers only look at ``segments``,
and serve from each only offsets below the next one's base: then what they see is right at every step, even
while a replaced segment and its replacement are both there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from stratalog.errors import CorruptionError, StorageError
from stratalog.fs import FileStat, FileSystem
from stratalog.log import names
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.names import SWAP, FileName, Kind, file_name, parse_file, segment_name
from stratalog.log.segment.segment import Segment, scan_file
from stratalog.model import SegmentInfo, SegmentState


class Delete(NamedTuple):
    """Remove this file of the directory; fine when it is gone already."""

    name: str


class Rename(NamedTuple):
    """Rename within the directory, replacing ``target``; fine when ``source`` is gone already."""

    source: str
    target: str


class SyncDir(NamedTuple):
    """Make every earlier action durable before the next one: fsync the directory."""


Action = Delete | Rename | SyncDir


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment under their current names. ``suffix`` and ``size`` are those of the ``.log``.

    While ``.swap`` is being taken off, the ``.log`` may have lost it and an index may still have it.
    """

    base_offset: int
    suffix: str
    size: int
    log: str
    sidecars: Mapping[Kind, str] = field(default_factory=dict)

    @property
    def swapping(self) -> bool:
        """The log has its name already, a sidecar not yet."""
        return not self.suffix and any(name.endswith(names.SWAP) for name in self.sidecars.values())

    def file(self, kind: Kind) -> str | None:
        """Return the current name of this segment's file of that kind; None when it has none."""
        return self.log if kind == names.LOG else self.sidecars.get(kind)


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """What a listing means.

    ``segments``  ascending; see `view_of` for what ``.swap`` files do to it.
    ``leftovers`` what recovery must do, in order; empty when nothing was cut short.
    ``undecided`` base offsets of valid ``.swap`` segments whose end is not known: ``leftovers`` stops before
                  them, and recovery must call again with ``next_offset_of``.
    ``snapshots`` offsets of the producer snapshots that stay, ascending.
    ``cleaning``  base offsets of replacements being written (``.cleaned``) or swapped in (``.swap``).
    ``deleted``   the ``.log`` files that wait for removal.
    ``torn``      bytes that recovery cut off; never touched.
    ``unknown``   other names; never touched.
    ``orphans``   base offsets below the last segment that have sidecars, no log, and nothing that explains
                  it: lost records, unless the log start has passed them. ``leftovers`` does not touch them.
    """

    segments: tuple[SegmentFiles, ...]
    leftovers: tuple[Action, ...]
    undecided: tuple[int, ...]
    snapshots: tuple[int, ...]
    cleaning: tuple[int, ...]
    deleted: tuple[FileName, ...]
    torn: tuple[FileName, ...]
    unknown: tuple[str, ...]
    orphans: tuple[int, ...] = ()


_Files = dict[Kind, str]  # kind -> name


def view_of(
    entries: Mapping[str, int], next_offset_of: Callable[[int], int | None] | None = None
) -> DirectoryView:
    """Return the meaning of a listing: ``entries`` maps the names of plain files to their sizes.

    ``next_offset_of(base)`` returns where a valid ``.swap`` segment ends (its last offset plus one; None if
    unknown): plain segments whose base lies between the first swap's base and the furthest end are the ones
    being replaced. Its errors pass through; nothing has been changed then.

    With it, ``segments`` is the log after ``leftovers`` has been carried out, under its current names.
    Without it, ``segments`` is what can be served now: a plain ``.log`` if there is one, else the valid
    ``.swap`` that fills the hole its deletion left.
    """
    plain: dict[int, _Files] = {}
    swap: dict[int, _Files] = {}
    cleaned: list[FileName] = []
    doomed: list[str] = []  # .deleted, .tmp and marks
    snapshots: list[int] = []
    deleted: list[FileName] = []
    torn: list[FileName] = []
    unknown: list[str] = []
    for name in sorted(entries):
        parsed = parse_file(name)
        if parsed is None:
            final = name.removesuffix(names.TMP)
            if final in names.MARKS or (final != name and final in names.PARTITION_FILES):
                doomed.append(name)
            elif name not in names.PARTITION_FILES:
                unknown.append(name)
        elif parsed.kind == names.TORN:
            torn.append(parsed)
        elif parsed.suffix in (names.DELETED, names.TMP):
            doomed.append(name)
            if parsed.kind == names.LOG:
                deleted.append(parsed)
        elif parsed.suffix == names.CLEANED:
            cleaned.append(parsed)
        elif parsed.suffix == names.SWAP:
            swap.setdefault(parsed.base_offset, {})[parsed.kind] = name
        elif parsed.kind == names.SNAPSHOT:
            snapshots.append(parsed.base_offset)
        else:
            plain.setdefault(parsed.base_offset, {})[parsed.kind] = name

    cleaning = sorted({file.base_offset for file in cleaned if file.kind == names.LOG} | swap.keys())
    invalid: list[str] = []
    if cleaned:
        smallest = min(file.base_offset for file in cleaned)
        for base in [base for base in swap if base >= smallest]:
            invalid.extend(_in_order(swap.pop(base)))

    # A log that is being deleted, or was cut off whole, explains its sidecars; they go before it does.
    gone = {file.base_offset for file in (*deleted, *torn) if file.position <= 0}
    explained = [base for base, files in plain.items() if names.LOG not in files and base in gone]
    plan = _Plan()
    plan.phase(Delete(name) for base in explained for name in _in_order(plain.pop(base)))
    plan.phase(Delete(name) for name in doomed)
    plan.phase(Delete(name) for name in invalid)
    plan.phase(Delete(file.name) for file in cleaned)

    whole = sorted(base for base, files in swap.items() if names.LOG in files)
    ends = {base: next_offset_of(base) if next_offset_of is not None else None for base in whole}
    undecided = tuple(base for base, end in ends.items() if end is None)
    orphans: tuple[int, ...] = ()
    if undecided:
        segments = _servable(entries, plain, swap)
    else:
        segments, orphans = _complete(entries, plain, swap, ends, plan)
        snapshots = _settle_snapshots(snapshots, segments, plan)
    return DirectoryView(
        segments=segments,
        leftovers=tuple(plan.actions),
        undecided=undecided,
        snapshots=tuple(snapshots),
        cleaning=tuple(cleaning),
        deleted=tuple(deleted),
        torn=tuple(torn),
        unknown=tuple(unknown),
        orphans=orphans,
    )


def agreed(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int] | None:
    """Return what two listings, taken one after the other, agree on; None when they contradict each other.

    A listing is not a snapshot: a file renamed meanwhile can be missed or seen twice. Two that agree in every
    segment file's name and size can be trusted. The last segment of the first one may grow, be sealed and be
    followed by others: new files are left out, so that a log that rolls faster than its directory is listed
    can be read. A replacement that is being written only counts while another one is being swapped in.
    """
    names_of_both = [*first, *second]
    last = max((int(name[:20]) for name in first if name[20:] == ".log" and name[:20].isdigit()), default=-1)
    swapping = any(name.endswith(names.SWAP) for name in names_of_both)
    found = dict(second)
    for name in names_of_both:
        before, now = first.get(name), second.get(name)
        if before == now:
            continue
        parsed = _of_segment(name)
        if parsed is None or (parsed.suffix == names.CLEANED and (not swapping or None not in (before, now))):
            continue
        if last < 0 or parsed.base_offset < last or parsed.suffix or now is None:
            return None
        if before is None:
            found.pop(name, None)
    return found


class _Plan:
    """Actions in phases, a directory sync before, between and after them.

    The first sync matters too: the process that died may not have synced the renames that the listing shows,
    and no old file may be removed before the renames that replaced it are on disk.
    """

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def phase(self, actions: Iterable[Action]) -> None:
        more = list(actions)
        if more:
            if not self.actions:
                self.actions.append(SyncDir())
            self.actions.extend(more)
            self.actions.append(SyncDir())


def _in_order(files: _Files) -> list[str]:
    """Return the names, the log's first."""
    return [files[kind] for kind in names.SEGMENT_KINDS if kind in files]


def removal_order(replaced: Mapping[int, Mapping[Kind, str]], by: Container[int]) -> Iterator[list[str]]:
    """Return the files of replaced segments in parts, to be removed with a directory sync after each.

    A reader may come after a power cut that kept any of a part, and before recovery. It takes an old log
    where there is one: the first part lets the new segments ``by`` count, each from its base on, while
    every other old one is still there to be read. And it must not take an old log without its sidecars.
    """
    logs = [(base, files[names.LOG]) for base, files in sorted(replaced.items()) if names.LOG in files]
    yield [log for base, log in logs if base in by]
    yield [log for base, log in logs if base not in by]
    yield [name for _, files in sorted(replaced.items()) for kind, name in files.items() if kind != names.LOG]


def _servable(
    entries: Mapping[str, int], plain: Mapping[int, _Files], swap: Mapping[int, _Files]
) -> tuple[SegmentFiles, ...]:
    """Return what a reader can open now, without knowing how far the swaps reach.

    Old segments are renamed away from the lowest up and a replacement has the base of the lowest: while
    the plain ``.log`` of a base is there, all the old ones are, and they are as good as the new.
    """
    segments = []
    for base in sorted(plain.keys() | swap.keys()):
        old, new = plain.get(base, {}), swap.get(base, {})
        if names.LOG in old and names.LOG in new:
            segments.append(_segment(entries, base, old, {}))
        elif names.LOG in old or names.LOG in new:
            segments.append(_segment(entries, base, old, new))
    return tuple(segments)


def _complete(
    entries: Mapping[str, int],
    plain: dict[int, _Files],
    swap: Mapping[int, _Files],
    ends: Mapping[int, int | None],
    plan: _Plan,
) -> tuple[tuple[SegmentFiles, ...], tuple[int, ...]]:
    """Finish the replacement: delete what is replaced, take ``.swap`` off; return the segments and orphans.

    Sidecars without a log go while a ``.swap`` shows why, so that none stay behind without a reason: the
    ``.swap`` files last. Others stay if they lie below the last segment.
    """
    if ends:
        # Kafka takes the hull of all swaps, not each range: a segment whose base fell into a gap that
        # compaction left between two of them is replaced as well. An empty swap replaces its own base.
        low = min(ends)
        high = max(max(base + 1, end or 0) for base, end in ends.items())
        replaced = [base for base in sorted(plain) if low <= base < high]
        for part in removal_order({base: plain.pop(base) for base in replaced}, ends):
            plan.phase(Delete(name) for name in part)

    both = {base: (plain.get(base, {}), swap.get(base, {})) for base in sorted(plain.keys() | swap.keys())}
    logs = {base for base, (old, new) in both.items() if names.LOG in old or names.LOG in new}
    without = [base for base in both if base not in logs]
    last = max(logs, default=-1)
    orphans = [base for base in without if not swap and base < last]
    going = [both[base] for base in without if base not in orphans]
    plan.phase(Delete(name) for old, _ in going for name in _in_order(old))
    plan.phase(Delete(name) for _, new in going for name in _in_order(new))
    segments = []
    for base, (old, new) in both.items():
        if base in logs:
            segments.append(_segment(entries, base, old, new))
            # One phase for each segment: with three swaps, the middle one renamed and the others not
            # would look as if the middle one were an old segment inside their hull. Its log by itself: a
            # sidecar that lost its suffix before the log did would look like one of the replaced segment.
            renames = [Rename(name, name.removesuffix(names.SWAP)) for name in _in_order(new)]
            plan.phase(renames[:1] if names.LOG in new else ())
            plan.phase(renames[1:] if names.LOG in new else renames)
    return tuple(segments), tuple(orphans)


def _segment(entries: Mapping[str, int], base: int, old: _Files, new: _Files) -> SegmentFiles:
    """Return one segment out of the plain and ``.swap`` files of its base.

    Beside a ``.log.swap`` only ``.swap`` files belong to it. Beside a plain ``.log`` a ``.swap`` file is one
    whose log was renamed a moment ago, and beats a plain one.
    """
    swapped = names.LOG in new
    found = new if swapped else old | new if new else old
    log = new[names.LOG] if swapped else old[names.LOG]
    sidecars: _Files = {kind: name for kind, name in found.items() if kind != names.LOG}
    return SegmentFiles(base, names.SWAP if swapped else "", entries[log], log, sidecars)


def _settle_snapshots(snapshots: list[int], segments: tuple[SegmentFiles, ...], plan: _Plan) -> list[int]:
    """Apply Kafka's rule for producer snapshots without a segment: only the last one stays, and only if it is
    not below the last segment (a clean stop writes one at the log's end).

    Unlike Kafka we keep the snapshot at the base of a replaced segment: no replacement changes the state
    before that offset.
    """
    bases = {segment.base_offset for segment in segments}
    strays = [offset for offset in snapshots if offset not in bases]
    if strays and (not bases or strays[-1] > max(bases)):
        strays.pop()
    plan.phase(Delete(file_name(offset, names.SNAPSHOT)) for offset in strays)
    gone = set(strays)
    return [offset for offset in snapshots if offset not in gone]


def _of_segment(name: str) -> FileName | None:
    """Parse a name that affects ``segments``; None for a snapshot, a torn, unfinished or deleted file."""
    parsed = parse_file(name)
    if parsed is None or parsed.kind not in names.SEGMENT_KINDS:
        return None
    if parsed.suffix in (names.TMP, names.DELETED):
        return None
    return parsed


LISTING_TRIES = 100
LISTING_S = 10.0
"""How often and how long a directory is listed, at least, before `UnsettledError`."""


def list_stats(fs: FileSystem, directory: str) -> dict[str, FileStat]:
    """Return the plain files in a partition directory by name, without those that vanish meanwhile."""
    found = {}
    for name in fs.list_dir(directory):
        try:
            stat = fs.stat(f"{directory}/{name}")
        except FileNotFoundError:
            continue
        if not stat.is_dir:
            found[name] = stat
    return found


def list_files(fs: FileSystem, directory: str) -> dict[str, int]:
    """Return names and sizes of the plain files in a partition directory."""
    return {name: stat.size for name, stat in list_stats(fs, directory).items()}


class UnsettledError(StorageError):
    """A directory changed faster than it could be listed."""


def settled_listing(fs: FileSystem, directory: str) -> tuple[dict[str, int], dict[str, FileStat]]:
    """Return names and sizes that two listings in a row agree on, and every file's stat."""
    before, tries, began_s = list_files(fs, directory), 0, time.monotonic()
    while tries < LISTING_TRIES or time.monotonic() - began_s < LISTING_S:
        stats = list_stats(fs, directory)
        now = {name: stat.size for name, stat in stats.items()}
        found = agreed(before, now)
        if found is not None:
            return found, stats
        before, tries = now, tries + 1
    raise UnsettledError(f"{directory}: changes too fast to be listed; try again")


def settled_view(fs: FileSystem, directory: str) -> tuple[DirectoryView, dict[str, FileStat]]:
    """Return the meaning of two listings in a row that agree, and every file's stat."""
    entries, stats = settled_listing(fs, directory)
    return view_of(entries), stats


def run_actions(context: LogContext, directory: str, actions: Iterable[Action]) -> None:
    """Carry out the leftovers of a view. Stopped anywhere, a new view leads to the same end."""
    for action in actions:
        if isinstance(action, Delete):
            context.handles.forget(f"{directory}/{action.name}")
            try:
                context.fs.remove(f"{directory}/{action.name}")
            except FileNotFoundError:
                continue
        elif isinstance(action, Rename):
            source, target = f"{directory}/{action.source}", f"{directory}/{action.target}"
            context.handles.forget(source)
            context.handles.forget(target)
            try:
                context.fs.rename(source, target)
            except FileNotFoundError:
                continue
        else:
            context.fs.sync_dir(directory)


def swap_end(context: LogContext, directory: str, base_offset: int) -> int:
    """Read a `.swap` segment and return the offset after its last record.

    Raise CorruptionError if any byte of it is damaged: then it must not replace anything.
    """
    path = f"{directory}/{segment_name(base_offset)}.log{SWAP}"
    location = PartitionLocation(context, directory, "", 0)
    segment = Segment(location, base_offset, size=context.fs.stat(path).size, suffix=SWAP)
    end, position = base_offset, 0
    with segment.open_log() as file:
        for at, _, scan in scan_file(file, 0, segment.size, check_crc=True):
            if scan.n:
                end, position = scan.last_offset + 1, at + scan.end
    segment.forget()
    if position < segment.size:
        raise CorruptionError(
            "a segment waiting to be swapped in is damaged; the ones it replaces are still there: remove the"
            " .swap files to keep those",
            path=segment.path(),
            position=position,
        )
    return end


class _Partition(Protocol):
    @property
    def context(self) -> LogContext: ...
    @property
    def directory(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    def segment_infos(self) -> list[SegmentInfo]: ...


def segment_states(log: _Partition, *, deleted: bool = False) -> list[SegmentInfo]:
    """Return every segment of the log, in order; with ``deleted`` also those that wait for removal.

    A segment whose replacement is being written or swapped in is COMPACTING. A deleted one ends at the next
    base offset, of a deleted segment or a live one.
    """
    infos = log.segment_infos()
    listing = list_files(log.context.fs, log.directory)
    view = view_of(listing)
    found = [
        replace(info, state=SegmentState.COMPACTING)
        if info.base_offset in view.cleaning and info.state in (SegmentState.SEALED, SegmentState.COMPACTED)
        else info
        for info in infos
    ]
    if not deleted or not view.deleted:
        return found
    bases = sorted({file.base_offset for file in view.deleted} | {info.base_offset for info in infos})
    gone = [
        SegmentInfo(
            topic=log.topic,
            partition=log.partition,
            base_offset=file.base_offset,
            next_offset=next((base for base in bases if base > file.base_offset), file.base_offset),
            state=SegmentState.DELETED,
            size_bytes=listing[file.name],
            path=f"{log.directory}/{file.name}",
        )
        for file in view.deleted
    ]
    return sorted(
        [*gone, *found], key=lambda info: (info.base_offset, info.state is not SegmentState.DELETED)
    )
