"""What a partition directory means: one pure function of its listing, for readers and for recovery.

A directory can be caught at any step of a replacement, Kafka's or ours:

    1  the new segments are written as  X.log.cleaned  X.index.cleaned ...
    2  renamed to .swap, the highest base offset first (by us each .log last, when its sidecars are safe)
    3  the segments they replace are renamed to .deleted, the lowest first (and removed a minute later)
    4  .swap is taken off, the lowest first, the .log of each before its other files

Step 2 going down and a crash in it leave some ``.cleaned`` below or beside every ``.swap``: so a ``.swap`` at
or above the smallest ``.cleaned`` belongs to a replacement that never became whole, and the old segments
are all still there. With no such ``.cleaned`` the ``.swap`` files are whole and win. These are the rules of
Kafka's LogLoader; where its own renames go in any order, ours go up and are separated by directory
syncs, so that a crash between two of them is not the beginning of a loss.

`view_of` touches no disk. Recovery carries ``leftovers`` out in order; stopped after any of them, and after
a power cut that kept any of what was not yet behind a `SyncDir`, a new listing leads to the same end.
Readers only look at ``segments``, and serve from each only offsets below the next one's base: then what
they see is right at every step, even while a replaced segment and its replacement are both in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.log import names
from stratalog.log.names import FileName, Kind, file_name, parse_file


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
    """The files of one segment under their names of the moment.

    While ``.swap`` is being taken off, the ``.log`` may have lost it and an index still carry it, so each
    file is named by itself; None where there is none. ``suffix`` and ``size`` are those of the ``.log``.
    """

    base_offset: int
    suffix: str
    size: int
    log: str
    index: str | None = None
    timeindex: str | None = None
    txnindex: str | None = None
    seal: str | None = None
    keyindex: str | None = None

    @property
    def swapping(self) -> bool:
        """The log has its name already, a sidecar not yet."""
        names_now = (self.index, self.timeindex, self.txnindex, self.seal, self.keyindex)
        return not self.suffix and any(name is not None and name.endswith(names.SWAP) for name in names_now)

    def file(self, kind: Kind) -> str | None:
        """The current name of this segment's file of that kind."""
        match kind:
            case "log":
                return self.log
            case "index":
                return self.index
            case "timeindex":
                return self.timeindex
            case "txnindex":
                return self.txnindex
            case "seal":
                return self.seal
            case "keyindex":
                return self.keyindex
            case _:
                return None


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """What a listing means.

    ``segments``  ascending; see `view_of` for what ``.swap`` files do to it.
    ``leftovers`` what recovery must do, in order; empty for a directory at rest.
    ``undecided`` base offsets of valid ``.swap`` segments whose offset range was not told: ``leftovers``
                  then stops before them, and recovery must ask again with ``next_offset_of``.
    ``snapshots`` offsets of the producer snapshots that stay, ascending.
    ``cleaning``  base offsets of replacements being written (``.cleaned``) or swapped in (``.swap``).
    ``deleted``   the ``.log`` files that wait for their removal.
    ``torn``      what crashes left behind a cut; never touched.
    ``unknown``   names that are none of ours; never touched.
    """

    segments: tuple[SegmentFiles, ...]
    leftovers: tuple[Action, ...]
    undecided: tuple[int, ...]
    snapshots: tuple[int, ...]
    cleaning: tuple[int, ...]
    deleted: tuple[FileName, ...]
    torn: tuple[FileName, ...]
    unknown: tuple[str, ...]


_Files = dict[Kind, str]  # kind -> name


def view_of(
    entries: Mapping[str, int], next_offset_of: Callable[[int], int | None] | None = None
) -> DirectoryView:
    """The meaning of a listing: ``entries`` maps the names of plain files to their sizes.

    ``next_offset_of(base)`` tells where a valid ``.swap`` segment ends (its last offset plus one; None when
    it cannot be told): plain segments whose base lies between the first swap's base and the furthest end
    are the ones being replaced. What it raises passes through, and nothing has been changed then.

    With it, ``segments`` is the log as it will be when ``leftovers`` has been carried out, under the names
    of now. Without it, ``segments`` is what can be served now: a plain ``.log`` where there is one, else the
    valid ``.swap`` that fills the hole its deletion left.
    """
    plain: dict[int, _Files] = {}
    swap: dict[int, _Files] = {}
    cleaned: list[FileName] = []
    doomed: list[str] = []  # .deleted and .tmp: rubbish by their name alone
    snapshots: list[int] = []
    deleted: list[FileName] = []
    torn: list[FileName] = []
    unknown: list[str] = []
    for name in sorted(entries):
        parsed = parse_file(name)
        if parsed is None:
            if name.endswith(names.TMP) and name[: -len(names.TMP)] in names.PARTITION_FILES:
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

    plan = _Plan()
    plan.phase(Delete(name) for name in doomed)
    plan.phase(Delete(name) for name in invalid)
    plan.phase(Delete(file.name) for file in cleaned)

    whole = sorted(base for base, files in swap.items() if names.LOG in files)
    ends = {base: next_offset_of(base) if next_offset_of is not None else None for base in whole}
    undecided = tuple(base for base, end in ends.items() if end is None)
    if undecided:
        segments = _servable(entries, plain, swap)
    else:
        segments = _complete(entries, plain, swap, ends, plan)
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
    )


