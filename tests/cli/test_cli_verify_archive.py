"""`verify` beside an archive that cannot be reached: what is here is checked, what is there is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stratalog
from tests.cli.shell import Shell

SEGMENTS = 4


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A store with two topics; the archive had the first segments of one of them, and was moved away."""
    shell = Shell(tmp_path / "data")
    settings = ("remote.storage.enable=true", "local.retention.ms=1", "file.delete.delay.ms=0")
    shell.ok("topic", "create", "old", *(part for each in settings for part in ("--config", each)))
    shell.ok("topic", "create", "plain")
    for at in range(SEGMENTS):
        shell.ok("append", "old", stdin=f"{at}\n")
        shell.ok("roll", "old")
    shell.ok("archive")
    shell.ok("archive")
    shell.ok("append", "old", stdin="here\n")
    shell.ok("append", "plain", stdin="here\n")
    assert [each["state"] for each in shell.json("segments", "old")][:SEGMENTS] == ["archived"] * SEGMENTS
    (tmp_path / "data.archive").rename(tmp_path / "away")
    return shell


def test_the_archive_is_named_and_the_rest_is_checked(shell: Shell) -> None:
    result = shell("verify", "--json")
    assert result.exit_code == 5, result.output
    found = json.loads(result.stdout)
    assert [damage["path"] for damage in found["damages"]] == ["old-0"]
    assert "the archive cannot be read" in found["damages"][0]["reason"]
    assert "offsets 0 to 3" in found["damages"][0]["reason"]
    assert found["segments"] == 2
    assert found["records"] == 2
    shown = shell("verify")
    assert shown.exit_code == 5
    assert "the archive cannot be read" in shown.stdout


def test_damage_beside_it_is_found(shell: Shell) -> None:
    log = Path(shell.paths[0]) / "plain-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[-2] ^= 1
    log.write_bytes(data)
    result = shell("verify", "--json")
    assert result.exit_code == 5
    paths = [damage["path"] for damage in json.loads(result.stdout)["damages"]]
    assert paths[0] == "old-0"
    assert str(log) in paths


def test_the_library_goes_on_too(shell: Shell) -> None:
    with stratalog.open(shell.paths[0], read_only=True) as store:
        report = stratalog.verify(store)
    assert report.records == 2
    assert ["the archive cannot be read" in damage.reason for damage in report.damages] == [True]


@pytest.mark.parametrize("there", ["nothing", "another topic"])
def test_the_wrong_archive_is_told_from_the_right_one(shell: Shell, tmp_path: Path, there: str) -> None:
    if there == "another topic":
        other = Shell(tmp_path / "other")
        other.ok("topic", "create", "t", "--config", "remote.storage.enable=true")
        other.ok("append", "t", stdin="x\n")
        other.ok("roll", "t")
        other.ok("archive")
        (tmp_path / "other.archive").rename(tmp_path / "data.archive")
    else:
        (tmp_path / "data.archive").mkdir()
    checked = shell("archive", "--verify", "--json")
    assert checked.exit_code == 5
    [problem] = json.loads(checked.stdout)["problems"]
    assert problem.startswith("old-0: ")
    assert "offset 0 should be in this archive" in problem
    assert "log.archive.url" in problem
    listed = shell("archive", "--list")
    assert listed.exit_code == 5
    assert "offset 0 should be in this archive" in listed.stderr
    read = shell("read", "old")
    assert read.exit_code == 7
    assert "no such topic old" in read.stderr
    assert "STRATALOG_CONFIG" in read.stderr
    assert "try again" not in read.stderr
    right = ("--store-config", f"log.archive.url={tmp_path / 'away'}")
    assert "no damage" in shell("archive", "--verify", *right).stderr
    shell.ok("archive", "--list", *right)
    shell.ok("read", "old", *right)


def test_repair_tells_of_the_archive_and_never_that_all_is_well(shell: Shell) -> None:
    assert "log.archive.url" in shell("verify").stdout
    for options in ([], ["--action", "drop-damaged", "--dry-run"], ["--action", "drop-damaged", "--yes"]):
        result = shell("repair", "old", *options)
        assert result.exit_code == 5, result.output
        assert "the archive cannot be read" in result.stdout
        assert "log.archive.url" in result.stdout
        assert "omit --dry-run" not in result.stdout
        assert "nothing to do" not in result.stderr
    (report,) = json.loads(shell("repair", "old", "--action", "drop-damaged", "--yes", "--json").stdout)
    assert [each["path"] for each in report["left"]] == ["old-0"]


def test_nothing_goes_to_an_archive_that_does_not_know_the_topic(tmp_path: Path) -> None:
    """Archived elsewhere, all of it still local: the default archive must not take its place unsaid."""
    shell = Shell(tmp_path / "data")
    right = ("--store-config", f"log.archive.url={tmp_path / 'right'}")
    shell.ok("topic", "create", "t", "--config", "remote.storage.enable=true")
    shell.ok("append", "t", stdin="x\n")
    shell.ok("roll", "t")
    shell.ok("archive", *right)

    def refused(*arguments: str, code: int, output: str) -> None:
        result = shell(*arguments)
        assert result.exit_code == code, result.output
        told = getattr(result, output)
        assert "log.archive.url" in told
        assert told.count("has no such topic t") + told.count("this archive has no topic t") == 1
        assert not list(tmp_path.glob("data.archive/*"))

    refused("archive", "--list", code=5, output="stderr")
    refused("archive", "--verify", code=5, output="stdout")
    refused("archive", code=11, output="stderr")
    shell.ok("append", "t", stdin="y\n")
    shell.ok("roll", "t")
    refused("archive", code=11, output="stderr")
    refused("janitor", code=11, output="stderr")
    shell.ok("archive", *right)
    assert "2" in shell.ok("archive", "--list", *right)


def test_a_clone_does_not_need_the_archive(shell: Shell, tmp_path: Path) -> None:
    result = shell("clone", str(tmp_path / "clone"))
    assert result.exit_code == 0, result.output
    assert "offsets 0 to 3 are only in the archive" in result.stderr
    assert Shell(tmp_path / "clone").lines("read", "old") == ["here"]
