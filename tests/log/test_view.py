"""The meaning of a listing, at every step of a replacement and after a crash at every step of its repair."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError
from stratalog.log.names import SEGMENT_KINDS, FileName, Kind, file_name, parse_file, torn_name
from stratalog.log.segment.directory_state import (
    Action,
    Delete,
    DirectoryView,
    Rename,
    SyncDir,
    agreed,
    view_of,
)

KINDS: tuple[Kind, ...] = SEGMENT_KINDS


def after(entries: Mapping[str, int], actions: Iterable[Action]) -> dict[str, int]:
    """Return the listing that carrying out ``actions`` leaves."""
    left = dict(entries)
    for action in actions:
        if isinstance(action, Delete):
            left.pop(action.name, None)
        elif isinstance(action, Rename) and action.source in left:
            left[action.target] = left.pop(action.source)
    return left


def logs(entries: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in entries.items() if name.endswith((".log", ".log.swap"))}


def files(base: int, suffix: str = "", kinds: tuple[Kind, ...] = ("log", "index")) -> dict[str, int]:
    return {file_name(base, kind, suffix): 1 for kind in kinds}


def deletes(view: DirectoryView) -> set[str]:
    return {action.name for action in view.leftovers if isinstance(action, Delete)}


def renames(view: DirectoryView) -> list[str]:
    return [action.source for action in view.leftovers if isinstance(action, Rename)]


# -- single rules ------------------------------------------------------------------------------------


def test_a_directory_at_rest() -> None:
    entries = {
        **files(0, kinds=KINDS),
        **files(10),
        "00000000000000000010.snapshot": 5,
        "00000000000000000020.snapshot": 5,
        "00000000000000000000.log.torn-77": 9,
        "leader-epoch-checkpoint": 1,
        "partition.metadata": 1,
        "stratalog.tail": 128,
        "notes.txt": 1,
    }
    view = view_of(entries)
    assert [(s.base_offset, s.suffix, s.size) for s in view.segments] == [(0, "", 1), (10, "", 1)]
    assert [view.segments[0].file(kind) for kind in KINDS] == [file_name(0, kind) for kind in KINDS]
    assert view.segments[1].file("index") == file_name(10, "index")
    assert view.segments[1].file("timeindex") is None
    assert view.leftovers == ()
    assert view.undecided == ()
    assert view.snapshots == (10, 20)
    assert view.torn == (FileName(0, "torn", "", 77),)
    assert view.unknown == ("notes.txt",)


def test_an_empty_directory() -> None:
    assert view_of({}) == DirectoryView((), (), (), (), (), (), (), ())


def test_rubbish_by_name_goes() -> None:
    entries = {
        **files(5),
        **files(0, ".deleted"),
        **files(3, ".cleaned"),
        "00000000000000000000.snapshot.deleted": 1,
        "00000000000000000005.seal.tmp": 1,
        "leader-epoch-checkpoint.tmp": 1,
        "notes.txt.tmp": 1,
        "00000000000000000005-0000000001.checkpoint.deleted": 1,
    }
    view = view_of(entries)
    kept = after(entries, view.leftovers)
    assert set(kept) == {
        *files(5),
        "notes.txt.tmp",
        "00000000000000000005-0000000001.checkpoint.deleted",
    }


def test_swaps_at_or_above_the_smallest_cleaned_go_before_the_cleaned() -> None:
    entries = {
        **files(0),
        **files(10),
        **files(10, ".swap"),
        **files(20, ".swap"),
        file_name(10, "timeindex", ".cleaned"): 1,
    }
    view = view_of(entries)
    assert deletes(view) == {*files(10, ".swap"), *files(20, ".swap"), file_name(10, "timeindex", ".cleaned")}
    order = list(view.leftovers)
    assert order[0] == SyncDir()
    assert order.index(Delete(file_name(20, "log", ".swap"))) < order.index(SyncDir(), 1)
    assert order.index(Delete(file_name(10, "timeindex", ".cleaned"))) > order.index(SyncDir(), 1)
    assert [s.log for s in view.segments] == [file_name(0, "log"), file_name(10, "log")]


def test_a_swap_below_every_cleaned_wins() -> None:
    entries = {**files(0), **files(10), **files(0, ".swap"), file_name(5, "log", ".cleaned"): 1}
    view = view_of(entries, lambda base: 10)
    assert set(logs(after(entries, view.leftovers))) == {file_name(0, "log"), file_name(10, "log")}
    assert renames(view) == [file_name(0, "log", ".swap"), file_name(0, "index", ".swap")]


def test_a_swap_replaces_what_it_covers() -> None:
    entries = {**files(0), **files(10), **files(20), **files(30), **files(10, ".swap", ("log",))}
    view = view_of(entries, {10: 30}.__getitem__)
    assert deletes(view) == {*files(10), *files(20)}
    assert [s.log for s in view.segments] == [
        file_name(0, "log"),
        file_name(10, "log", ".swap"),
        file_name(30, "log"),
    ]
    assert view.segments[1].file("index") is None, "the plain index belongs to the segment being replaced"


def test_the_hull_of_several_swaps_counts() -> None:
    entries = {**files(0), **files(7), **files(10), **files(20), **files(0, ".swap"), **files(10, ".swap")}
    view = view_of(entries, {0: 5, 10: 20}.__getitem__)
    assert deletes(view) == {*files(0), *files(7), *files(10)}


def test_an_empty_swap_replaces_its_own_base() -> None:
    entries = {**files(10, kinds=("log", "index", "seal")), **files(10, ".swap", ("log",))}
    view = view_of(entries, {10: 10}.__getitem__)
    assert after(entries, view.leftovers) == files(10, kinds=("log",))


def test_torn_files_outlive_the_segment_they_came_from() -> None:
    torn = "00000000000000000010.log.torn-500"
    entries = {**files(10), torn: 3, **files(10, ".swap")}
    assert torn in after(entries, view_of(entries, lambda base: 20).leftovers)


def test_without_ranges_recovery_stops_and_readers_go_on() -> None:
    entries = {**files(0), **files(10), **files(0, ".swap"), **files(9, ".deleted")}
    view = view_of(entries)
    assert view.undecided == (0,)
    assert deletes(view) == set(files(9, ".deleted"))
    assert renames(view) == []
    assert [s.log for s in view.segments] == [file_name(0, "log"), file_name(10, "log")]
    assert view_of(entries, lambda base: None).undecided == (0,)


def test_a_hole_is_filled_by_the_swap() -> None:
    entries = {
        **files(0),
        **files(10, ".deleted"),
        **files(10, ".swap"),
        file_name(10, "timeindex"): 1,
        **files(20),
    }
    view = view_of(entries)
    assert [s.log for s in view.segments] == [
        file_name(0, "log"),
        file_name(10, "log", ".swap"),
        file_name(20, "log"),
    ]
    assert view.segments[1].file("index") == file_name(10, "index", ".swap")
    assert view.segments[1].file("timeindex") is None


def test_a_swapped_index_beside_a_renamed_log_belongs_to_it() -> None:
    entries = {file_name(0, "log"): 1, file_name(0, "index"): 1, file_name(0, "index", ".swap"): 2}
    view = view_of(entries)
    assert view.segments[0].file("index") == file_name(0, "index", ".swap")
    assert after(entries, view.leftovers) == {file_name(0, "log"): 1, file_name(0, "index"): 2}


def test_sidecars_without_a_log_stay_and_are_told() -> None:
    """They tell of lost records, unless they lie behind the log or something explains them."""
    kept = {**files(10), file_name(0, "index"): 1, file_name(5, "seal"): 1}
    view = view_of({**kept, file_name(20, "seal"): 1})
    assert after({**kept, file_name(20, "seal"): 1}, view.leftovers) == kept
    assert [s.base_offset for s in view.segments] == [10]
    assert view.orphans == (0, 5)


@pytest.mark.parametrize(
    "reason", [file_name(0, "log", ".deleted"), torn_name(0, 0), file_name(7, "index", ".swap")]
)
def test_explained_sidecars_without_a_log_go(reason) -> None:
    entries = {**files(10), file_name(0, "index"): 1, file_name(0, "seal"): 1, reason: 1}
    view = view_of(entries)
    left = after(entries, view.leftovers)
    left.pop(torn_name(0, 0), None)
    assert (left, view.orphans) == (files(10), ())
    deletes = [action.name for action in view.leftovers if isinstance(action, Delete)]
    assert deletes[-1] == reason or reason not in deletes, "the reason goes last"


def test_sidecars_go_before_the_swap_files_that_explain_them() -> None:
    """Stopped after any of its actions, recovery comes to the same end."""
    entries = {**files(0, kinds=("index",)), **files(0, ".swap", ("index",)), **files(1, kinds=("index",))}
    entries |= files(2, kinds=("log",))
    actions = view_of(entries).leftovers
    end = after(entries, actions)
    assert end == files(2, kinds=("log",))
    for cut in range(len(actions)):
        middle = after(entries, actions[:cut])
        assert after(middle, view_of(middle).leftovers) == end


def test_a_torn_end_does_not_explain_a_missing_log() -> None:
    entries = {**files(10), file_name(0, "index"): 1, torn_name(0, 64): 1}
    assert view_of(entries).orphans == (0,)


@pytest.mark.parametrize(
    ("bases", "snapshots", "kept"),
    [
        ([0, 10], [10, 15], (10, 15)),  # a clean stop's
        ([0, 10], [3, 10], (10,)),  # its segment was merged away
        ([0, 10], [3, 12, 15], (15,)),
        ([], [3, 7], (7,)),
        ([20], [3, 7], ()),
    ],
)
def test_snapshots_without_a_segment(bases: list[int], snapshots: list[int], kept: tuple[int, ...]) -> None:
    entries = {name: 1 for base in bases for name in files(base)}
    entries |= {file_name(offset, "snapshot"): 1 for offset in snapshots}
    view = view_of(entries)
    assert view.snapshots == kept
    left = after(entries, view.leftovers)
    assert sorted(name for name in left if name.endswith("snapshot")) == [
        file_name(offset, "snapshot") for offset in kept
    ]


def test_what_cannot_be_read_is_said_not_guessed() -> None:
    def broken(base: int) -> int:
        raise CorruptionError("bad batch", path=file_name(base, "log", ".swap"), position=0)

    with pytest.raises(CorruptionError):
        view_of({**files(0), **files(0, ".swap")}, broken)


def test_agreement_of_listings() -> None:
    still = {**files(0), **files(10), "leader-epoch-checkpoint": 1}
    grown = {**still, file_name(10, "log"): 99, file_name(10, "index"): 9}
    beside = {**still, "leader-epoch-checkpoint": 2, "x.tmp": 1, file_name(0, "seal", ".tmp"): 1}
    for second in (still, grown, beside):
        assert agreed(still, second) == second
    assert agreed({}, {}) == {}
    assert agreed(still, {**still, file_name(0, "log"): 2}) is None
    assert agreed({**still, **files(20)}, still) is None
    without_index = {name: size for name, size in still.items() if name != file_name(10, "index")}
    assert agreed(still, without_index) is None
    assert agreed(still, {**still, file_name(0, "log", ".swap"): 1}) is None
    assert agreed(still, {**still, file_name(10, "log", ".swap"): 1}) is None
    assert agreed({}, files(0)) is None


def test_a_roll_between_two_listings_is_no_contradiction() -> None:
    before = {**files(0), **files(10)}
    after_it = {**files(0), **files(10, kinds=KINDS), file_name(10, "log"): 99}
    known = {**before, file_name(10, "log"): 99}
    assert agreed(before, {**after_it, **files(20), **files(40)}) == known
    assert agreed({**before, **files(40)}, {**after_it, **files(20), **files(40)}) is None  # 20 was missed


# -- a replacement, stopped anywhere ------------------------------------------------------------------


@dataclass
class Replacement:
    """Segments, and the steps by which some of them are replaced. A file's size is its identity."""

    entries: dict[str, int] = field(default_factory=dict)
    covers: dict[int, tuple[int, int]] = field(default_factory=dict)  # identity of a log -> [base, end)
    owner: dict[int, int] = field(default_factory=dict)  # identity of a file -> identity of its log
    steps: list[Rename] = field(default_factory=list)
    old: dict[str, int] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    end: int = 0
    whole_after: int = 0  # steps until the .swap files are whole

    def add(self, base: int, end: int, suffix: str, kinds: tuple[Kind, ...]) -> None:
        log = len(self.owner) + 1
        for kind in kinds:
            identity = len(self.owner) + 1
            self.entries[file_name(base, kind, suffix)] = identity
            self.owner[identity] = log
        self.covers[log] = (base, end)

    def next_offset_of(self, entries: dict[str, int], base: int) -> int:
        return self.covers[entries[file_name(base, "log", ".swap")]][1]

    def view(self, entries: dict[str, int]) -> DirectoryView:
        return view_of(entries, lambda base: self.next_offset_of(entries, base))