def agreed(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int] | None:
    """What can be trusted of two listings, taken one after the other; None when they contradict each other.

    A listing is not a snapshot: a file renamed meanwhile can be missed or seen twice. Two that agree in
    every segment file's name and size can be trusted. The last segment of the first one may grow, be sealed
    and be followed by others meanwhile: what is new is left out, so that a log that rolls faster than its
    directory is listed can be read. A replacement that is being written counts when one is being swapped in.
    Other names do not matter.
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


def after(entries: Mapping[str, int], actions: Iterable[Action]) -> dict[str, int]:
    """The listing that carrying out ``actions`` leaves: for previews and tests."""
    left = dict(entries)
    for action in actions:
        if isinstance(action, Delete):
            left.pop(action.name, None)
        elif isinstance(action, Rename) and action.source in left:
            left[action.target] = left.pop(action.source)
    return left


class _Plan:
    """Actions in phases, a directory sync before, between and after them.

    The first one matters too: what the listing shows was perhaps never synced by whoever died, and no
    old file may go before the renames that made it superfluous are known to be on disk.
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
    """The names, the log's first."""
    return [files[kind] for kind in names.SEGMENT_KINDS if kind in files]


def _servable(
    entries: Mapping[str, int], plain: Mapping[int, _Files], swap: Mapping[int, _Files]
) -> tuple[SegmentFiles, ...]:
    """What a reader can open right now, not knowing how far the swaps reach.

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
) -> tuple[SegmentFiles, ...]:
    """Finish the replacement: delete what is replaced, take ``.swap`` off, delete what has no ``.log``."""
    if ends:
        # Kafka takes the hull of all swaps, not each range: a segment whose base fell into a gap that
        # compaction left between two of them is replaced as well. An empty swap replaces its own base.
        low = min(ends)
        high = max(max(base + 1, end or 0) for base, end in ends.items())
        replaced = [base for base in sorted(plain) if low <= base < high]
        plan.phase(Delete(name) for base in replaced for name in _in_order(plain.pop(base)))

    segments = []
    orphans: list[str] = []
    for base in sorted(plain.keys() | swap.keys()):
        old, new = plain.get(base, {}), swap.get(base, {})
        if names.LOG in old or names.LOG in new:
            segments.append(_segment(entries, base, old, new))
            # One phase for each segment: with three swaps, the middle one renamed and the others not
            # would look as if the middle one were an old segment inside their hull. Its log by itself: a
            # sidecar that lost its suffix before the log did would look like one of the replaced segment.
            renames = [Rename(name, name.removesuffix(names.SWAP)) for name in _in_order(new)]
            plan.phase(renames[:1] if names.LOG in new else ())
            plan.phase(renames[1:] if names.LOG in new else renames)
        else:
            orphans += [*_in_order(old), *_in_order(new)]
    plan.phase(Delete(name) for name in orphans)
    return tuple(segments)


def _segment(entries: Mapping[str, int], base: int, old: _Files, new: _Files) -> SegmentFiles:
    """One segment out of plain and ``.swap`` files of its base.

    Beside a ``.log.swap`` only ``.swap`` files belong to it. Beside a plain ``.log`` a ``.swap`` file is one
    whose log was renamed a moment ago, and beats a plain one.
    """
    swapped = names.LOG in new
    found = new if swapped else old | new if new else old
    log = new[names.LOG] if swapped else old[names.LOG]
    return SegmentFiles(
        base_offset=base,
        suffix=names.SWAP if swapped else "",
        size=entries[log],
        log=log,
        index=found.get("index"),
        timeindex=found.get("timeindex"),
        txnindex=found.get("txnindex"),
        seal=found.get("seal"),
        keyindex=found.get("keyindex"),
    )


def _settle_snapshots(snapshots: list[int], segments: tuple[SegmentFiles, ...], plan: _Plan) -> list[int]:
    """Kafka's rule for producer snapshots without a segment: only the last one stays, and only when it is
    not below the last segment (a clean stop writes one at the log's end).

    Unlike Kafka we keep the snapshot at the base of a replaced segment: it tells what was before that
    offset, which no replacement changes.
    """
    bases = {segment.base_offset for segment in segments}
    strays = [offset for offset in snapshots if offset not in bases]
    if strays and (not bases or strays[-1] > max(bases)):
        strays.pop()
    plan.phase(Delete(file_name(offset, names.SNAPSHOT)) for offset in strays)
    gone = set(strays)
    return [offset for offset in snapshots if offset not in gone]


def _of_segment(name: str) -> FileName | None:
    """A file that makes a difference to ``segments``; not a snapshot, a torn, unfinished or deleted one."""
    parsed = parse_file(name)
    if parsed is None or parsed.kind not in names.SEGMENT_KINDS:
        return None
    if parsed.suffix in (names.TMP, names.DELETED):
        return None
    return parsed
