"""What `open` refuses, and what its errors and warnings say to do."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from stratalog import errors
from stratalog.cli import guard
from tests.cli.shell import Shell
from tests.store.pausing import Running


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("read_only", [False, True])
def test_a_partition_directory_is_no_store(tmp_path: Path, read_only: bool) -> None:
    with stratalog.open(tmp_path / "d") as store:
        store.create_topic("t").append(b"x")
    partition = tmp_path / "d" / "t-0"
    before = listing(partition)
    with pytest.raises(errors.InvalidArgumentError, match=f"its store is {tmp_path / 'd'}$"):
        stratalog.open(partition, read_only=read_only)
    with pytest.raises(errors.InvalidArgumentError, match="is a partition"):
        stratalog.connect(partition, read_only=read_only)
    assert listing(partition) == before
    for arguments in (["topic", "list"], ["topic", "create", "u"], ["append", "t"]):
        result = Shell(partition)(*arguments, stdin="x\n")
        assert result.exit_code == 2
        assert str(tmp_path / "d") in result.stderr
    assert listing(partition) == before


def test_an_empty_partition_directory_is_no_store_either(tmp_path: Path) -> None:
    """One of a broker, without `partition.metadata`."""
    partition = tmp_path / "d" / "t-0"
    partition.mkdir(parents=True)
    (partition / f"{0:020}.log").touch()
    with pytest.raises(errors.InvalidArgumentError, match="is a partition"):
        stratalog.open(partition)
    assert listing(partition) == [f"{0:020}.log"]


def test_a_store_may_be_called_like_a_partition(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "t-0") as store:
        store.create_topic("t").append(b"x")
    with stratalog.open(tmp_path / "t-0") as store:
        assert store.topics() == ["t"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_is_no_store(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.InvalidArgumentError, match="file is a file, not a directory"):
        stratalog.open(tmp_path / "file", read_only=read_only)
    with pytest.raises(errors.StratalogError, match="inside"):
        stratalog.open(tmp_path / "file" / "inside", read_only=read_only)


def test_a_place_where_nothing_can_be_made() -> None:
    with pytest.raises(errors.StorageError, match="/proc/foo"):
        stratalog.open("/proc/foo")


def test_a_held_store_says_what_to_do(tmp_path: Path) -> None:
    with stratalog.open(tmp_path), pytest.raises(errors.StoreLockedError) as caught:
        stratalog.open(tmp_path)
    assert "read_only=True" in str(caught.value)
    assert "connect()" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert "read_only=" not in guard.explain(caught.value)
    assert f"process {os.getpid()}" in guard.explain(caught.value)


READ_ONLY_MOUNT = """
import sys, stratalog
from stratalog.cli import guard
from stratalog.errors import StratalogError
try:
    stratalog.open(sys.argv[1])
except StratalogError as error:
    print(error)
    print(guard.explain(error))
"""


def test_a_read_only_mount_says_what_to_do(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "d") as store:
        store.create_topic("t")
    if os.geteuid() == 0:
        mount = ["unshare", "--mount", "sh", "-c", 'mount --bind -o ro "$1" "$1" && exec "$2" -c "$3" "$1"']
        run = [*mount, "sh", str(tmp_path / "d"), sys.executable, READ_ONLY_MOUNT]
    else:
        (tmp_path / "d").chmod(0o555)
        run = [sys.executable, "-c", READ_ONLY_MOUNT, str(tmp_path / "d")]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    library, command_line = done.stdout.splitlines()
    assert "read_only=True" in library
    assert "read_only=" not in command_line
    assert "commands that only read work" in command_line


def test_a_file_that_this_user_may_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stratalog.open(tmp_path / "d") as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        topic.roll()
    sealed = str(tmp_path / "d" / "t-0" / f"{0:020}.log")
    system_open, access = os.open, os.access

    def refused(path: str, *more: int) -> int:
        if path == sealed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return system_open(path, *more)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os, "access", lambda path, *more: str(path) != sealed and access(path, *more))
    for command in (["read", "t"], ["verify"]):
        done = Shell(tmp_path / "d")(*command)
        assert done.exit_code == 7
        assert f"this user may not read {sealed}" in done.stderr
        assert "only read" not in done.stderr


@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_that_was_not_given_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read_only: bool
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with stratalog.open(paths) as store:
        store.create_topic("t", partitions=4)
    away = [number for number in range(4) if (tmp_path / "b" / f"t-{number}").exists()]
    caplog.clear()
    with caplog.at_level(logging.WARNING), stratalog.open(tmp_path / "a", read_only=read_only):
        pass
    (said,) = [record.message for record in caplog.records]
    assert str(tmp_path / "b") in said
    assert ", ".join(f"t-{number}" for number in away) in said

    shell = Shell(tmp_path / "a")
    caplog.clear()
    listed = shell.json("topic", "list")
    assert [row["partition"] for row in listed[0]["offline"]] == away
    assert str(tmp_path / "b") in listed[0]["offline"][0]["why"]
    assert any(str(tmp_path / "b") in record.message for record in caplog.records)
    assert f"4 ({len(away)} offline)" in shell.ok("topic", "list")
    caplog.clear()
    shell.ok("topic", "create", "u")
    assert any(str(tmp_path / "b") in record.message for record in caplog.records)
    caplog.clear()
    Shell(*paths).ok("topic", "list")
    assert caplog.records == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_fifo_in_place_of_a_file_does_not_block(tmp_path: Path, read_only: bool) -> None:
    with stratalog.open(tmp_path / "d") as store:
        store.create_topic("t").append(b"x")
    names = [path.name for path in (tmp_path / "d").iterdir() if path.is_file()]
    assert {".lock", "meta.properties", "recovery-point-offset-checkpoint"} <= {*names}
    refused = []
    for name in names:
        path, aside = tmp_path / "d" / name, tmp_path / "aside"
        path.rename(aside)
        os.mkfifo(path)

        def opened() -> int:
            with stratalog.open(tmp_path / "d", read_only=read_only) as store:
                return len(list(store["t"].read()))

        try:
            assert Running(opened).result() == 1
        except errors.StorageError as error:
            refused.append(name)
            assert str(path) in str(error)  # noqa: PT017 - some of the files are not needed
        path.unlink()
        aside.rename(path)
        assert opened() == 1
    assert refused