KIND_SETS: list[tuple[Kind, ...]] = [("log",), ("log", "index", "timeindex"), KINDS]


@st.composite
def replacements(draw: st.DrawFn) -> Replacement:
    made = Replacement()
    edges = sorted(draw(st.sets(st.integers(0, 40), min_size=3, max_size=7)))
    ranges = list(itertools.pairwise(edges))
    first = draw(st.integers(0, len(ranges) - 1))
    last = draw(st.integers(first, len(ranges) - 1))
    for base, end in ranges:
        made.add(base, end, "", draw(st.sampled_from(KIND_SETS)))
    made.end = ranges[-1][1]
    made.old = logs(made.entries)
    low, high = ranges[first][0], ranges[last][1]
    cuts = draw(st.sets(st.integers(low + 1, high - 1), max_size=2)) if high - low > 1 else set()
    new_edges = [low, *sorted(cuts), high]
    fresh = list(itertools.pairwise(new_edges))
    kinds = {base: draw(st.sampled_from(KIND_SETS)) for base, _ in fresh}
    for base, end in fresh:
        made.add(base, end, ".cleaned", kinds[base])
    readied = [(base, k) for base, _ in reversed(fresh) for k in kinds[base]]
    if draw(st.booleans()):  # our own order: every sidecar first, then the logs
        readied.sort(key=lambda each: each[1] == "log")
    made.steps += [Rename(file_name(b, k, ".cleaned"), file_name(b, k, ".swap")) for b, k in readied]
    made.whole_after = len(made.steps)
    for base, _ in ranges[first : last + 1]:
        plain = [k for k in KINDS if file_name(base, k) in made.entries]
        made.steps += [Rename(file_name(base, k), file_name(base, k, ".deleted")) for k in plain]
    for base, _ in fresh:
        made.steps += [Rename(file_name(base, k, ".swap"), file_name(base, k)) for k in kinds[base]]
    made.new = {n: i for n, i in after(made.entries, made.steps).items() if n.endswith(".log")}
    return made


