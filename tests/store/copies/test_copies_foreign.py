"""Copies of what a real Kafka broker wrote, compacted logs among it; adopting, and handing over."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.format import batch as batches
from stratalog.format import seal as seals
from stratalog.format.metadata import MetaProperties, pack_meta_properties, pack_partition_metadata
from stratalog.fs import RealFileSystem
from stratalog.store.copies import adopt, clone, graduate, restore
from stratalog.store.copies.kafka import COMMIT, METADATA_DIR, STAGING, read_topics

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "kafka-4.3.1"
AFTER = sorted(path.name[:-2] for path in (GOLDEN / "cleaner" / "1-after").iterdir() if path.is_dir())


def read(path: Path, topic: str, partition: int = 0, isolation: str = "read_uncommitted") -> list[Record]:
    with stratalog.open(path, read_only=True) as store:
        return list(store.topic(topic).read(partition, isolation=isolation))


# -- what a broker wrote


@pytest.mark.parametrize("name", AFTER)
def test_a_cut_through_a_compacted_log(name: str, tmp_path: Path) -> None:
    """Batches with holes, empty batches, delete horizons: the cut keeps what is below it and the end."""
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "cleaner" / "1-after", source)
    whole = read(source, name)
    offsets = [record.offset for record in whole]
    cuts = {0, offsets[0], offsets[-1], offsets[len(offsets) // 2] + 1, *range(offsets[3], offsets[3] + 9)}
    with stratalog.open(source, read_only=True) as store:
        end = store.topic(name).high_watermark(0)
    for n, cut in enumerate(sorted({*cuts, end})):
        target = tmp_path / f"c{n}"
        report = restore(source, str(target), to_offsets={(name, 0): cut}, topics=[name])
        assert report.linked_bytes == 0  # another program's files are never linked
        with stratalog.open(target) as store:
            assert list(store.topic(name).read()) == [record for record in whole if record.offset < cut]
            assert store.topic(name).log_end_offset(0) == cut
            assert not stratalog.verify(store).damages
            assert [each for each in store.recovery if each.cuts or each.damages] == []
            assert store.topic(name).append(b"on", b"k").offset == cut
        with stratalog.open(target) as store:
            assert [record.value for record in store.topic(name).read(start=cut)] == [b"on"]
            assert store.topic(name).config.retention_ms == -1


def test_a_clone_of_a_broker_is_one_of_ours(tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "log-dir", source)
    clone(source, str(tmp_path / "ours"))
    with stratalog.open(source, read_only=True) as theirs, stratalog.open(tmp_path / "ours") as ours:
        assert ours.topics() == theirs.topics()
        for name in ours.topics():
            for partition in range(theirs.topic(name).partitions):
                for isolation in ("read_uncommitted", "read_committed"):
                    assert list(ours.topic(name).read(partition, isolation=isolation)) == list(
                        theirs.topic(name).read(partition, isolation=isolation)
                    )
        assert not stratalog.verify(ours).damages


# -- adopting


def metadata_log(path: Path, *payloads: bytes) -> None:
    """A cluster's metadata log with these records."""
    directory = path / METADATA_DIR
    directory.mkdir(parents=True, exist_ok=True)
    records = [Record(b"\x01" + payload, timestamp=1) for payload in payloads]
    encoded, _ = batches.encode_records(
        records, options=batches.BatchOptions(base_offset=0, leader_epoch=0, now_ms=1, max_bytes=1 << 20)
    )
    (directory / f"{0:020d}.log").write_bytes(encoded.data)


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic_record(name: str, topic_id: uuid.UUID) -> bytes:
    return b"\x02\x00" + text(name) + topic_id.bytes + b"\0"


def config_record(topic: str, name: str, value: str | None) -> bytes:
    return b"\x04\x00\x02" + text(topic) + text(name) + text(value) + b"\0"


def test_the_metadata_log_of_a_cluster(tmp_path: Path) -> None:
    first, second = uuid.UUID(int=7), uuid.UUID(int=8)
    metadata_log(
        tmp_path,
        topic_record("a", first),
        config_record("a", "retention.ms", "5"),
        config_record("a", "cleanup.policy", "compact"),
        config_record("a", "cleanup.policy", None),
        topic_record("b", second),
        config_record("b", "retention.ms", "6"),
        b"\x04\x00\x04" + text("1") + text("log.retention.ms") + text("9") + b"\0",  # of a broker
        b"\x09\x00" + second.bytes + b"\0",
        b"\x63\x00 something newer",
        b"\x02\x00\xff\xff",
    )
    found = read_topics(RealFileSystem(), str(tmp_path))
    assert found is not None
    assert {name: (each.id, each.config) for name, each in found.items()} == {
        "a": (first, {"retention.ms": "5"})
    }
    assert read_topics(RealFileSystem(), str(tmp_path / "nowhere")) is None


