"""The eight requests: the same promises from a directory and from a real S3 server."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import errors
from stratalog.archive import Objects, open_objects
from stratalog.archive.objects import DirectoryObjects
from stratalog.fs import MemoryFileSystem, RealFileSystem, SimulatedCrash, SurvivorMode

WRITERS = 8
POWER_CUTS: tuple[SurvivorMode, ...] = ("drop", "torn", "reorder")


def test_what_is_put_is_got(objects: Objects) -> None:
    objects.put("a/b/c", b"one")
    objects.put("a/b/c", memoryview(b"two!"))
    objects.put("a/bb", b"x" * 100_000)
    assert objects.get("a/b/c").data == b"two!"
    assert objects.get_range("a/bb", 99_990, 10) == b"x" * 10
    assert objects.get_range("a/b/c", 1, 2) == b"wo"
    found = objects.head("a/bb")
    assert (found.key, found.size) == ("a/bb", 100_000)
    assert found.modified_ms > 1_600_000_000_000
    assert {info.key: info.size for info in objects.list("")} == {"a/b/c": 4, "a/bb": 100_000}
    assert [info.key for info in objects.list("a/b/")] == ["a/b/c"], "a prefix is a folder, not a stem"
    objects.delete(["a/bb", "not/there"])
    objects.delete([])
    assert objects.head("a/bb") is None
    assert [info.key for info in objects.list("")] == ["a/b/c"]


def test_many_objects_are_listed_and_deleted(objects: Objects) -> None:
    keys = [f"many/{number:04d}" for number in range(1_100)]
    for key in keys:
        objects.put(key, b"")
    assert sorted(info.key for info in objects.list("many/")) == keys
    objects.delete([*keys, "many/none"])
    assert list(objects.list("")) == []


def test_what_is_not_there_is_named(objects: Objects) -> None:
    objects.put("here", b"12345")
    for read in (lambda: objects.get("none"), lambda: objects.get_range("none", 0, 1)):
        with pytest.raises(FileNotFoundError, match=f"no object at {objects.url}/none"):
            read()
    with pytest.raises(errors.ArchiveError, match=f"{objects.url}/here: "):
        objects.get_range("here", 3, 10)
    assert list(objects.list("nothing/")) == []


def test_conditional_puts(objects: Objects) -> None:
    first = objects.put_if_absent("m", b"1")
    assert first is not None
    assert objects.put_if_absent("m", b"2") is None
    assert objects.get("m").tag == first
    second = objects.put_if_match("m", b"2", first)
    assert second is not None
    assert objects.put_if_match("m", b"3", first) is None, "that was another state"
    assert objects.put_if_match("n", b"3", first) is None, "there is nothing to match"
    assert objects.get("m").data == b"2"
    assert objects.head("n") is None


@pytest.mark.parametrize("kind", ["create", "replace"])
def test_of_eight_writers_one_wins(objects: Objects, kind: str) -> None:
    for round_number in range(5):
        key = f"race/{round_number}"
        tag = objects.put_if_absent(key, b"start") if kind == "replace" else None
        winners = _race(objects, key, tag)
        assert len(winners) == 1
        assert objects.get(key).data == f"writer {winners[0]}".encode()


def _race(objects: Objects, key: str, tag: str | None) -> list[int]:
    winners: list[int] = []
    together = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        data = f"writer {number}".encode()
        together.wait()
        put = objects.put_if_absent(key, data) if tag is None else objects.put_if_match(key, data, tag)
        if put is not None:
            winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


def test_of_eight_processes_one_wins(tmp_path: Path) -> None:
    """The lock of a directory excludes other processes too."""
    root = str(tmp_path / "archive")
    mine = DirectoryObjects(RealFileSystem(), root)
    tag = mine.put_if_absent("m", b"start")
    script = (
        "import sys; from stratalog.archive.objects import DirectoryObjects; from stratalog.fs import"
        " RealFileSystem; sys.stdin.readline();"
        f" objects = DirectoryObjects(RealFileSystem(), {root!r});"
        f" print(objects.put_if_match('m', sys.argv[1].encode(), {tag!r}) is not None)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for each in running:
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [each.communicate()[0].strip() for each in running]
    assert sorted(told) == ["False", "False", "False", "True"]
    assert mine.get("m").data == str(told.index("True")).encode()


def test_a_server_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    objects = open_objects("s3://bucket/prefix", RealFileSystem(), timeout_ms=2_000, retries=0)
    acts: list[Callable[[], object]] = [
        lambda: objects.get("key"),
        lambda: objects.put("key", b""),
        lambda: objects.put_if_absent("key", b""),
        lambda: objects.head("key"),
        lambda: objects.delete(["key"]),
    ]
    for act in acts:
        with pytest.raises(errors.ArchiveError, match="s3://bucket/prefix/key: ") as caught:
            act()
        assert caught.value.url == "s3://bucket/prefix/key"
        assert "\n" not in str(caught.value)
    with pytest.raises(errors.ArchiveError):
        list(objects.list(""))


@pytest.mark.parametrize("url", ["", "nope://x", "http://host/x", "memory:///x", "file://relative"])
def test_urls_nobody_can_use(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="log.archive.url"):
        open_objects(url, RealFileSystem())


def test_without_obstore_a_directory_works_and_a_url_says_what_to_install(tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["obstore"] = None
from stratalog.archive import open_objects
from stratalog.errors import ConfigError
from stratalog.fs import RealFileSystem
open_objects({str(tmp_path / "archive")!r}, RealFileSystem()).put("key", b"value")
try:
    open_objects("s3://bucket/prefix", RealFileSystem())
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'stratalog[archive]'" in done.stdout


def test_a_directory_survives_a_power_cut_at_every_call() -> None:
    """A put that returned is there; one that did not is there wholly or not at all; nothing else changes."""
    calls = 0
    while True:
        calls += 1
        fs = MemoryFileSystem()
        fs.crash_at(calls)
        surely: dict[str, bytes] = {}
        try:
            _use(DirectoryObjects(fs, "/deep/archive"), surely)
        except SimulatedCrash:
            for seed, mode in enumerate(POWER_CUTS * 2):
                left = DirectoryObjects(fs.survivor(mode, random.Random(seed)), "/deep/archive")
                found = {info.key: left.get(info.key).data for info in left.list("")}
                assert surely.items() <= found.items()
                assert {data for key, data in found.items() if ".tmp" not in key} <= {b"1", b"2", b"log"}
                left.delete(found)
                assert list(left.list("")) == []
            continue
        break
    assert calls > 15


def _use(objects: Objects, surely: dict[str, bytes]) -> None:
    tag = objects.put_if_absent("p/m", b"1")
    assert tag is not None
    surely["p/m"] = b"1"
    objects.put("p/segments/s/log.00000", b"log")
    surely["p/segments/s/log.00000"] = b"log"
    del surely["p/m"]  # the old or the new from here on
    assert objects.put_if_match("p/m", b"2", tag)
    surely["p/m"] = b"2"
    del surely["p/segments/s/log.00000"]
    objects.delete(["p/segments/s/log.00000"])