def settled(made: Replacement, entries: dict[str, int]) -> dict[str, int]:
    """The end of an undisturbed recovery, which must leave nothing to do."""
    end = after(entries, made.view(entries).leftovers)
    assert made.view(end).leftovers == ()
    return end


def check_sidecars(made: Replacement, view: DirectoryView, entries: dict[str, int]) -> None:
    for segment in view.segments:
        for kind in KINDS:
            name = segment.file(kind)
            assert name is None or made.owner[entries[name]] == entries[segment.log]


@given(replacements(), st.data())
def test_recovery_ends_in_old_or_new_and_nothing_between(made: Replacement, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, len(made.steps)))
    entries = after(made.entries, made.steps[:done])
    wanted = made.new if done >= made.whole_after else made.old
    end = settled(made, entries)
    assert logs(end) == wanted
    check_sidecars(made, made.view(end), end)
    # The view tells the end before it is there.
    view = made.view(entries)
    assert {file_name(s.base_offset, "log"): entries[s.log] for s in view.segments} == wanted
    check_sidecars(made, view, entries)


@given(replacements(), st.data())
def test_readers_see_every_offset_once_at_every_step(made: Replacement, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, len(made.steps)))
    entries = after(made.entries, made.steps[:done])
    view = view_of(entries)
    check_sidecars(made, view, entries)
    bases = [segment.base_offset for segment in view.segments]
    assert bases[0] == min(base for base, _ in made.covers.values())
    for segment, below in zip(view.segments, [*bases[1:], made.end], strict=True):
        base, end = made.covers[entries[segment.log]]
        assert base == segment.base_offset
        assert end >= below, "a hole, where each segment is read up to the next one's base"


