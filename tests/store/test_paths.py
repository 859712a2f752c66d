"""Paths are absolute from the moment of opening: a later chdir changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog import errors
from stratalog.fs import FailingFileSystem, MemoryFileSystem, RealFileSystem
from stratalog.store import copies, open_store


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two directories that both hold a store named `data`; the working directory is the first."""
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        with stratalog.open(place / "data") as store:
            store.create_topic("t").append(place.name.encode())
    monkeypatch.chdir(here)
    return here, there


def values(path: Path) -> list[bytes | None]:
    with stratalog.open(path, read_only=True) as store:
        return [record.value for record in store.topic("t").read()]


def test_a_store_stays_where_it_was_opened(
    elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = elsewhere
    with stratalog.open("data", config={"log.max.open.files": 10}) as store:
        monkeypatch.chdir(there)
        store.topic("t").append(b"one", sync=True)
        store.topic("t").roll()
        store.topic("t").append(b"two")
        store.create_topic("new", partitions=3)
        store.alter_topic("t", {"retention.ms": 5})
        assert [each.path for each in store.log_dirs()] == [str(here / "data")]
    assert values(here / "data") == [b"here", b"one", b"two"]
    assert values(there / "data") == [b"there"]
    with stratalog.open(there / "data", read_only=True) as store:
        assert store.topics() == ["t"]
        assert store.topic("t").config.retention_ms != 5


def test_a_reader_stays_where_it_was_opened(
    elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there = elsewhere
    with stratalog.open("data", read_only=True) as store, stratalog.open("data") as writer:
        monkeypatch.chdir(there)
        writer.topic("t").append(b"more")
        assert [record.value for record in store.topic("t").read()] == [b"here", b"more"]


def test_a_relative_archive_stays_where_it_was_said(
    elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = elsewhere
    said = {"log.archive.url": "cold", "log.archive.cache.dir": "cache"}
    with stratalog.open("data", config=said) as store:
        monkeypatch.chdir(there)
        store.alter_topic("t", {"remote.storage.enable": "true"})
        store.topic("t").roll()
        store.archive()
    assert (here / "cold").is_dir()
    assert not (there / "cold").exists()
    # The settings kept with the store name the same archive for an open from another directory.
    with stratalog.open(here / "data", read_only=True) as store:
        assert store.config.get("log.archive.url") == str(here / "cold")
        assert store.config.get("log.archive.cache.dir") == str(here / "cache")


def test_connect_and_copies_take_relative_paths(
    elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = elsewhere
    with stratalog.connect("data") as client:
        monkeypatch.chdir(there)
        client.create_topic("made")
    with stratalog.open(here / "data", read_only=True) as store:
        assert store.topics() == ["made", "t"]
        assert copies.clone(store, "copy").target == str(there / "copy")
        assert copies.export_topic(store, "t", "t.tar").file == str(there / "t.tar")
    assert values(there / "copy") == [b"here"]


@pytest.mark.parametrize("path", ["", [], [""], ["a", ""], b"data", 7, None, "a\0b"])
def test_a_path_that_names_nothing_is_refused(
    path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opening in (stratalog.open, stratalog.connect):
        with pytest.raises(errors.InvalidArgumentError, match="log director"):
            opening(path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_empty_targets_are_refused(elsewhere: tuple[Path, Path]) -> None:
    here, _ = elsewhere
    before = sorted(path.name for path in here.iterdir())
    with stratalog.open("data", read_only=True) as store:
        with pytest.raises(errors.InvalidArgumentError):
            copies.clone(store, "")
        with pytest.raises(errors.InvalidArgumentError):
            copies.restore(store, "", to_time=1)
        with pytest.raises(errors.InvalidArgumentError):
            copies.export_topic(store, "t", "")
    assert sorted(path.name for path in here.iterdir()) == before


def test_one_directory_by_two_spellings_is_given_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for twin in ("./a", str(tmp_path / "a"), "a/", "b/../a", ".//a"):
        with pytest.raises(errors.InvalidArgumentError, match="twice"):
            stratalog.open(["a", twin])


def test_a_way_up_from_behind_a_link_is_the_system_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`link/..` is the directory above the link's target, not the one that holds the link."""
    (tmp_path / "deep" / "target").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "target")
    monkeypatch.chdir(tmp_path)
    assert RealFileSystem().absolute("link/../data") == str(tmp_path / "deep" / "data")
    assert RealFileSystem().absolute("link/data") == str(tmp_path / "link" / "data")


def test_a_filesystem_in_memory_has_no_working_directory() -> None:
    fs = MemoryFileSystem()
    assert fs.absolute("data/") == "data"
    assert FailingFileSystem(fs).absolute("data") == "data"
    with open_store("data", fs=fs, background=False) as store:
        store.create_topic("t")
    assert fs.exists("data/t-0")