def test_adopted_topics_keep_everything_and_bring_their_settings(tmp_path: Path) -> None:
    kafka = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "cleaner" / "2-after", kafka)
    before = {path: path.read_bytes() for path in kafka.rglob("*") if path.is_file()}
    name = "clean-transactions"
    ours = tmp_path / "ours"
    preview = adopt(ours, kafka, name, dry_run=True)
    assert preview.dry_run
    assert preview.settings == {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert "settings" in preview.notes[0]
    topic_id = uuid.UUID(int=77)
    metadata_log(
        kafka,
        topic_record(name, topic_id),
        config_record(name, "cleanup.policy", "compact"),
        config_record(name, "made.up.setting", "1"),
    )
    report = adopt(ours, kafka, name, settings={"segment.bytes": 1 << 20})
    assert report.settings == {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "compact",
        "segment.bytes": str(1 << 20),
    }
    assert "made.up.setting" in report.notes[0]
    with stratalog.open(ours) as store:
        assert store.topics() == [name]
        assert not stratalog.verify(store).damages
        assert store.topic(name).id == report.topic_id
        store.topic(name).append(b"on", b"k")
    for isolation in ("read_uncommitted", "read_committed"):
        assert read(ours, name, 0, isolation)[:-1] == read(kafka, name, 0, isolation)
    for path, data in before.items():
        assert path.read_bytes() == data, "the broker's files are only read"
    with pytest.raises(errors.TopicExistsError):
        adopt(ours, kafka, name)
    with pytest.raises(errors.TopicExistsError, match="id"):
        adopt(ours, kafka, name, name="second")


def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    kafka = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "cleaner" / "1-after", kafka)
    lock = RealFileSystem().lock(str(kafka / ".lock"), {})
    with pytest.raises(errors.StoreLockedError, match="stop the broker"):
        adopt(tmp_path / "ours", kafka, "clean-plain")
    lock.release()
    shutil.move(kafka / "clean-plain-0", kafka / "clean-plain-1")
    with pytest.raises(errors.UnknownPartitionError, match="partitions 0 of clean-plain"):
        adopt(tmp_path / "ours", kafka, "clean-plain")
    with stratalog.open(tmp_path / "ours", read_only=True) as store:
        assert store.topics() == []


# -- handing over


def fake_broker(path: Path, topic: str, partitions: int, epoch: int = 0) -> Path:
    """The log directory of a broker that made a topic and was stopped cleanly."""
    path.mkdir()
    (path / "meta.properties").write_bytes(pack_meta_properties(MetaProperties("cluster", 1)))
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    (path / "recovery-point-offset-checkpoint").write_text(f"0\n2\n{topic} 0 0\nother 0 9\n")
    for partition in range(partitions):
        directory = path / f"{topic}-{partition}"
        directory.mkdir()
        (directory / "partition.metadata").write_bytes(pack_partition_metadata(uuid.UUID(int=99)))
        (directory / "leader-epoch-checkpoint").write_text(f"0\n1\n{epoch} 0\n")
        (directory / f"{0:020d}.log").touch()
    return path


def our_store(path: Path, partitions: int = 2) -> Path:
    with stratalog.open(path) as store:
        topic = store.create_topic("t", partitions, {"segment.bytes": 2048, "retention.ms": -1})
        for n in range(200):
            topic.append(b"value-%d" % n, b"k%d" % n, partition=n % partitions, timestamp=1_000 + n)
        topic.delete_records(0, 5)
    return path


