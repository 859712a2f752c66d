"""Repair a closed partition: do exactly what the action names, and report what was lost.

    rebuild-indexes   makes wrong or missing derived files again; no record is touched
    drop-damaged      rewrites damaged segments without their damaged bytes; no offset moves
    truncate          ends the log before the first damaged byte

What is taken out of a log is kept beside it as `.torn`, synced first. A segment is replaced by Kafka's own
rules for a cleaned one (`.cleaned`, `.swap`, then its name; see `view`), so that a crash at any call leaves
the old segment or the new. Offsets once given out are never given out again: where the end of the log
goes, an empty segment at the old end is made first, and `stratalog.tail` points to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from stratalog.config import TopicConfig
from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError, UnsupportedFormat
from stratalog.format import seal as seals
from stratalog.format import tail as tails
from stratalog.format import txn_index
from stratalog.log import names
from stratalog.log.check.damage import UNKNOWN, Damage
from stratalog.log.check.orphans import MISSING_LOG
from stratalog.log.check.segment_check import CheckedSegment
from stratalog.log.check.verify import check_files, check_segments, is_named, verify_partition
from stratalog.log.context import PartitionLocation
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.segment.directory_state import list_files, run_actions, swap_end, view_of
from stratalog.log.segment.segment import SCAN_BYTES, Segment, owner_of, scan_file
from stratalog.log.write.sync import read_tail

RepairAction = Literal["rebuild-indexes", "drop-damaged", "truncate"]
ACTIONS: tuple[RepairAction, ...] = get_args(RepairAction)
NOTHING = "nothing to do"


@dataclass(slots=True)
class RepairReport:
    """What a repair did or would do, line by line, and what it gave up."""

    actions: list[str] = field(default_factory=list)
    lost: list[Damage] = field(default_factory=list)
    lost_records: int | None = 0
    """None if unknown: compaction leaves offsets without a record."""
    dry_run: bool = False
    left: list[Damage] = field(default_factory=list)
    """What is still damaged after it; empty for a dry run."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RepairReport:
        damages = {name: [Damage(**each) for each in value.get(name, ())] for name in ("lost", "left")}
        return cls(**{**value, **damages})


def check_action(action: str) -> RepairAction:
    """Return ``action``; InvalidArgumentError when there is none of that name."""
    for known in ACTIONS:
        if action == known:
            return known
    raise InvalidArgumentError(f"repair action {action!r} is not known; choose from {', '.join(ACTIONS)}")


def repair_partition(
    location: PartitionLocation,
    config: TopicConfig,
    *,
    action: str,
    dry_run: bool,
) -> RepairReport:
    """Repair a partition that is not open. ``dry_run`` changes nothing and reports the same."""
    action = check_action(action)
    repair = _Repair(location, config, dry_run=dry_run)
    repair.run(action)
    return repair.report


