"""Copies from the command line: clone, restore, export and import, to and from Kafka's directories."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from stratalog.cli.app import app
from stratalog.cli.guard import ExitCode
from tests.cli.shell import Shell

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.fixture
def shell(tmp_path):
    """Two topics: `orders` with ten records a minute apart in two segments, `audit` with one record."""
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "orders", "-c", "retention.ms=-1")
    shell.ok("topic", "create", "audit", "-c", "retention.ms=-1")
    rows = [json.dumps({"value": f"v{n}", "key": f"k{n}", "timestamp": NOW + n * 60_000}) for n in range(10)]
    shell.ok("append", "orders", "--jsonl", stdin="\n".join(rows[:5]))
    shell.ok("roll", "orders")
    shell.ok("append", "orders", "--jsonl", stdin="\n".join(rows[5:]))
    shell.ok("append", "audit", "--timestamp", str(NOW), stdin="entry\n")
    return shell


def test_a_clone_is_a_store_of_its_own(shell, tmp_path):
    report = shell.json("clone", str(tmp_path / "copy"))
    assert {(row["topic"], row["end_offset"]) for row in report["partitions"]} == {
        ("orders", 10),
        ("audit", 1),
    }
    copy = Shell(tmp_path / "copy")
    assert copy.lines("read", "orders") == shell.lines("read", "orders")
    copy.ok("append", "orders", stdin="only here\n")
    assert "only here" not in shell.ok("read", "orders")
    again = shell("clone", str(tmp_path / "copy"))
    assert again.exit_code == ExitCode.USAGE
    assert "already exists and is not empty" in again.stderr
    text = shell("clone", str(tmp_path / "one"), "--topic", "audit")
    assert text.stdout.splitlines()[1].split()[:3] == ["audit-0", "0", "1"]
    assert text.stderr.startswith("cloned to ")
    assert [row["topic"] for row in Shell(tmp_path / "one").json("topic", "list")] == ["audit"]


def test_erase_names_the_clones(shell, tmp_path):
    shell.ok("clone", str(tmp_path / "copy"))
    result = shell("erase", "orders", "--key", "k3", "--yes")
    assert str(tmp_path / "copy") in result.stdout
    assert "erase them there, too" in result.stderr
    assert "v3" in Shell(tmp_path / "copy").lines("read", "orders")


def test_restore_to_a_moment(shell, tmp_path):
    result = shell("restore", str(tmp_path / "then"), "--to-time", "2026-01-01T00:06:30Z")
    assert result.exit_code == 0, result.output
    then = Shell(tmp_path / "then")
    assert then.lines("read", "orders") == [f"v{n}" for n in range(7)]
    assert then.lines("read", "audit") == ["entry"]
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("orders-0"))
    assert row[1:4] == ["0", "7", "3"]
    assert "as of 2026-01-01T00:06:30.000Z" in result.stderr
    assert len(shell.lines("read", "orders")) == 10


def test_restore_to_offsets(shell, tmp_path):
    shell.ok("restore", str(tmp_path / "a"), "--to-offset", "orders:0=3")
    assert Shell(tmp_path / "a").lines("read", "orders") == ["v0", "v1", "v2"]
    assert Shell(tmp_path / "a").lines("read", "audit") == ["entry"]
    report = shell.json("restore", str(tmp_path / "b"), "--to-offset", "6", "--topic", "orders")
    assert [(row["topic"], row["end_offset"]) for row in report["partitions"]] == [("orders", 6)]
    for wrong, code in [
        (["--to-offset", "6"], ExitCode.USAGE),
        (["--to-offset", "orders=6"], ExitCode.USAGE),
        (["--to-offset", "orders:0=6", "--to-offset", "orders:0=7"], ExitCode.USAGE),
        (["--to-offset", "orders:0=11"], ExitCode.OFFSET_OUT_OF_RANGE),
        (["--to-time", "yesterday"], ExitCode.USAGE),
        ([], ExitCode.USAGE),
    ]:
        assert shell("restore", str(tmp_path / "c"), *wrong).exit_code == code, wrong
    unknown = shell("restore", str(tmp_path / "c"), "--to-offset", "orders:9=9")
    assert unknown.exit_code == ExitCode.USAGE
    assert "--to-offset (to_offsets) names orders:9, which is no partition of what is restored" in (
        unknown.stderr
    )
    assert "audit:0, orders:0" in unknown.stderr
    assert not (tmp_path / "c").exists()


def test_a_store_rebuilt_from_its_archive_alone(shell, tmp_path):
    shell.ok("topic", "alter", "orders", "-c", "remote.storage.enable=true")
    shell.ok("roll", "orders")
    assert "archived 2 segments" in shell("archive").stderr
    shell.ok("topic", "list")
    (tmp_path / "data").rename(tmp_path / "lost")
    url = str(tmp_path / "data.archive")
    then = Shell(tmp_path / "then")
    target = str(tmp_path / "then")
    assert run("restore", target, "--archive", url, "--to-offset", "5").exit_code == ExitCode.USAGE
    result = run("restore", target, "--archive", url)
    assert result.exit_code == 0, result.output
    assert then.lines("read", "orders") == [f"v{n}" for n in range(10)]
    assert run("restore", f"{target}2", "--archive", url, "--to-time", str(NOW + 1)).exit_code == 0
    assert Shell(f"{target}2").lines("read", "orders") == ["v0"]
    assert run("restore", f"{target}3", "--archive", str(tmp_path / "nowhere")).exit_code != 0


def run(*arguments: str):
    """Without a store."""
    return CliRunner(env={"STRATALOG_DATA": ""}).invoke(app, list(arguments))


def test_a_restored_topic_does_not_meet_its_retention(shell, tmp_path):
    shell.ok("topic", "alter", "orders", "-c", "retention.ms=1h")
    result = shell("restore", str(tmp_path / "then"), "--to-time", "2026-01-01T00:03:00Z")
    assert "retention.ms is -1 in the copy (it was 3600000)" in result.stderr
    then = Shell(tmp_path / "then")
    assert then.json("topic", "describe", "orders")["config"]["retention.ms"]["value"] == "-1"
    shell.ok("restore", str(tmp_path / "kept"), "--to-time", "2026-01-01T00:03:00Z", "--keep-retention")
    kept = Shell(tmp_path / "kept").json("topic", "describe", "orders")
    assert kept["config"]["retention.ms"]["value"] == "3600000"


def test_a_topic_as_one_file(shell, tmp_path):
    file = str(tmp_path / "orders.export")
    report = shell.json("export", "orders", file)
    assert (report["topic"], report["partitions"][0]["end_offset"]) == ("orders", 10)
    assert shell("export", "orders", file).exit_code == ExitCode.USAGE
    assert "exported orders to " in shell("export", "orders", file, "--force").stderr
    other = Shell(tmp_path / "other")
    checked = other("import", file, "--check")
    assert checked.exit_code == 0
    assert "is whole" in checked.stderr
    assert not (tmp_path / "other").exists()
    assert other.json("import", file)["settings"]["retention.ms"] == "-1"
    assert other.lines("read", "orders") == shell.lines("read", "orders")
    assert other("import", file).exit_code == ExitCode.TOPIC_EXISTS
    done = other("import", file, "--name", "again", "-c", "segment.bytes=1MiB")
    assert "imported again (" in done.stderr
    assert "segment.bytes=1048576" in done.stderr

    data = bytearray((tmp_path / "orders.export").read_bytes())
    at = data.index(b"v3")
    data[at] ^= 1
    (tmp_path / "bad").write_bytes(data)
    for arguments in (["--check"], ["--name", "bad"]):
        assert other("import", str(tmp_path / "bad"), *arguments).exit_code == ExitCode.CORRUPTION
    assert {row["topic"] for row in other.json("topic", "list")} == {"orders", "again"}
    assert shell("export", "orders", "-", "--json").exit_code == ExitCode.USAGE


def test_a_topic_is_taken_over_from_kafkas_directories(shell, tmp_path):
    """The files of a stopped broker are ours in all but the sidecars: another store stands for one."""
    other = Shell(tmp_path / "other")
    other.ok("topic", "create", "first")
    trial = other("adopt", "orders", *shell.paths, "--dry-run")
    assert "would adopt orders (" in trial.stderr
    assert "retention.ms=-1" in trial.stderr
    assert [row["topic"] for row in other.json("topic", "list")] == ["first"]
    report = other.json("adopt", "orders", *shell.paths, "--name", "taken", "-c", "segment.ms=1h")
    assert report["settings"]["segment.ms"] == "3600000"
    assert other.lines("read", "taken") == shell.lines("read", "orders")
    assert other("adopt", "nope", *shell.paths).exit_code == ExitCode.NOT_FOUND


def test_a_broker_that_is_not_ready_is_told(shell, tmp_path):
    assert shell("graduate", "orders", str(tmp_path / "kafka")).exit_code == ExitCode.NOT_FOUND
    clone = tmp_path / "kafka"
    shell.ok("clone", str(clone), "--topic", "audit")
    trial = shell("graduate", "audit", str(clone), "--dry-run")
    assert trial.exit_code == ExitCode.USAGE
    assert "problem: " in trial.stderr
    assert shell("graduate", "audit", str(clone)).exit_code == ExitCode.USAGE
    assert shell("graduate", "nope", str(clone)).exit_code == ExitCode.NOT_FOUND


def test_an_import_that_fails_leaves_no_store(shell, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    shell.ok("export", "orders", str(whole))
    cut.write_bytes(whole.read_bytes()[:-2000])
    new = Shell(tmp_path / "some" / "where" / "new")
    for arguments in (["import", str(cut)], ["adopt", "orders", str(tmp_path / "nowhere")]):
        assert new(*arguments).exit_code != 0
        assert not (tmp_path / "some").exists(), arguments
    two = Shell(tmp_path / "one", tmp_path / "two")
    assert two("import", str(cut)).exit_code == ExitCode.CORRUPTION
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "two").exists()
    (tmp_path / "some").mkdir()
    assert new("import", str(cut)).exit_code == ExitCode.CORRUPTION
    assert list((tmp_path / "some").iterdir()) == []
    new.ok("import", str(whole))
    assert new("import", str(whole)).exit_code == ExitCode.TOPIC_EXISTS
    assert len(new.lines("read", "orders")) == 10, "a store that was there stays"
