"""A full disk and the command line: what was done counts as done, and one line says what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from tests.store.small_disk import SmallDisk, small_disk

COMMAND = """
import sys, stratalog.store.admin.admin, stratalog.store.store
from pathlib import Path
from tests.store.small_disk import _Quota
quota = _Quota(Path(sys.argv[1]), int(sys.argv[2]))
if sys.argv[3] == "quota":
    stratalog.store.store.RealFileSystem = lambda: quota
from stratalog.cli import main
sys.argv[1:] = sys.argv[4:]
main()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


def run(disk: SmallDisk, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; where nobody may mount, a quota plays the disk."""
    how = "real" if disk.real else "quota"
    return subprocess.run(
        [sys.executable, "-c", COMMAND, str(disk.path), str(disk.pages), how]
        + [*arguments, "--data", str(disk.log)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("pages", [1, 2, 3, 4])
def test_appended_on_a_full_disk_counts_as_appended(disk: SmallDisk, pages: int) -> None:
    """The record found room, the files of a clean stop did not: nothing is lost, so nothing failed."""
    assert run(disk, "topic", "create", "q", "--config", "key.index.enable=true").returncode == 0
    disk.leave(pages)
    for at in range(2):
        done = run(disk, "append", "q", stdin=f"{at}\n")
        assert done.returncode == 0, done.stderr
        said = done.stderr.splitlines()
        assert said[-1].startswith("appended 1 record")
        assert len(said) <= 2, done.stderr
        for line in said[:-1]:
            assert "no data is lost" in line
            assert "No space left on device" in line
            assert line.count("cannot ") == 1
            assert line.count(str(disk.log)) <= 2
    with stratalog.open(disk.log, fs=disk.fs, read_only=True) as store:
        assert [record.value for record in store.topic("q").read()] == [b"0", b"1"]
    altered = run(disk, "topic", "alter", "q", "--config", "retention.ms=1d")
    assert altered.returncode == 0, altered.stderr
    disk.free()
    with stratalog.open(disk.log) as store:
        assert [record.value for record in store.topic("q").read()] == [b"0", b"1"]
        assert stratalog.verify(store).ok


def test_what_finds_no_room_is_an_error(disk: SmallDisk) -> None:
    assert run(disk, "topic", "create", "q").returncode == 0
    disk.leave(0)
    done = run(disk, "append", "q", stdin="v" * 10_000)
    assert done.returncode == 7
    said = done.stderr.splitlines()
    assert len(said) <= 2, done.stderr
    assert "free some disk space" in said[-1]