class _Repair:
    def __init__(
        self,
        location: PartitionLocation,
        config: TopicConfig,
        *,
        dry_run: bool,
    ) -> None:
        self.context, self.directory, _, partition = location
        self.fs = self.context.fs
        self.config = config
        self.owner = owner_of(self.fs, self.directory, partition)
        self.report = RepairReport(dry_run=dry_run)
        self._settle_damaged_swap()
        if not dry_run:
            self._settle()
        self.view = PartitionFollower(location)
        self.checked = list(check_segments(self.view))

    def run(self, action: RepairAction) -> None:
        match action:
            case "rebuild-indexes":
                self._rebuild()
            case "drop-damaged":
                self._drop()
            case "truncate":
                self._truncate()
        if not self.report.actions:
            self.report.actions.append(NOTHING)
        if not self.report.dry_run:
            self.report.left = list(verify_partition(self.view).damages)

    def _do(self, line: str, act: Callable[[], None]) -> None:
        self.report.actions.append(line)
        if not self.report.dry_run:
            act()

    def _give_up(self, lost: Iterable[Damage], *, countable: bool) -> None:
        for damage in lost:
            self.report.lost.append(damage)
            known = self.report.lost_records
            self.report.lost_records = known + damage.offsets if countable and known is not None else None

    # -- rebuild-indexes -------------------------------------------------------------------------

    def _rebuild(self) -> None:
        for checked, following in zip(self.checked, [*self.checked[1:], None], strict=True):
            if not checked.intact:
                self.report.actions.append(
                    f"{checked.segment.path()}: damaged; left unchanged, with its indexes;"
                    " drop-damaged or truncate removes the damaged records"
                )
            elif checked.at_rest and checked.segment.size:
                self._rebuild_segment(checked, following)
        for damage in check_files(self.view):
            if not damage.derived:
                continue  # a log that ends too early
            self._do(
                f"{damage.path}: removed ({damage.reason}); it will be rebuilt",
                lambda path=damage.path: self._remove(path),  # type: ignore[misc]
            )

    def _rebuild_segment(self, checked: CheckedSegment, following: CheckedSegment | None) -> None:
        segment = checked.segment
        wrong: dict[str, str] = {kind: damage.reason for kind, damage in checked.sidecars.items()}
        for damage in checked.log:
            wrong["seal"] = damage.reason
        wanted = ["index", "timeindex", "seal"] if not segment.is_active else []
        wanted += ["keyindex"] if self.config.key_index_enable and not segment.is_active else []
        for kind in wanted:
            if kind not in wrong and not self.fs.exists(segment.path(kind)):
                wrong[kind] = "the file is missing"
        if "txnindex" in wrong and checked.aborted is None:
            reason = wrong.pop("txnindex")
            self.report.actions.append(
                f"{segment.path('txnindex')}: wrong ({reason}), and the log can no longer tell what is right"
            )
        if "txnindex" in wrong:
            wrong.setdefault("seal", "it holds the CRC of the transaction index")
        if not wrong:
            return
        end = segment.next_offset if following is None else following.segment.base_offset
        known = checked.seal
        made = segment.derive(self.config.index_interval_bytes, keyed="keyindex" in wrong)
        made.seal = replace(
            made.seal,
            contiguous=made.seal.contiguous
            and made.seal.first_offset == segment.base_offset
            and made.seal.last_offset + 1 == end
            and (known is None or known.contiguous),
        )
        made.seal = replace(
            made.seal, cleaned=known.cleaned if known is not None else not made.seal.contiguous
        )
        # A transaction index that cannot be derived from the log stays, and so does the seal's part about it.
        made.aborted = list(self._still_aborted(segment)) if checked.aborted is None else checked.aborted
        for kind, reason in sorted(wrong.items(), key=lambda each: each[0] == "seal"):
            data = made.pack(kind)
            path = segment.path(kind)
            if data is None:
                self._do(f"{path}: removed ({reason})", lambda path=path: self._remove(path))  # type: ignore[misc]
            else:
                self._do(
                    f"{path}: rebuilt from the log ({reason})",
                    lambda path=path, data=data: self.fs.write_atomic(path, data),  # type: ignore[misc]
                )
        segment.forget()

    # -- drop-damaged ----------------------------------------------------------------------------

    def _drop(self) -> None:
        self._refuse_unsupported()
        end = self._old_end()
        for checked in self.checked:
            lost = [damage for damage in checked.log if not damage.derived]
            if not lost:
                continue
            self._give_up(lost, countable=checked.countable)
            within = [(each.start, min(each.end, checked.segment.size)) for each in lost if each.start >= 0]
            if not within:
                self._accept_gap(checked, lost)
                continue
            if checked.segment.is_active and end > checked.segment.base_offset:
                self._begin_at(end)
            self._replace(checked, [each for each in within if each[0] < each[1]], lost)
        self._remove_orphans()

    def _remove_orphans(self, behind: int = 0) -> None:
        """Accept the loss of logs from an offset on whose sidecars are still there, by removing those."""
        for damage in check_files(self.view):
            if damage.reason != MISSING_LOG or damage.first_offset < behind:
                continue
            stem = damage.path.removesuffix(names.LOG)
            if not is_named(damage, self.report.lost):
                self._give_up([damage], countable=self._was_contiguous(f"{stem}{names.SEAL}"))
            self._do(
                f"{stem}*: removed, the log is gone; lost offsets {_offsets([damage])}",
                lambda stem=stem: self._remove_sidecars(stem),  # type: ignore[misc]
            )

    def _remove_sidecars(self, stem: str) -> None:
        for kind in names.SEGMENT_KINDS[1:]:
            self._remove(stem + kind)

    def _was_contiguous(self, path: str) -> bool:
        try:
            return seals.parse(self.fs.read_file(path)).contiguous
        except (FileNotFoundError, FormatError):
            return False

    def _accept_gap(self, checked: CheckedSegment, lost: list[Damage]) -> None:
        """Write a seal that says that offsets are missing behind the segment."""
        segment = checked.segment
        path, seal = segment.path("seal"), checked.seal
        if seal is None:
            seal = segment.derive(self.config.index_interval_bytes, keyed=False).seal
        self._do(
            f"{path}: recorded the gap after this segment (offsets {_offsets(lost)}) as accepted",
            lambda: self.fs.write_atomic(path, seals.pack(replace(seal, contiguous=False))),
        )
        checked.segment.forget()

    # -- truncate --------------------------------------------------------------------------------

    def _truncate(self) -> None:
        self._refuse_unsupported()
        at = next((i for i, checked in enumerate(self.checked) if not checked.intact), None)
        if at is None:
            return
        checked, later = self.checked[at], self.checked[at + 1 :]
        segment = checked.segment
        first = next(damage for damage in checked.log if not damage.derived)
        position = min(first.start, segment.size) if first.start >= 0 else segment.size
        cut = self._offset_at(segment, position)
        end = self._old_end()
        lost = []
        if later or end > cut or position < segment.size:
            last = (later[0].segment.base_offset if later else end) - 1
            span = (cut, last) if last >= cut else (UNKNOWN, UNKNOWN)
            lost.append(Damage(segment.path(), position, segment.size, *span, first.reason))
        ends = [each.segment.base_offset for each in later[1:]] + [end]
        for behind, following in zip((each.segment for each in later), ends, strict=False):
            if following > behind.base_offset or behind.size:
                span = (behind.base_offset, following - 1)
                lost.append(Damage(behind.path(), 0, behind.size, *span, "after the cut"))
        self._give_up(lost, countable=all(each.countable for each in (checked, *later)))
        snapshots = [name for name in list_files(self.fs, self.directory) if name[20:] == ".snapshot"]
        last_one = later[-1].segment if later else None
        if last_one is not None and last_one.size == 0 and last_one.base_offset == end:
            later.pop()
        else:
            self._begin_at(end)
        # From the end down: stopped in between, what is left is the log up to some point, and its old end.
        for each in reversed(later):
            self._set_aside(each.segment)
        for name in snapshots:
            if int(name[:20]) > cut:
                path = f"{self.directory}/{name}"
                self._do(f"{path}: removed, it is after the cut", lambda path=path: self._remove(path))  # type: ignore[misc]
        self._replace(checked, [(position, segment.size)] if position < segment.size else [], lost[:1])
        self._remove_orphans(cut)

    def _set_aside(self, segment: Segment) -> None:
        target = self._torn_path(segment.base_offset, 0)

        def act() -> None:
            self.fs.rename(segment.path(), target)
            self.fs.sync_dir(self.directory)
            for kind in names.SEGMENT_KINDS[1:]:
                self._remove(segment.path(kind))
            segment.forget()

        if segment.size:
            self._do(f"{segment.path()}: kept as {target}", act)
        else:
            self._do(f"{segment.path()}: removed, it was empty", lambda: self._remove(segment.path()))

    def _offset_at(self, segment: Segment, position: int) -> int:
        """Return the offset after the last batch before ``position``."""
        offset = segment.base_offset
        with segment.open_log() as file:
            for _, _, scan in scan_file(file, 0, position):
                offset = scan.last_offset + 1 if scan.n else offset
        return offset

    # -- what both do ----------------------------------------------------------------------------

    def _refuse_unsupported(self) -> None:
        for checked in self.checked:
            if checked.unsupported:
                raise UnsupportedFormat(
                    f"{checked.segment.path()}: {checked.log[0].reason}; that is not damage"
                )

    def _old_end(self) -> int:
        """Return the first offset that was never assigned, as far as anything tells."""
        try:
            tail = read_tail(self.fs, self.directory, self.owner)
        except FormatError:
            tail = None
        known = [0, self.view.next_offset, *(checked.next_offset for checked in self.checked)]
        known += [damage.last_offset + 1 for checked in self.checked for damage in checked.log]
        if tail is not None:
            known += [tail.synced_offset, tail.high_watermark]
        return max(known)

    def _begin_at(self, offset: int) -> None:
        """Create an empty segment at the old end of the log, and point the tail there.

        Both slots of the tail are written and synced: with the old value in either, the next open would scan
        a segment that is about to lose offsets, and cut it there.
        """
        path = f"{self.directory}/{names.segment_name(offset)}.log"

        def act() -> None:
            self.fs.open(path, "x").close()
            self.fs.sync_dir(self.directory)
            try:
                known = read_tail(self.fs, self.directory, self.owner)
            except FormatError:
                known = None
            if known is None:
                return
            flags = known.flags & ~tails.CLEAN
            with self.fs.open(f"{self.directory}/{names.TAIL}", "w") as file:
                for generation in (known.generation + 1, known.generation + 2):
                    slot = tails.Tail(generation, offset, 0, offset, offset, flags, self.owner)
                    file.pwrite(tails.pack_slot(slot), tails.slot_position(generation))
                    file.sync()

        self._do(f"{path}: a new segment, so that no offset below {offset} is given out again", act)

    def _replace(self, checked: CheckedSegment, dropped: list[tuple[int, int]], lost: list[Damage]) -> None:
        """Replace a segment by one that lacks the bytes of ``dropped``."""
        segment = checked.segment
        good, at = [], 0
        for start, stop in [*dropped, (segment.size, segment.size)]:
            if at < start:
                good.append((at, start))
            at = stop
        size = sum(stop - start for start, stop in good)
        for start, stop in dropped:
            self._save(segment, start, stop)
        why = "; ".join(dict.fromkeys(damage.reason for damage in lost))
        self._do(
            f"{segment.path()}: kept {size} of {segment.size} bytes, lost offsets {_offsets(lost)} ({why})",
            lambda: self._swap_in(checked, good, size),
        )

    def _save(self, segment: Segment, start: int, stop: int) -> None:
        target = self._torn_path(segment.base_offset, start)

        def act() -> None:
            with segment.open_log() as source, self.fs.open(target, "x") as copy:
                _copy(source.pread, copy.pwrite, [(start, stop)])
                copy.sync()

        self._do(f"{target}: holds bytes {start} to {stop - 1} of the log", act)

    def _swap_in(self, checked: CheckedSegment, good: list[tuple[int, int]], size: int) -> None:
        old = checked.segment
        new = Segment(
            old.location,
            old.base_offset,
            size=size,
            next_offset=old.next_offset,
            suffix=names.CLEANED,
        )
        self._remove(new.path())
        with old.open_log() as source, self.fs.open(new.path(), "x") as copy:
            _copy(source.pread, copy.pwrite, good)
            copy.sync()
        keyed = self.config.key_index_enable or self.fs.exists(old.path("keyindex"))
        made = new.derive(self.config.index_interval_bytes, keyed=keyed)
        # Not contiguous: a reader must not take the gap for damage, and checks block CRCs instead.
        made.seal = replace(
            made.seal, contiguous=False, cleaned=checked.seal is not None and checked.seal.cleaned
        )
        made.aborted = list(self._still_aborted(old))
        kinds = made.write(new)
        self.fs.sync_dir(self.directory)
        swap = new.path("log").removesuffix(names.CLEANED)
        for each in kinds:
            name = new.path(each)
            self.fs.rename(name, name.removesuffix(names.CLEANED) + names.SWAP)
        self.fs.sync_dir(self.directory)
        new.forget()
        old.forget()
        self.context.handles.forget(swap + names.SWAP)
        self._settle()

    def _still_aborted(self, segment: Segment) -> tuple[txn_index.AbortedTxn, ...]:
        try:
            return segment.aborted()
        except FormatError:
            return ()

    def _settle_damaged_swap(self) -> None:
        """Remove a damaged replacement while the segments it replaces exist; else give it its name.

        Segments are replaced from the lowest on, so the log at the first one's base tells. A replacement that
        stays is then a damaged segment like any other.
        """
        files = list_files(self.fs, self.directory)
        swaps = sorted(name for name in files if name.endswith(names.SWAP))
        bases = [int(name[:20]) for name in swaps if name.endswith(f".log{names.SWAP}")]
        try:
            view_of(files, lambda base: swap_end(self.context, self.directory, base))
            return
        except CorruptionError as error:
            damaged = error
        if f"{names.segment_name(bases[0])}.log" in files:
            for name in swaps:
                self._do(
                    f"{self.directory}/{name}: removed; the segments it was to replace are still there",
                    lambda path=f"{self.directory}/{name}": self._remove(path),  # type: ignore[misc]
                )
            return
        for name in sorted(swaps, key=lambda each: (each[:20], not each.endswith(f".log{names.SWAP}"))):
            final = name.removesuffix(names.SWAP)
            self._do(
                f"{self.directory}/{name}: named {final}, damaged as it is ({damaged.reason.split(';')[0]})",
                lambda source=name, target=final: self._rename(source, target),  # type: ignore[misc]
            )

    def _rename(self, source: str, target: str) -> None:
        for name in (source, target):
            self.context.handles.forget(f"{self.directory}/{name}")
        self.fs.rename(f"{self.directory}/{source}", f"{self.directory}/{target}")
        self.fs.sync_dir(self.directory)

    def _settle(self) -> None:
        """Finish a half-done replacement, as recovery would."""
        entries = list_files(self.fs, self.directory)
        view = view_of(entries, lambda base: swap_end(self.context, self.directory, base))
        run_actions(self.context, self.directory, view.leftovers)

    def _torn_path(self, base_offset: int, position: int) -> str:
        copy = 0
        while self.fs.exists(path := f"{self.directory}/{names.torn_name(base_offset, position, copy)}"):
            copy += 1
        return path

    def _remove(self, path: str) -> None:
        self.context.handles.forget(path)
        try:
            self.fs.remove(path)
        except FileNotFoundError:
            return
        self.fs.sync_dir(self.directory)


def _copy(
    read: Callable[[int, int], bytes], write: Callable[[bytes, int], None], ranges: Iterable[tuple[int, int]]
) -> None:
    to = 0
    for start, stop in ranges:
        while start < stop:
            data = read(min(SCAN_BYTES, stop - start), start)
            if not data:
                raise InvalidArgumentError(
                    f"the log ended at byte {start} while it was copied: is it in use?"
                )
            write(data, to)
            start, to = start + len(data), to + len(data)


def _offsets(lost: Iterable[Damage]) -> str:
    spans = [
        str(each.first_offset) if each.offsets == 1 else f"{each.first_offset} to {each.last_offset}"
        for each in lost
        if each.offsets
    ]
    return ", ".join(spans) or "none"
