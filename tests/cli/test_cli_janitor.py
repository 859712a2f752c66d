"""Lifecycle commands as processes: beside a program that holds the store, in rounds, on a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stratalog.cli.guard import ExitCode
from tests.cli.shell import Shell
from tests.cli.test_cli_processes import everything, stratalog, terminal

HOUR_MS = 3_600_000
HOLDER = """
import sys, stratalog
from stratalog.model import Record
with stratalog.open(sys.argv[1], {"log.archive.url": sys.argv[2]}) as store:
    old = 3_600_000
    t = store.create_topic("old", config={"retention.ms": "1h"})
    u = store.create_topic(
        "users", config={"cleanup.policy": "compact", "cleaner.min.segment.age.ms": 0, "retention.ms": -1}
    )
    a = store.create_topic("archived", config={"remote.storage.enable": True, "local.retention.bytes": 0})
    import time
    now = time.time_ns() // 1_000_000
    for n in range(3):
        t.append_many([Record(b"x", timestamp=now - (5 - n) * old) for _ in range(10)])
        u.append_many([Record(b"v%d" % n, key=b"k%d" % k) for k in range(5)])
        a.append_many([Record(b"y") for _ in range(10)])
        for each in (t, u, a):
            each.roll()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A store with work to do that another process has open for writing."""
    data, archive = tmp_path / "data", tmp_path / "archive"
    command = [sys.executable, "-c", HOLDER, str(data), str(archive)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield data, process.pid


def states(data, topic: str) -> list[str]:
    return [row["state"] for row in json.loads(stratalog(data, "segments", topic, "--json").stdout)]


def test_every_lifecycle_command_works_beside_a_holder(held, tmp_path):
    data, pid = held
    numbers = {row["topic"]: row for row in json.loads(stratalog(data, "lifecycle", "--json").stdout)}
    assert numbers["old"]["oldest_deletable"] == 0
    preview = json.loads(stratalog(data, "janitor", "--preview", "--json").stdout)
    assert {step["action"] for step in preview["steps"]} == {"delete", "compact", "archive"}

    result = stratalog(data, "retain", "--topic", "old")
    assert (result.returncode, "deleted 3 segments" in result.stderr) == (0, True), result.stderr
    assert states(data, "old") == ["active"]
    everything_ = json.loads(stratalog(data, "segments", "old", "--all", "--json").stdout)
    assert [row["state"] for row in everything_] == ["deleted"] * 3 + ["active"]

    result = stratalog(data, "compact")
    assert "15 → 5" in result.stdout, result.stderr
    assert stratalog(data, "archive").stderr.startswith("archived 3 segments")
    assert (tmp_path / "archive").is_dir(), "where the holder keeps it"
    assert stratalog(data, "janitor").returncode == 0
    listed = stratalog(data, "archive", "--list", "--json", "-S", f"log.archive.url={tmp_path / 'archive'}")
    assert [row["topic"] for row in json.loads(listed.stdout)] == ["archived"]

    refused = stratalog(data, "retain", "--store-config", "log.retention.ms=1")
    assert refused.returncode == ExitCode.USAGE
    assert str(pid) in refused.stderr
    assert stratalog(data, "retain", "--accept-clock").returncode == 0

    erased = stratalog(data, "erase", "users", "-k", "k1", "-y", "--json")
    assert erased.stdout, erased.stderr
    assert json.loads(erased.stdout)["records"] == 1
    assert stratalog(data, "read", "users", "--key", "k1").stdout == ""
    assert stratalog(data, "topic", "create", "p", "--profile", "queue").returncode == 0
    described = json.loads(stratalog(data, "topic", "describe", "p", "--json").stdout)
    assert described["config"]["segment.bytes"]["value"] == str(2**30)


def test_copies_are_made_beside_a_holder(held, tmp_path):
    data, _ = held
    for arguments in (
        ["clone", str(tmp_path / "clone"), "--topic", "users"],
        ["restore", str(tmp_path / "then"), "--topic", "users", "--to-offset", "7"],
        ["export", "users", str(tmp_path / "file")],
        ["import", str(tmp_path / "file"), "--name", "again"],
        ["adopt", "users", str(tmp_path / "clone"), "--name", "adopted"],
    ):
        result = stratalog(data, *arguments)
        assert result.returncode == 0, (arguments, result.stderr)
    whole = stratalog(data, "read", "users").stdout
    for copy, topic, expected in [
        (tmp_path / "clone", "users", whole),
        (tmp_path / "then", "users", "".join(whole.splitlines(keepends=True)[:7])),
        (data, "again", whole),
        (data, "adopted", whole),
    ]:
        assert stratalog(copy, "read", topic).stdout == expected


def test_a_topic_through_a_pipe(tmp_path):
    source, target = Shell(tmp_path / "a"), Shell(tmp_path / "b")
    source.ok("topic", "create", "t", "-c", "retention.ms=-1")
    source.ok("append", "t", stdin="one\ntwo\n")
    cli = f"{sys.executable} -m stratalog.cli"
    script = f"{cli} export t - --data {source.paths[0]} | {cli} import - --data {target.paths[0]}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "imported t" in done.stderr
    assert target.lines("read", "t") == ["one", "two"]


def grow_old(data, count: int = 1) -> None:
    """Segments whose time was up long ago."""
    shell = Shell(data)
    shell("topic", "create", "t", "--if-not-exists", "-c", "retention.ms=1h")
    for _ in range(count):
        shell.ok("append", "t", "--timestamp=-5h", stdin="x\n")
        shell.ok("roll", "t")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, ExitCode.INTERRUPTED)])
def test_round_after_round_until_stopped(tmp_path, number, code):
    """The store is free between rounds: others write to it, and the next round sees that."""
    grow_old(tmp_path)
    env = os.environ | {"STRATALOG_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "stratalog.cli", "janitor", "--watch"]
    command += ["--every", "300ms", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as janitor:
        assert janitor.stdout is not None
        assert janitor.stderr is not None

        def deleted() -> int:
            while True:
                report = json.loads(janitor.stdout.readline())
                if steps := [s for s in report["steps"] if s["due"] and s["action"] == "delete"]:
                    return len(steps)

        assert deleted() == 1
        grow_when_free(tmp_path)
        assert deleted() >= 1
        janitor.send_signal(number)
        assert janitor.wait(timeout=30) == code
        assert "Traceback" not in janitor.stderr.read()


def grow_when_free(data) -> None:
    """Another program's turn; while a round runs, the janitor answers for the store."""
    deadline = time.monotonic() + 30
    for arguments, stdin in ((["append", "t", "--timestamp=-5h"], "x\n"), (["roll", "t"], "")):
        while stratalog(data, *arguments, stdin=stdin).returncode != 0:
            assert time.monotonic() < deadline


