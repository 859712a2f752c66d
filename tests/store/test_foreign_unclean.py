"""A broker's directory after an unclean stop: its recovery point is the synced end of the log."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.store.lifecycle.reports import verify

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"
TOPIC, END = "codec-none", 600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One topic of the broker, without the mark of a clean stop."""
    return copy_of(TOPIC, 0, tmp_path, END)


def copy_of(topic: str, partition: int, tmp_path: Path, synced: int) -> Path:
    root, name = tmp_path / "log-dir", f"{topic}-{partition}"
    root.mkdir()
    shutil.copytree(GOLDEN / name, root / name)
    for path in [root / name, *(root / name).iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for file in ("meta.properties", "cleaner-offset-checkpoint"):
        shutil.copyfile(GOLDEN / file, root / file)
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{topic} {partition} {synced}\n")
    return root


def recovery_point(root: Path, offset: int) -> None:
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {offset}\n")


def logs(root: Path) -> list[Path]:
    return sorted((root / f"{TOPIC}-0").glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def batch_at(path: Path, number: int) -> batches.BatchHeader:
    """The n-th batch of a log."""
    return list(batches.scan(path.read_bytes()))[number]


def read_all(topic: stratalog.Topic) -> list[int]:
    return [record.offset for record in topic.read(0, skip_damaged=True)]


def raise_base(path: Path, bad: batches.BatchHeader, by: int) -> None:
    """Change the base offset of a batch, which no CRC covers."""
    data = bytearray(path.read_bytes())
    batches.write_field(data, "baseOffset", bad.base_offset + by, bad.position)
    path.write_bytes(data)


def without(bad: batches.BatchHeader, end: int = END) -> list[int]:
    return [n for n in range(end) if not bad.base_offset <= n <= bad.last_offset]


def torn(root: Path) -> list[Path]:
    return list((root / f"{TOPIC}-0").glob("*.torn*"))


@pytest.mark.parametrize("clean", [False, True])
def test_a_move_cuts_nothing_at_a_bad_batch_below_the_synced_end(root: Path, clean: bool) -> None:
    if clean:
        shutil.copyfile(GOLDEN / ".kafka_cleanshutdown", root / ".kafka_cleanshutdown")
        (root / "recovery-point-offset-checkpoint").unlink()
    last = logs(root)[-1]
    bad = batch_at(last, 0)
    flip(last, bad.position + 70)
    other = root.parent / "other"
    with stratalog.open([root, other], background=False) as store:
        topic = store.topic(TOPIC)
        before = read_all(topic)
        for place in (other, root):
            store.move_partition(TOPIC, 0, str(place))
            assert read_all(topic) == before
            assert topic.high_watermark(0) == END
            assert not torn(place)
        store.repair(TOPIC, 0, action="rebuild-indexes")
        assert read_all(topic) == before
        assert not torn(root)


def test_a_bad_batch_below_the_recovery_point_is_corruption(root: Path) -> None:
    last = logs(root)[-1]
    bad = batch_at(last, 0)
    flip(last, bad.position + 70)
    size = last.stat().st_size
    intact = [n for n in range(END) if not bad.base_offset <= n <= bad.last_offset]
    with stratalog.open(root, background=False) as store:
        topic = store.topic(TOPIC)
        [report] = store.recovery
        assert not report.cuts
        assert f"offsets {bad.base_offset} to {bad.last_offset}" in report.damages[0]
        assert topic.append(b"more", partition=0, sync=True).offset == END
        with pytest.raises(CorruptionError) as raised:
            list(topic.read(0))
        assert raised.value.position == bad.position
        assert read_all(topic) == [*intact, END]
        [damage] = [each for each in verify(store).damages if not each.derived]
        assert (damage.first_offset, damage.last_offset) == (bad.base_offset, bad.last_offset)
    assert not torn(root)
    assert last.stat().st_size >= size
    with stratalog.open(root, background=False) as store:
        assert read_all(store.topic(TOPIC)) == [*intact, END]


def test_damage_at_the_very_end_stays_and_the_log_goes_on_in_another_segment(root: Path) -> None:
    last = logs(root)[-1]
    bad = batch_at(last, -1)
    flip(last, bad.position + 70)
    with stratalog.open(root, background=False) as store:
        assert store.topic(TOPIC).append(b"more", partition=0, sync=True).offset == END
        assert read_all(store.topic(TOPIC)) == [*range(bad.base_offset), END]
        assert not verify(store).ok
    assert not torn(root)
    assert int(logs(root)[-1].stem) == END


def test_past_the_recovery_point_a_bad_batch_is_a_torn_tail(root: Path) -> None:
    last = logs(root)[-1]
    bad = batch_at(last, 1)
    recovery_point(root, bad.base_offset)
    flip(last, bad.position + 70)
    with stratalog.open(root, background=False) as store:
        [report] = store.recovery
        assert len(report.cuts) == 1
        assert not report.damages
        assert read_all(store.topic(TOPIC)) == list(range(bad.base_offset))
    assert len(torn(root)) == 1


@pytest.mark.parametrize("which", ["last", "all"])
def test_synced_segments_that_are_gone_are_damage_and_their_offsets_are_not_given_out_again(
    root: Path, which: str
) -> None:
    last = logs(root)[-1]
    first_lost = int(last.stem)
    for path in [last] if which == "last" else logs(root):
        path.unlink()
    with stratalog.open(root, background=False) as store:
        [report] = store.recovery
        assert any("were synced and are missing" in line for line in report.damages)
        assert not report.cuts
        assert store.topic(TOPIC).append(b"more", partition=0, sync=True).offset == END
        kept = range(first_lost) if which == "last" else ()
        assert read_all(store.topic(TOPIC)) == [*kept, END]


def test_a_segment_cut_short_below_the_recovery_point_keeps_the_later_ones(root: Path) -> None:
    """Its last batch is cut in two: nothing of it is removed, and the segments behind it are read."""
    short = logs(root)[-2]
    bad = batch_at(short, -1)
    recovery_point(root, int(logs(root)[-1].stem))
    with short.open("r+b") as file:
        file.truncate(bad.position + 30)
    with stratalog.open(root, background=False) as store:
        assert not any(report.cuts for report in store.recovery)
        found = read_all(store.topic(TOPIC))
    assert found == [n for n in range(END) if not bad.base_offset <= n <= bad.last_offset]
    assert short.stat().st_size == bad.position + 30


RAISES = pytest.mark.parametrize("by", [1, 2, 1 << 20, 1 << 40])
"""Less than the batch holds, past the segment, and past all that a segment can hold."""


@RAISES
@pytest.mark.parametrize("number", [0, 3])
def test_a_base_offset_raised_below_the_recovery_point_costs_its_batch(
    root: Path, by: int, number: int
) -> None:
    last = logs(root)[-1]
    bad = batch_at(last, number)
    raise_base(last, bad, by)
    size = last.stat().st_size
    with stratalog.open(root, background=False) as store:
        topic = store.topic(TOPIC)
        [report] = store.recovery
        assert not report.cuts
        assert f"offsets {bad.base_offset} to {bad.last_offset}" in report.damages[0]
        with pytest.raises(CorruptionError) as raised:
            list(topic.read(0))
        assert raised.value.position == bad.position
        assert read_all(topic) == without(bad)
        assert topic.append(b"more", partition=0, sync=True).offset == END
    assert not torn(root)
    assert last.stat().st_size >= size
    with stratalog.open(root, background=False) as store:
        assert read_all(store.topic(TOPIC)) == [*without(bad), END]
        [damage] = [each for each in verify(store).damages if not each.derived]
        assert (damage.first_offset, damage.last_offset) == (bad.base_offset, bad.last_offset)


@RAISES
def test_a_base_offset_raised_in_a_segment_that_is_not_scanned_is_named_by_readers(
    root: Path, by: int
) -> None:
    first = logs(root)[0]
    bad = batch_at(first, 2)
    raise_base(first, bad, by)
    for _ in range(2):
        with stratalog.open(root, background=False) as store:
            topic = store.topic(TOPIC)
            with pytest.raises(CorruptionError) as raised:
                list(topic.read(0))
            assert raised.value.position == bad.position
            assert read_all(topic) == without(bad)
            [damage] = [each for each in verify(store).damages if not each.derived]
            assert (damage.first_offset, damage.last_offset) == (bad.base_offset, bad.last_offset)


@RAISES
@pytest.mark.parametrize("number", [1, -1])
def test_past_the_recovery_point_the_log_is_cut_at_the_batch_with_a_raised_base_offset(
    root: Path, by: int, number: int
) -> None:
    """The last one leaves a gap and nothing behind it; the others are told by the batch that follows."""
    log = logs(root)[1]
    recovery_point(root, int(log.stem))
    bad = batch_at(log, number)
    raise_base(log, bad, by)
    with stratalog.open(root, background=False) as store:
        [report] = store.recovery
        assert len(report.cuts) == 1
        assert read_all(store.topic(TOPIC)) == list(range(bad.base_offset))
        assert store.topic(TOPIC).append(b"more", partition=0, sync=True).offset == bad.base_offset
    with stratalog.open(root, background=False) as store:
        assert read_all(store.topic(TOPIC)) == list(range(bad.base_offset + 1))
        assert verify(store).ok


@RAISES
@pytest.mark.parametrize("stop", ["unsynced", "synced", "clean"])
def test_a_base_offset_raised_at_the_very_end_is_told_by_the_gap_it_leaves(
    root: Path, by: int, stop: str
) -> None:
    last = logs(root)[-1]
    bad = batch_at(last, -1)
    raise_base(last, bad, by)
    synced = stop != "unsynced"
    if not synced:
        recovery_point(root, bad.base_offset)
    if stop == "clean":
        shutil.copyfile(GOLDEN / ".kafka_cleanshutdown", root / ".kafka_cleanshutdown")
    with stratalog.open(root, background=False) as store:
        topic = store.topic(TOPIC)
        [report] = store.recovery
        assert bool(report.damages) == synced
        assert bool(report.cuts) != synced
        assert read_all(topic) == list(range(bad.base_offset))
        appended = topic.append(b"more", partition=0, sync=True).offset
        assert appended == (END if synced else bad.base_offset)
    assert bool(torn(root)) != synced
    with stratalog.open(root, background=False) as store:
        assert read_all(store.topic(TOPIC)) == [*range(bad.base_offset), appended]
        assert verify(store).ok != synced


def test_a_timestamp_of_a_damaged_batch_gets_into_no_index(tmp_path: Path) -> None:
    """The broker's time index has an entry behind it: the log can still be appended to and closed."""
    root, end = copy_of("idempotent", 1, tmp_path, 300), 300
    [log] = (root / "idempotent-1").glob("*.log")
    bad = batch_at(log, -4)
    flip(log, bad.position + 37)
    with stratalog.open(root, background=False) as store:
        assert store.topic("idempotent").append(b"more", partition=1, sync=True).offset == end
    with stratalog.open(root, background=False) as store:
        topic = store.topic("idempotent")
        found = [record.offset for record in topic.read(1, skip_damaged=True)]
        assert found == [*without(bad, end), end]
        [damage] = [each for each in verify(store).damages if each.path == str(log)]
        assert (damage.first_offset, damage.last_offset) == (bad.base_offset, bad.last_offset)


@pytest.mark.parametrize("segment", [0, -1])
def test_zeros_before_the_end_are_damage_and_not_reserved_space(root: Path, segment: int) -> None:
    log = logs(root)[segment]
    bad = batch_at(log, 1)
    data = log.read_bytes()
    log.write_bytes(data[: bad.position] + bytes(bad.size) + data[bad.position + bad.size :])
    for _ in range(2):
        with stratalog.open(root, background=False) as store:
            with pytest.raises(CorruptionError, match="zeros"):
                list(store.topic(TOPIC).read(0))
            assert read_all(store.topic(TOPIC)) == without(bad)
            assert not verify(store).ok


@pytest.mark.parametrize("segment", [0, -1])
def test_batches_in_the_wrong_order_are_named_and_the_next_start_reads_the_same(
    root: Path, segment: int
) -> None:
    log = logs(root)[segment]
    first, second = batch_at(log, 2), batch_at(log, 3)
    data, middle, end = log.read_bytes(), second.position, second.position + second.size
    swapped = data[: first.position] + data[middle:end] + data[first.position : middle] + data[end:]
    log.write_bytes(swapped)
    for _ in range(2):
        with stratalog.open(root, background=False) as store:
            with pytest.raises(CorruptionError, match="at least"):
                list(store.topic(TOPIC).read(0))
            assert read_all(store.topic(TOPIC)) == without(first)
            assert not verify(store).ok


def test_batches_that_are_there_twice_are_read_once(root: Path) -> None:
    last = logs(root)[-1]
    first, second = batch_at(last, 1), batch_at(last, 3)
    data, end = last.read_bytes(), second.position + second.size
    last.write_bytes(data[:end] + data[first.position : end] + data[end:])
    with stratalog.open(root, background=False) as store:
        assert read_all(store.topic(TOPIC)) == list(range(END))
        assert not verify(store).ok
        assert store.topic(TOPIC).append(b"more", partition=0, sync=True).offset == END
    with stratalog.open(root, background=False) as store:
        assert read_all(store.topic(TOPIC)) == list(range(END + 1))
        assert not verify(store).ok


def test_a_damaged_marker_of_a_transaction_costs_itself(tmp_path: Path) -> None:
    """Producers are replayed from batches with a valid CRC only."""
    root = copy_of("transactions", 0, tmp_path, 192)
    last = max((root / "transactions-0").glob("*.log"))
    marker = next(each for each in reversed(list(batches.scan(last.read_bytes()))) if each.is_control)
    with stratalog.open(root, read_only=True) as store:
        before = [record.offset for record in store.topic("transactions").read(0)]
    flip(last, marker.position + marker.size - 1)
    with stratalog.open(root, background=False) as store:
        found = [record.offset for record in store.topic("transactions").read(0, skip_damaged=True)]
        assert found == before
        assert not verify(store).ok


def test_gaps_in_the_last_segment_of_a_compacted_topic_are_meant(tmp_path: Path) -> None:
    """A follower of a cleaned log has them in its active segment."""
    root, partition = copy_of("compacted", 0, tmp_path, 0), "compacted-0"
    cleaned = min((root / partition).glob("*.log"))
    for path in sorted((root / partition).iterdir()):
        if path.name[:20].isdigit() and path.stem != cleaned.stem:
            path.unlink()
    headers = list(batches.scan(cleaned.read_bytes()))
    assert any(after.base_offset > before.next_offset for before, after in pairwise(headers))
    found = []
    for _ in range(2):
        with stratalog.open(root, background=False) as store:
            found.append([record.offset for record in store.topic("compacted").read(0)])
            assert verify(store).ok
    assert found[0] == found[1]
    assert len(found[0]) == sum(header.count for header in headers)
