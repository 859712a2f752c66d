"""A topic as one file: out, checked, in again; and every way in which the file can be wrong."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.store.copies import check_export, clones, export_topic, import_topic
from stratalog.store.copies.topic_file import BLOCK, MANIFEST, parse_header, parse_manifest, tar_header
from stratalog.testing import MemoryFileSystem
from tests.store.copies.copies_life import CONFIG, LIVES, TOPIC, Life

FILE = "/out/topic.tar"

HOLDER = """
import sys, stratalog
with stratalog.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
"""


def read_all(
    store: stratalog.Store, name: str = TOPIC, isolation: str = "read_uncommitted"
) -> list[list[Record]]:
    topic = store.topic(name)
    return [list(topic.read(partition, isolation=isolation)) for partition in range(topic.partitions)]


def small(fs: MemoryFileSystem) -> bytes:
    """An exported topic of a few segments, as bytes."""
    with stratalog.open("/small", CONFIG, fs=fs, background=False) as store:
        topic = store.create_topic(TOPIC, 2, {"segment.bytes": 1024})
        for n in range(60):
            topic.append(b"value-%d" % n, b"k", partition=n % 2, timestamp=1_700_000_000_000 + n)
        out = io.BytesIO()
        export_topic(store, TOPIC, out)
        return out.getvalue()


@pytest.mark.parametrize("seed", range(LIVES // 3))
def test_any_life_goes_out_and_in_again(seed: int) -> None:
    life = Life(seed + 2000, archived=seed % 3 == 0)
    seen: list[tuple[int, int]] = []
    report = export_topic(life.store, TOPIC, FILE, progress=lambda *now: seen.append(now))
    assert seen[-1][0] == seen[-1][1] == sum(each.copied_bytes for each in report.partitions)
    assert life.fs.stat(FILE).size == report.size_bytes
    checked = check_export(FILE, fs=life.fs)
    assert (checked.topic, checked.settings, checked.size_bytes) == (
        TOPIC,
        report.settings,
        report.size_bytes,
    )
    with stratalog.open("/other", CONFIG, fs=life.fs, clock=life.clock, background=False) as other:
        brought = import_topic(other, FILE)
        assert brought.settings == report.settings
        assert not stratalog.verify(other).damages
        for isolation in ("read_uncommitted", "read_committed"):
            expected = [
                life.expected(p, life.topic.high_watermark(p), isolation) for p in range(life.partitions)
            ]
            assert read_all(other, isolation=isolation) == expected
        assert other.topic(TOPIC).config == life.topic.config
        for partition in range(life.partitions):
            assert other.topic(TOPIC).log_start_offset(partition) == life.topic.log_start_offset(partition)
            assert other.topic(TOPIC).log_end_offset(partition) == life.topic.high_watermark(partition)
            other.topic(TOPIC).append(b"on", b"k", partition=partition)
        again = import_topic(other, FILE, name="twin")
        assert again.topic_id != brought.topic_id
    with stratalog.open("/other", CONFIG, fs=life.fs, clock=life.clock, background=False) as other:
        assert other.topics() == [TOPIC, "twin"]
        found = [record._replace(topic=TOPIC) for each in read_all(other, "twin") for record in each]
        assert found == [
            record
            for p in range(life.partitions)
            for record in life.expected(p, life.topic.high_watermark(p))
        ]
        assert not any(name.endswith("-future") for name in life.fs.list_dir("/other"))
    assert [each.kind for each in clones(life.root, fs=life.fs)[0]] == ["export"]
    life.store.close()


def test_any_tar_can_list_and_unpack_it(tmp_path: Path) -> None:
    data = small(MemoryFileSystem())
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert names[0] == MANIFEST
        assert names[1] == "0/00000000000000000000.log"
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name == MANIFEST:
                manifest = parse_manifest(content)
            assert len(content) == member.size
    assert [each.name for each in manifest.members] == names[1:]


def test_through_a_pipe_both_ways() -> None:
    fs = MemoryFileSystem()
    data = small(fs)

    class Dribble:
        """A stream that cannot be sought and gives little at a time."""

        def __init__(self) -> None:
            self.file = io.BytesIO(data)

        def read(self, size: int) -> bytes:
            return self.file.read(min(size, 777))

    with stratalog.open("/to", CONFIG, fs=fs, background=False) as store:
        import_topic(store, Dribble())
        assert [len(each) for each in read_all(store)] == [30, 30]


@pytest.mark.parametrize("part", range(40))
def test_damage_anywhere_is_found_and_no_topic_appears(part: int) -> None:
    fs = MemoryFileSystem()
    data = bytearray(small(fs))
    used = len(data) - 2 * BLOCK
    at = part * used // 40 + 13
    padding = not data[at]
    data[at] ^= 0x55
    fs.make_dir("/out")
    fs.write_file(FILE, data, sync=True)
    with stratalog.open("/to", CONFIG, fs=fs, background=False) as store:
        try:
            import_topic(store, FILE)
        except errors.FormatError:
            assert store.topics() == []
            assert not [name for name in fs.list_dir("/to") if "future" in name]
        else:
            assert padding  # zeros behind a member or in its header say nothing
            assert [len(each) for each in read_all(store)] == [30, 30]


@pytest.mark.parametrize("kept", [0, 100, 512, 900, 3000, 5000, -1024, -1])
def test_a_file_cut_short_says_where_and_a_check_goes_on_there(kept: int) -> None:
    fs = MemoryFileSystem()
    whole = small(fs)
    fs.make_dir("/out")
    fs.write_file(FILE, whole[:kept], sync=True)
    with pytest.raises(errors.CorruptionError) as caught:
        check_export(FILE, fs=fs)
    assert FILE in str(caught.value)
    fs.write_file(FILE, whole, sync=True)
    seen: list[int] = []
    report = check_export(
        FILE, start_at=caught.value.position, fs=fs, progress=lambda done, _: seen.append(done)
    )
    assert report.checked_bytes == len(whole)


def test_what_a_manifest_may_not_say() -> None:
    fs = MemoryFileSystem()
    data = small(fs)
    _, size = parse_header(data[:BLOCK], 0)
    text = data[BLOCK : BLOCK + size].rpartition(b"crc32c: ")[0].decode()
    from stratalog.kernel import crc32c

    for old, new, error in (
        ('"version": 1', '"version": 2', errors.UnsupportedFormat),
        ('"0/00000000000000000000.log"', '"../../../../etc/passwd.log"', errors.CorruptionError),
        ('"0/00000000000000000000.log"', '"7/00000000000000000000.log"', errors.CorruptionError),
        ('"partition": 1', '"partition": 2', errors.CorruptionError),
        ('"made_ms": ', '"made_ms": -', errors.CorruptionError),
        ('"format": "stratalog-topic"', '"format": "zip"', errors.CorruptionError),
        ('"settings": {', '"settings": 3, "x": {', errors.CorruptionError),
    ):
        assert old in text
        body = text.replace(old, new, 1).encode()
        manifest = body + f"crc32c: {crc32c(body):08x}\n".encode()
        forged = tar_header(MANIFEST, len(manifest)) + manifest + bytes(-len(manifest) % BLOCK)
        with pytest.raises(error):
            check_export(io.BytesIO(forged + data[BLOCK + size + -size % BLOCK :]))
    with pytest.raises(errors.CorruptionError, match="manifest"):
        check_export(io.BytesIO(tar_header("other", 0) + bytes(BLOCK)))


def test_settings_and_names_on_the_way_in() -> None:
    fs = MemoryFileSystem()
    data = small(fs)
    with stratalog.open("/to", CONFIG, fs=fs, background=False) as store:
        with pytest.raises(errors.ConfigError):
            import_topic(store, io.BytesIO(data), settings={"segment.bytes": "many"})
        with pytest.raises(errors.InvalidTopicError):
            import_topic(store, io.BytesIO(data), name="a/b")
        report = import_topic(store, io.BytesIO(data), settings={"segment.bytes": 4096})
        assert report.settings == {"segment.bytes": "4096", "retention.ms": "-1"}
        assert "retention.ms" in report.notes[0]  # its records are years old
        with pytest.raises(errors.TopicExistsError, match="choose another name"):
            import_topic(store, io.BytesIO(data))
        kept = import_topic(store, io.BytesIO(data), name="kept", keep_retention=True)
        assert "retention.ms" not in kept.settings
    store = stratalog.open("/to", CONFIG, fs=fs, background=False, read_only=True)
    with pytest.raises(errors.ReadOnlyError):
        import_topic(store, io.BytesIO(data), name="third")
    store.close()


def test_into_a_store_that_another_program_holds(tmp_path: Path) -> None:
    data = small(MemoryFileSystem())
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "ready\n"
    try:
        import_topic(tmp_path / "data", io.BytesIO(data))
        with stratalog.connect(tmp_path / "data") as client:
            assert client.remote
            import_topic(client, io.BytesIO(data), name="second")
            client.append("second", [Record(b"on")], partition=0)
        with stratalog.open(tmp_path / "data", read_only=True) as store:
            assert [len(each) for each in read_all(store)] == [30, 30]
            assert [len(each) for each in read_all(store, "second")] == [31, 30]
            assert not stratalog.verify(store).damages
    finally:
        child.stdin.close()
        assert child.wait(20) == 0
        child.stdout.close()
    with stratalog.open(tmp_path / "data") as store:
        assert [len(each) for each in read_all(store, "second")] == [31, 30]


def test_over_several_log_directories(tmp_path: Path) -> None:
    data = small(MemoryFileSystem())
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    import_topic(paths, io.BytesIO(data))
    assert (tmp_path / "a" / "t-0").is_dir() != (tmp_path / "b" / "t-0").is_dir()
    with stratalog.open(paths) as store:
        assert [len(each) for each in read_all(store)] == [30, 30]
        report = export_topic(store, TOPIC, tmp_path / "out.tar")
        assert report.partitions[0].end_offset == 30
        assert check_export(tmp_path / "out.tar").members == report.members


def test_a_damaged_topic_is_not_exported(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "a") as store:
        topic = store.create_topic(TOPIC, 1, {"segment.bytes": 1024})
        for n in range(60):
            topic.append(b"value-%d" % n)
        path = Path(topic.segments(0)[0].path)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.CorruptionError, match="stratalog verify"):
        export_topic(tmp_path / "a", TOPIC, tmp_path / "out.tar")
    assert list(tmp_path.glob("out*")) == []
