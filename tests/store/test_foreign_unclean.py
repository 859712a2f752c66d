"""A broker's directory after an unclean stop: its recovery point is the synced end of the log."""

from __future__ import annotations

import shutil
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
    root = tmp_path / "log-dir"
    root.mkdir()
    shutil.copytree(GOLDEN / f"{TOPIC}-0", root / f"{TOPIC}-0")
    for path in [root / f"{TOPIC}-0", *(root / f"{TOPIC}-0").iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.copyfile(GOLDEN / "meta.properties", root / "meta.properties")
    recovery_point(root, END)
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
