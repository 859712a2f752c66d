"""One partition's archive: uploads, replacing, removal, the one writer, races; on a directory and on S3."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog import errors
from stratalog.archive import About, Archive, Objects, PartitionArchive, SegmentUpload
from stratalog.archive.objects import DirectoryObjects
from stratalog.fs import MemoryFileSystem
from stratalog.log.names import SEGMENT_KINDS
from tests.archive.faulty import FaultyObjects
from tests.archive.samples import (
    PART_BYTES,
    TOPIC,
    make_segments,
    names_in,
    open_for,
    partition_of,
)

WRITERS = 8


@pytest.fixture
def segments(tmp_path: Path) -> list[SegmentUpload]:
    return make_segments(tmp_path / "data")


@pytest.fixture
def local() -> Objects:
    """A directory in memory, for what does not depend on the object store."""
    return DirectoryObjects(MemoryFileSystem(), "/archive")


def everything(archive: Archive) -> set[str]:
    """The objects the archive should have, by its manifests."""
    found = set()
    for manifest in archive.manifests():
        prefix = archive.partition(manifest.topic, manifest.topic_id, manifest.partition).prefix
        found.add(f"{prefix}/manifest.json")
        for entry in manifest.segments:
            found |= {f"{prefix}/segments/{entry.name}/{each.name}" for each in entry.objects}
    return found


def test_a_segment_goes_up_whole_and_comes_back(
    objects: Objects, segments: list[SegmentUpload], tmp_path: Path
) -> None:
    with open_for(objects, threads=4) as archive:
        partition = partition_of(archive)
        partition.describe(About(3, {"retention.ms": "-1"}, ((0, 0), (2, 50))))
        assert partition.manifest() is None
        seen: list[tuple[int, int]] = []
        entries = [
            partition.upload(each, lambda done, total: seen.append((done, total))) for each in segments
        ]
        assert seen[-1][0] == seen[-1][1] == 2 * entries[-1].stored_bytes, "put and read back"
        manifest = partition.manifest(refresh=True)
        assert manifest.segments == tuple(entries)
        assert (manifest.partitions, manifest.leader_epochs) == (3, ((0, 0), (2, 50)))
        assert manifest.config == {"retention.ms": "-1"}
        assert manifest.generation == 1 + len(segments)
        first, segment = entries[0], segments[0]
        assert len(first.parts()) == -(-segment.size_bytes // PART_BYTES) > 1
        assert (first.records, first.size_bytes, first.crc) == (40, segment.size_bytes, segment.seal.crc)
        assert (first.min_timestamp, first.max_timestamp) == (
            segment.seal.min_timestamp,
            segment.seal.max_timestamp,
        )
        assert {each.kind for each in first.objects} == set(segment.files)
        assert names_in(objects) == everything(archive)
        for entry in entries:
            partition.verify(entry)
        into = tmp_path / "back"
        into.mkdir()
        paths = partition.download(first, str(into))
        for path in paths:
            original = tmp_path / "data" / f"{TOPIC}-0" / Path(path).name
            assert Path(path).read_bytes() == original.read_bytes()
        assert paths[0].endswith("/00000000000000000000.log")
        assert (into / "00000000000000000000.log").stat().st_mtime_ns // 1_000_000 == first.modified_ms


def test_uploading_again_changes_nothing(objects: Objects, segments: list[SegmentUpload]) -> None:
    faulty = FaultyObjects(objects)
    with open_for(faulty) as archive:
        entry = partition_of(archive).upload(segments[0])
        before = names_in(objects)
        count = len(faulty.requests)
        assert partition_of(archive).upload(segments[0]) == entry
        assert [each.split()[0] for each in faulty.requests[count:]] == ["list"], "one look is enough"
        assert names_in(objects) == before
        objects.delete([min(name for name in before if "log.0" in name)])
        again = partition_of(archive).upload(segments[0])
        assert again.name != entry.name, "what had lost an object is replaced"
        partition_of(archive).verify(again)
        assert names_in(objects) == everything(archive)


def test_an_interrupted_upload_goes_on_where_it_stopped(
    objects: Objects, segments: list[SegmentUpload], quiet: None
) -> None:
    faulty = FaultyObjects(objects)
    with open_for(faulty) as archive:
        faulty.fail = lambda number, request: "before" if "index" in request else None
        with pytest.raises(errors.ArchiveError, match="index: did not go through"):
            partition_of(archive).upload(segments[0])
    there = {name for name in names_in(objects) if "/log." in name}
    assert there
    bad = min(there)
    objects.put(bad, b"?" * objects.head(bad).size)  # and one of them is not what it should be
    with open_for(faulty, threads=1) as archive:
        faulty.fail = lambda number, request: None
        faulty.requests.clear()
        entry = partition_of(archive).upload(segments[0])
        puts = [request for request in faulty.requests if request.startswith("put ")]
        assert sum("/log." in request for request in puts) == 1, "only the bad part goes up again"
        assert there < names_in(objects)
        partition_of(archive).verify(entry)
        assert names_in(objects) == everything(archive)


def test_a_damaged_log_is_not_archived(local: Objects, segments: list[SegmentUpload]) -> None:
    path = Path(segments[0].files["log"])
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with open_for(local) as archive:
        with pytest.raises(errors.CorruptionError, match="seal says") as caught:
            partition_of(archive).upload(segments[0])
        assert caught.value.path == str(path)
        assert names_in(local) == everything(archive), "nothing of it is left"
        assert partition_of(archive).manifest().segments == ()


def test_what_comes_back_wrong_is_not_archived(
    local: Objects, segments: list[SegmentUpload], quiet: None
) -> None:
    class Rotten(FaultyObjects):
        def put(self, key: str, data: object) -> None:
            super().put(key, b"x" * len(data) if key.endswith("/timeindex") else data)  # type: ignore[arg-type]

    with open_for(Rotten(local)) as archive:
        with pytest.raises(errors.CorruptionError, match="were read back") as caught:
            partition_of(archive).upload(segments[0])
        assert caught.value.path.endswith("/timeindex")
        assert partition_of(archive).manifest().segments == ()


def test_segments_without_sidecars_are_archived_too(local: Objects, segments: list[SegmentUpload]) -> None:
    only_log = {kind: path for kind, path in segments[0].files.items() if kind == "log"}
    with open_for(local) as archive:
        entry = partition_of(archive).upload(replace(segments[0], files=only_log, seal=None))
        assert (entry.records, entry.max_timestamp) == (None, None)
        assert entry.crc == segments[0].seal.crc
        partition_of(archive).verify(entry)


def test_rewritten_segments_take_the_place_of_old_ones(
    objects: Objects, segments: list[SegmentUpload], tmp_path: Path
) -> None:
    """As compaction does it: two become one, which the archive has instead of them from then on."""
    other = make_segments(tmp_path / "other", segments=1, records=80)[0]
    assert (other.base_offset, other.next_offset) == (0, 80)
    with open_for(objects) as archive:
        partition = partition_of(archive)
        partition.upload_all(segments)
        entry = partition.upload(other)
        manifest = partition.manifest(refresh=True)
        assert [each.base_offset for each in manifest.segments] == [0, 80]
        assert manifest.segments[0] == entry
        assert names_in(objects) == everything(archive)
        with pytest.raises(errors.InvalidArgumentError, match="reaches past"):
            partition.upload(segments[0])
        back = partition.upload_all(segments[:2])
        assert partition.manifest(refresh=True).segments[:2] == tuple(back)
        assert names_in(objects) == everything(archive)
        erased = partition.replace([back[0]], [replace(segments[0])])
        assert erased[0].name != back[0].name
        with pytest.raises(errors.ArchiveConflictError, match="changed meanwhile"):
            partition.replace([back[0]], [segments[0]])
        partition.sweep()
        assert names_in(objects) == everything(archive)


def test_removal_and_the_log_start(objects: Objects, segments: list[SegmentUpload]) -> None:
    with open_for(objects) as archive:
        partition = partition_of(archive)
        entries = partition.upload_all(segments)
        assert partition.set_log_start(50) == [entries[0]]
        assert partition.set_log_start(20) == [], "never back"
        manifest = partition.manifest(refresh=True)
        assert manifest.log_start_offset == 50
        assert manifest.segments == tuple(entries[1:])
        assert names_in(objects) == everything(archive)
        partition.upload(segments[0])
        assert partition.manifest().segments == tuple(entries[1:]), "what is below the log start stays out"
        assert names_in(objects) == everything(archive)
        partition.remove(entries[2:])
        assert partition.manifest(refresh=True).segments == (entries[1],)
        assert names_in(objects) == everything(archive)
        with pytest.raises(errors.InvalidArgumentError, match="not marked"):
            partition.delete_everything()
        partition.mark_deleted()
        with pytest.raises(errors.ArchiveError, match="being deleted"):
            partition.upload(segments[2])
        partition.delete_everything()
        assert names_in(objects) == set()
        assert partition.manifest(refresh=True) is None


def test_another_store_is_refused_and_may_take_over(objects: Objects, segments: list[SegmentUpload]) -> None:
    with open_for(objects, "first") as first, open_for(objects, "second") as second:
        partition_of(first).upload(segments[0])
        before = names_in(objects)
        for act in (
            lambda partition: partition.upload(segments[1]),
            lambda partition: partition.set_log_start(10),
            lambda partition: partition.mark_deleted(),
        ):
            with pytest.raises(errors.ArchiveConflictError, match="belongs to the store first") as caught:
                act(partition_of(second))
            assert caught.value.owner == "first"
            assert caught.value.url == partition_of(second).url
        assert names_in(objects) == before, "not an object was put"
        assert partition_of(second).manifest().segments, "reading is free"
        partition_of(second).claim(take_over=True)
        partition_of(second).upload(segments[1])
        with pytest.raises(errors.ArchiveConflictError, match="belongs to the store second"):
            partition_of(first).upload(segments[2])
        bases = [entry.base_offset for entry in partition_of(first).manifest(refresh=True).segments]
        assert bases == [0, 40]


def test_the_later_process_of_a_store_is_the_writer(local: Objects, segments: list[SegmentUpload]) -> None:
    with open_for(local) as old, open_for(local) as new:
        partition_of(old).upload(segments[0])
        partition_of(new).upload(segments[1])
        with pytest.raises(errors.ArchiveConflictError, match="another process with the id of this store"):
            partition_of(old).upload(segments[2])
        partition_of(new).upload(segments[2])
        assert len(partition_of(new).manifest(refresh=True).segments) == 3


@pytest.mark.parametrize("ids", ["different", "equal"])
def test_of_eight_writers_one_wins(objects: Objects, segments: list[SegmentUpload], ids: str) -> None:
    """Eight processes, of eight stores or all with the id of one, archive the same segments at once."""
    archives = [
        open_for(objects, f"store-{number if ids == 'different' else 0}") for number in range(WRITERS)
    ]
    together = threading.Barrier(WRITERS)
    done: dict[int, int] = {}
    lost: dict[int, errors.ArchiveConflictError] = {}

    def work(number: int) -> None:
        together.wait()
        try:
            for segment in segments:
                partition_of(archives[number]).upload(segment)
                done[number] = done.get(number, 0) + 1
        except errors.ArchiveConflictError as error:
            lost[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = set(range(WRITERS)) - set(lost)
    assert all(done[winner] == len(segments) for winner in winners)
    # Of one store the latest process is the writer; one that was done before another began lost nothing.
    assert len(winners) == 1 or ids == "equal"
    manifest = partition_of(archives[0]).manifest(refresh=True)
    winner = next(at for at in winners if archives[at].session == manifest.session)
    partition = partition_of(archives[winner])
    assert [entry.base_offset for entry in manifest.segments] == [0, 40, 80]
    if ids == "different":
        assert all(error.owner == f"store-{winner}" for error in lost.values())
    for entry in manifest.segments:
        partition.verify(entry)
    partition.sweep()
    assert names_in(objects) == everything(archives[winner])
    for archive in archives:
        archive.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_failed_request_at_a_time(
    local: Objects, segments: list[SegmentUpload], when: str, quiet: None
) -> None:
    """Every request fails once, or loses its answer. Trying again, in the same process, mends it."""
    number = 0
    while True:
        faulty = FaultyObjects(local)
        faulty.fail = lambda at, request, wanted=number: when if at == wanted else None  # type: ignore[misc,assignment]
        with open_for(faulty, f"store-{when}-{number}") as archive:
            partition = archive.partition(TOPIC, partition_of(archive).topic_id, number)
            failed = 0
            for act in (
                lambda p=partition: p.upload(segments[0]),
                lambda p=partition: p.upload_all(segments[:2]),
                lambda p=partition: p.upload(segments[2]),
                lambda p=partition: p.set_log_start(45),
                lambda p=partition: p.sweep(),
            ):
                try:
                    act()
                except errors.ArchiveError:
                    failed += 1
                    act()
            assert failed <= 1
            used, faulty.fail = len(faulty.requests), lambda at, request: None
            manifest = partition.manifest(refresh=True)
            assert [entry.base_offset for entry in manifest.segments] == [40, 80]
            for entry in manifest.segments:
                partition.verify(entry)
            assert partition.orphans() == []
            if used <= number:
                break
        number += 1
    assert number > 30


def test_a_put_that_takes_effect_late_does_no_harm(
    local: Objects, segments: list[SegmentUpload], quiet: None
) -> None:
    """A manifest whose put was given up on must not come into force once its objects are swept."""
    late: list[tuple[str, bytes, str]] = []

    class Slow(FaultyObjects):
        def put_if_match(self, key: str, data: object, tag: str) -> str | None:
            if not late:
                late.append((key, bytes(data), tag))  # type: ignore[call-overload]
                raise errors.ArchiveError("timed out", url=self.url_of(key))
            return super().put_if_match(key, data, tag)  # type: ignore[arg-type]

    with open_for(Slow(local)) as archive:
        partition = partition_of(archive)
        with pytest.raises(errors.ArchiveError, match="timed out"):
            partition.upload(segments[0])
        assert partition.sweep() != []
        assert local.put_if_match(*late[0]) is None, "sweeping changed the manifest first"
        assert partition.manifest(refresh=True).segments == ()


def test_sweeping_spares_what_is_being_uploaded(local: Objects, segments: list[SegmentUpload]) -> None:
    faulty = FaultyObjects(local)
    with open_for(faulty, threads=2) as archive:
        partition = partition_of(archive)
        swept: list[str] = []

        def sweep_meanwhile(request: str) -> None:
            if request.startswith("get ") and "/segments/" in request:
                faulty.before = lambda request: None
                swept.extend(partition.sweep())

        local.put(f"{partition.prefix}/segments/{7:020d}/{7:016x}/log.00000", b"left over")
        local.put(f"{partition.prefix}/rubbish.tmp", b"left over")
        faulty.before = sweep_meanwhile
        entry = partition.upload(segments[0])
        assert len(swept) == 2
        partition.verify(entry)
        assert names_in(local) == everything(archive)


def test_the_whole_archive_is_listed_and_verified(objects: Objects, segments: list[SegmentUpload]) -> None:
    with open_for(objects, threads=2) as archive:
        partition_of(archive).upload_all(segments)
        second: PartitionArchive = archive.partition("a-topic", partition_of(archive).topic_id, 3)
        second.upload(segments[0])
        assert [(each.topic, each.partition) for each in archive.manifests()] == [("a-topic", 3), (TOPIC, 0)]
        seen: list[tuple[int, int, str]] = []
        check = archive.verify(progress=lambda *told: seen.append(told))
        assert check.ok
        assert (check.partitions, check.segments, check.orphans) == (2, 4, [])
        assert seen[-1][0] == seen[-1][1] == check.bytes
        logs = sorted(name for name in names_in(objects) if "/log.0" in name and name.startswith(TOPIC))
        rotten, short, missing = logs[0], logs[2], next(n for n in names_in(objects) if n.endswith("/seal"))
        data = bytearray(objects.get(rotten).data)
        data[100] ^= 1
        objects.put(rotten, bytes(data))
        objects.put(short, b"short")
        objects.delete([missing])
        objects.put("stray", b"?")
        objects.put(f"{second.prefix}/manifest.json", b"{}")
        told = archive.verify().to_json()
        wanted = [rotten, short, missing, f"{second.prefix}/manifest.json"]
        for name in wanted:
            if not (name == missing and missing.startswith("a-topic")):
                assert any(problem.startswith(objects.url_of(name)) for problem in told["problems"]), name
        assert objects.url_of("stray") in told["orphans"]
        shallow = archive.verify(deep=False)
        assert len(shallow.problems) < len(told["problems"]), "without reading, rot is not seen"
        with pytest.raises(errors.CorruptionError, match=f"{second.prefix}/manifest.json"):
            archive.manifests()


def test_kinds_agree_with_the_log(segments: list[SegmentUpload]) -> None:
    from stratalog.archive.manifest import KINDS, LOCAL_NAME
    from stratalog.log.names import ARCHIVE

    assert set(KINDS) == {*SEGMENT_KINDS, "snapshot"}
    assert LOCAL_NAME == ARCHIVE