def test_a_round_that_fails_does_not_end_the_watch(tmp_path):
    grow_old(tmp_path)
    assert stratalog(tmp_path, "janitor", "--watch", "--topic", "nope").returncode == ExitCode.NOT_FOUND
    with subprocess.Popen(
        [sys.executable, "-m", "stratalog.cli", "janitor", "--watch", "--every", "200ms"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"STRATALOG_DATA": str(tmp_path)},
    ) as janitor:
        assert janitor.stderr is not None
        assert "deleted 1 segment" in janitor.stderr.readline()
        tmp_path.rename(tmp_path.with_name("away"))
        line = ""
        while "no store at" not in line:
            line = janitor.stderr.readline()
            assert line, "it ended"
        assert "the next round is in 200ms" in line
        tmp_path.with_name("away").rename(tmp_path)
        while "nothing to do now" not in line:
            line = janitor.stderr.readline()
            assert line, "it ended"
        janitor.terminate()
        janitor.stderr.read()
        assert janitor.wait(timeout=30) == 0


def test_on_a_terminal(tmp_path):
    grow_old(tmp_path, 2)
    with terminal(tmp_path, "janitor", "--preview") as (process, fd):
        shown = everything(fd)
    assert process.returncode == 0
    assert b"\x1b[31mdelete" in shown
    assert b"would delete 2 segments" in shown
    shell = Shell(tmp_path)
    shell.ok("topic", "create", "users", "-c", "cleanup.policy=compact", "-c", "cleaner.min.segment.age.ms=0")
    shell.ok("append", "users", "-k", "k", stdin="v\n" * 2000)
    shell.ok("roll", "users")
    with terminal(tmp_path, "compact") as (process, fd):
        shown = everything(fd)
    assert b"2,000" in shown
    assert b"compacted 1 partition" in shown


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 2), (b"y\n", 0, 1)])
def test_erasing_asks_on_a_terminal(tmp_path, answer, code, left):
    shell = Shell(tmp_path)
    shell.ok("topic", "create", "t")
    shell.ok("append", "t", "-K", ":", stdin="a:1\nb:2\n")
    with terminal(tmp_path, "erase", "t", "--key", "a") as (process, fd):
        assert b"Erase 1 record of 1 key from t permanently?" in everything(fd, until=b"]:")
        os.write(fd, answer)
        everything(fd)
    assert process.returncode == code
    assert len(shell.lines("read", "t")) == left