def test_a_topic_is_handed_over(tmp_path: Path) -> None:
    ours, kafka = our_store(tmp_path / "ours"), fake_broker(tmp_path / "kafka", "t", 2, epoch=3)
    listing = sorted(path.name for path in kafka.rglob("*"))
    preview = graduate(ours, "t", kafka, dry_run=True)
    assert preview.problems == ()
    assert preview.patched_batches == 200
    assert sorted(path.name for path in kafka.rglob("*")) == listing
    seen: list[tuple[int, int]] = []
    report = graduate(ours, "t", kafka, progress=lambda *now: seen.append(now))
    assert seen[-1][0] == seen[-1][1]
    assert report.patched_batches == 200
    assert any("retention.ms" in step for step in report.operator)
    assert not (kafka / STAGING).exists()
    assert not (kafka / ".kafka_cleanshutdown").exists()
    for partition in range(2):
        directory = kafka / f"t-{partition}"
        assert (directory / "partition.metadata").read_bytes() == pack_partition_metadata(uuid.UUID(int=99))
        assert (directory / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
        assert {path.suffix for path in directory.iterdir()} <= {
            ".log",
            ".index",
            ".timeindex",
            ".snapshot",
            ".metadata",
            "",
        }
        assert read(kafka, "t", partition) == read(ours, "t", partition)
        for path in directory.glob("*.log"):
            data = path.read_bytes()
            assert {header.leader_epoch for header in batches.scan(data)} == {3}
    assert (kafka / "log-start-offset-checkpoint").read_text() == "0\n2\nt 0 5\nt 1 0\n"
    assert (kafka / "recovery-point-offset-checkpoint").read_text() == "0\n1\nother 0 9\n"
    # it is there now, and nothing overwrites it
    with pytest.raises(errors.InvalidArgumentError, match="already holds"):
        graduate(ours, "t", kafka)
    # and back again
    back = adopt(tmp_path / "back", kafka, "t")
    assert back.topic_id == "AAAAAAAAAAAAAAAAAAAAYw"
    for partition in range(2):
        assert read(tmp_path / "back", "t", partition) == read(ours, "t", partition)


def test_an_emptied_leading_segment_goes_along(tmp_path: Path) -> None:
    """Compaction may leave a segment without a batch: the log still begins at its base."""
    ours, kafka = our_store(tmp_path / "ours", 1), fake_broker(tmp_path / "kafka", "t", 1)
    (ours / "log-start-offset-checkpoint").unlink()
    first, second, *_ = sorted((ours / "t-0").glob("*.log"))
    seal = seals.parse(first.with_suffix(".seal").read_bytes())
    empty = seals.SealBuilder().build(cleaned=True, owner=seal.owner, base_offset=seal.base_offset)
    first.with_suffix(".seal").write_bytes(seals.pack(replace(empty, contiguous=False)))
    for path in (first, *(first.with_suffix(suffix) for suffix in (".index", ".timeindex"))):
        path.write_bytes(b"")
    expected = range(int(second.stem), 200)
    assert [record.offset for record in read(ours, "t")] == list(expected)
    graduate(ours, "t", kafka)
    assert min((kafka / "t-0").glob("*.log")).stat().st_size == 0
    assert (kafka / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 0\n"
    clone(ours, str(tmp_path / "clone"))
    restore(ours, str(tmp_path / "restored"), to_offsets={("t", 0): 150})
    for path, end in ((kafka, 200), (tmp_path / "clone", 200), (tmp_path / "restored", 150)):
        with stratalog.open(path, read_only=True) as store:
            topic = store.topic("t")
            assert topic.log_start_offset(0) == 0
            assert [record.offset for record in topic.read(0, start=0)] == [n for n in expected if n < end]


def test_a_lost_segment_is_not_handed_over(tmp_path: Path) -> None:
    ours, kafka = our_store(tmp_path / "ours", 1), fake_broker(tmp_path / "kafka", "t", 1)
    _, second, third, *_ = sorted((ours / "t-0").glob("*.log"))
    for path in (ours / "t-0").glob(f"{second.stem}.*"):
        path.unlink()
    missing = f"offsets {int(second.stem)}-{int(third.stem) - 1} are missing"
    for dry_run in (True, False):
        with pytest.raises(errors.CorruptionError, match=missing):
            graduate(ours, "t", kafka, dry_run=dry_run)
    assert not any(path.stat().st_size for path in (kafka / "t-0").glob("*.log"))
    assert not (kafka / "stratalog.graduating").exists()


def test_what_stands_in_the_way_of_a_hand_over(tmp_path: Path) -> None:
    ours = our_store(tmp_path / "ours")
    kafka = fake_broker(tmp_path / "kafka", "t", 1)
    with pytest.raises(errors.InvalidArgumentError, match="with 2 partitions and retention.ms=-1"):
        graduate(ours, "t", kafka)
    with pytest.raises(errors.UnknownTopicError):
        graduate(ours, "u", kafka)
    with pytest.raises(errors.InvalidArgumentError, match="the store itself"):
        graduate(ours, "t", ours)
    with pytest.raises(errors.NotFoundError, match="meta.properties"):
        graduate(ours, "t", tmp_path)
    lock = RealFileSystem().lock(str(kafka / ".lock"), {})
    with pytest.raises(errors.StoreLockedError, match="stop the broker"):
        graduate(ours, "t", kafka)
    assert "stop the broker" in graduate(ours, "t", kafka, dry_run=True).problems[0]
    lock.release()
    shutil.rmtree(kafka)
    fake_broker(kafka, "t", 2)
    metadata_log(kafka, topic_record("t", uuid.UUID(int=99)), config_record("t", "retention.ms", "3600000"))
    with pytest.raises(errors.InvalidArgumentError, match="set retention.ms=-1 there first"):
        graduate(ours, "t", kafka)
    assert (kafka / ".kafka_cleanshutdown").exists()
    assert graduate(ours, "t", kafka, allow_retention=True).problems == ()


def test_a_hand_over_cut_short_keeps_the_broker_down_and_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, kafka = our_store(tmp_path / "ours"), fake_broker(tmp_path / "kafka", "t", 2)
    rename, left = RealFileSystem.rename, [0]

    def fail(self: RealFileSystem, src: str, dst: str) -> None:
        if STAGING in src and COMMIT not in src:
            left[0] -= 1
            if left[0] < 0:
                raise errors.StorageError("the power went")
        rename(self, src, dst)

    left[0] = 1
    monkeypatch.setattr(RealFileSystem, "rename", fail)
    with pytest.raises(errors.StorageError, match="power"):
        graduate(ours, "t", kafka)
    assert (kafka / STAGING / COMMIT).exists()
    assert "was interrupted" in graduate(ours, "t", kafka, dry_run=True).problems[0]
    monkeypatch.undo()
    with pytest.raises(errors.InvalidArgumentError, match="already holds"):
        graduate(ours, "t", kafka)  # it finished what was begun, and then found it done
    assert not (kafka / STAGING).exists()
    for partition in range(2):
        assert read(kafka, "t", partition) == read(ours, "t", partition)