@given(replacements(), st.data())
def test_a_killed_recovery_begins_again_and_ends_the_same(made: Replacement, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, len(made.steps)))
    entries = after(made.entries, made.steps[:done])
    wanted = settled(made, entries)
    for _ in range(3):
        actions = made.view(entries).leftovers
        entries = after(entries, actions[: data.draw(st.integers(0, len(actions)))])
        assert settled(made, entries) == wanted


@given(replacements(), st.data())
def test_a_power_cut_in_recovery_loses_nothing(made: Replacement, data: st.DataObject) -> None:
    """After a cut, any of the actions since the last directory sync may be there or not."""
    done = data.draw(st.integers(0, len(made.steps)))
    entries = after(made.entries, made.steps[:done])
    wanted = logs(settled(made, entries))
    for _ in range(3):
        actions = list(made.view(entries).leftovers)
        run = actions[: data.draw(st.integers(0, len(actions)))]
        synced = max((i for i, action in enumerate(run) if action == SyncDir()), default=0)
        loose = [action for action in run[synced:] if data.draw(st.booleans())]
        entries = after(entries, [*run[:synced], *loose])
        end = settled(made, entries)
        assert logs(end) == wanted
        check_sidecars(made, made.view(end), end)


# -- any listing at all -------------------------------------------------------------------------------

NAMES = st.one_of(
    st.builds(
        file_name,
        st.integers(0, 6),
        st.sampled_from([*KINDS, "snapshot"]),
        st.sampled_from(["", ".deleted", ".cleaned", ".swap", ".tmp"]),
    ),
    st.sampled_from(
        ["partition.metadata", "partition.metadata.tmp", "x", "00000000000000000003.log.torn-1", "0.log"]
    ),
    st.text(max_size=8),
)


@given(st.dictionaries(NAMES, st.integers(0, 20), max_size=30), st.data())
def test_any_listing_converges(entries: dict[str, int], data: st.DataObject) -> None:
    def view(listing: dict[str, int]) -> DirectoryView:
        # A swap's end depends on its content alone, which renames carry along.
        return view_of(listing, lambda base: base + listing[file_name(base, "log", ".swap")] % 5)

    first = view(entries)
    end = after(entries, first.leftovers)
    rest = view(end)
    assert rest.leftovers == ()
    assert [s.base_offset for s in rest.segments] == [s.base_offset for s in first.segments]
    assert rest.snapshots == first.snapshots
    assert rest.unknown == first.unknown
    assert rest.torn == first.torn
    assert set(first.unknown) <= set(end)
    for name in end:
        parsed = parse_file(name)
        assert parsed is None or parsed.suffix == ""
    cut = data.draw(st.integers(0, len(first.leftovers)))
    middle = after(entries, first.leftovers[:cut])
    assert after(middle, view(middle).leftovers) == end
    readable = view_of(entries)
    for segment in readable.segments:
        assert segment.log in entries
        assert segment.size == entries[segment.log]


def test_actions_are_plain_values() -> None:
    actions: list[Action] = [SyncDir(), Delete("a"), Rename("b", "c"), Rename("missing", "d")]
    assert after({"a": 1, "b": 2}, actions) == {"c": 2}
