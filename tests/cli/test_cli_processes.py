"""The command line as processes: beside a program that holds the store, in pipes, on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stratalog.cli.guard import ExitCode
from stratalog.fs import DirectoryLock

HOLDER = """
import sys, stratalog
with stratalog.open(sys.argv[1]) as store, stratalog.serve(store):
    topic = store.create_topic("held", partitions=1)
    topic.append(b"from the holder")
    print("ready", flush=True)
    sys.stdin.read()
"""


def stratalog(data, *arguments: str, stdin: str = "", **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "stratalog.cli", *arguments]
    env = os.environ | {"STRATALOG_DATA": str(data)}
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=env, check=False, **options
    )


@pytest.fixture
def held(tmp_path):
    """A store that another process has open for writing, and serves."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield tmp_path, process.pid


def test_every_command_works_beside_a_holder(held):
    data, pid = held
    assert stratalog(data, "read", "held").stdout == "from the holder\n"
    for arguments, stdin in [
        (["topic", "create", "t", "--partitions", "2"], ""),
        (["topic", "alter", "t", "--config", "segment.ms=1h"], ""),
        (["topic", "alter", "t", "--partitions", "3"], ""),
        (["append", "t", "--key", "k", "--sync"], "one\ntwo\n"),
        (["roll", "t"], ""),
        (["append", "t", "--key", "k"], "three\n"),
        (["repair", "t", "--dry-run"], ""),
    ]:
        result = stratalog(data, *arguments, stdin=stdin)
        assert (result.returncode, result.stdout) == (0, ""), (arguments, result.stderr)
    assert stratalog(data, "read", "t").stdout.split() == ["one", "two", "three"]
    assert stratalog(data, "read", "t", "--key", "k", "--last").stdout == "three\n"
    states = [row["state"] for row in json.loads(stratalog(data, "segments", "t", "--json").stdout)]
    assert states.count("sealed") == 1
    described = json.loads(stratalog(data, "topic", "describe", "t", "--json").stdout)
    assert described["config"]["segment.ms"]["value"] == "3600000"
    assert json.loads(stratalog(data, "log-dirs", "--json").stdout)[0]["holder_pid"] == pid
    assert stratalog(data, "verify").returncode == 0
    assert stratalog(data, "config", "t", "--changed").returncode == 0
    errors = [
        (["topic", "create", "t"], ExitCode.TOPIC_EXISTS),
        (["topic", "create", "a b"], ExitCode.USAGE),
        (["append", "nope"], ExitCode.NOT_FOUND),
        (["topic", "delete", "nope", "-y"], ExitCode.NOT_FOUND),
    ]
    for arguments, code in errors:
        result = stratalog(data, *arguments, stdin="x\n")
        assert result.returncode == code, (arguments, result.stderr)
        assert result.stderr.count("\n") == 1
    assert stratalog(data, "topic", "delete", "t", "--yes").returncode == 0
    assert [row["topic"] for row in json.loads(stratalog(data, "topic", "list", "--json").stdout)] == ["held"]


def test_a_holder_that_takes_no_commands_is_named(tmp_path):
    assert stratalog(tmp_path, "topic", "create", "t").returncode == 0
    lock = DirectoryLock.acquire(f"{tmp_path}/.lock", {"pid": os.getpid()})
    try:
        result = stratalog(tmp_path, "append", "t", stdin="x\n")
        assert result.returncode == ExitCode.LOCKED
        assert str(os.getpid()) in result.stderr
        assert result.stderr.count("\n") == 1
        assert stratalog(tmp_path, "read", "t").returncode == 0
    finally:
        lock.release()


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    stratalog(tmp_path, "topic", "create", "t")
    stratalog(tmp_path, "append", "t", stdin="some text\n" * 50_000)
    for command in ("read t", "read t --json", "config"):
        script = f"{sys.executable} -m stratalog.cli {command} | head -n 1; echo ${{PIPESTATUS[0]}}"
        result = stratalog_shell(tmp_path, script)
        assert result.stderr == ""
        assert result.stdout.splitlines()[-1] in ("141", "0")


def stratalog_shell(data, script: str) -> subprocess.CompletedProcess:
    env = os.environ | {"STRATALOG_DATA": str(data)}
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize("partitions", ["1", "3"])
def test_following_until_interrupted(tmp_path, partitions):
    stratalog(tmp_path, "topic", "create", "t", "--partitions", partitions)
    stratalog(tmp_path, "append", "t", stdin="before\n")
    env = os.environ | {"STRATALOG_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "stratalog.cli"]
    command += ["read", "t", "--follow", "--from", "earliest"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == "before\n"
        for n in range(3):
            stratalog(tmp_path, "append", "t", "--key", str(n), stdin=f"line {n}\n")
            assert reader.stdout.readline() == f"line {n}\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(timeout=20) == ExitCode.INTERRUPTED
        assert reader.stderr.read() == ""


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted_at:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

interrupted_at = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
from stratalog.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "lines"),
    [("typer", 1), ("stratalog.cli.app", 1), ("stratalog.cli.commands.read", 0), ("stratalog.store", 0)],
)
def test_interrupted_while_loading(tmp_path, module, lines):
    stratalog(tmp_path, "topic", "create", "t")
    stratalog(tmp_path, "append", "t", stdin="one\n")
    env = os.environ | {"STRATALOG_DATA": str(tmp_path)}
    command = [sys.executable, "-c", INTERRUPTED, module]
    command += ["read", "t", "--to", "now"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == ExitCode.INTERRUPTED, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == lines
    assert "Traceback" not in done.stderr


def test_an_interrupted_append_reports_what_was_acknowledged(tmp_path):
    stratalog(tmp_path, "topic", "create", "t")
    env = os.environ | {"STRATALOG_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "stratalog.cli", "append", "t"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env) as writer:
        assert writer.stdin is not None
        writer.stdin.write("one\ntwo\n")
        writer.stdin.flush()
        deadline = time.monotonic() + 30
        while stratalog(tmp_path, "read", "t").stdout.split() != ["one", "two"]:
            assert time.monotonic() < deadline
        writer.send_signal(signal.SIGINT)
        _, said = writer.communicate(timeout=20)
    assert writer.returncode == ExitCode.INTERRUPTED
    assert "interrupted; appended 2 records to t (partition:offset 0:0-1)" in said
    assert said.count("\n") == 1


@contextlib.contextmanager
def terminal(data, *arguments: str, **extra: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """Runs the command on a pseudo-terminal 100 columns wide."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {"STRATALOG_DATA": str(data), "TERM": "xterm-256color", "COLUMNS": "100", **extra}
    command = [sys.executable, "-m", "stratalog.cli", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            os.close(ours)


def everything(terminal_fd: int, until: bytes | None = None) -> bytes:
    """What the terminal shows, until a text appears or the program ends."""
    shown = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (until is None or until not in shown):
        if select.select([terminal_fd], [], [], 1)[0]:
            try:
                data = os.read(terminal_fd, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
    return shown


def test_on_a_terminal(tmp_path):
    stratalog(tmp_path, "topic", "create", "t")
    stratalog(tmp_path, "append", "t", "--key", "k", "--timestamp", "2026-01-01", stdin="hello \x1b[2J\n")
    with terminal(tmp_path, "read", "t") as (_, fd):
        shown = everything(fd)
    assert b"\x1b[36mk\x1b[0m" in shown
    assert b"hello \\x1b[2J" in shown
    with terminal(tmp_path, "read", "t", NO_COLOR="1") as (_, fd):
        assert everything(fd) == b"0:0  2026-01-01T00:00:00.000Z  k  hello \\x1b[2J\r\n"
    with terminal(tmp_path, "segments", "t") as (_, fd):
        shown = everything(fd)
    assert b"active" in shown
    assert b"\x1b[" in shown
    with terminal(tmp_path, "segments", "t", NO_COLOR="1") as (_, fd):
        assert b"\x1b[3" not in everything(fd)
    with terminal(tmp_path, "verify") as (process, fd):
        assert b"no damage in" in everything(fd)
    assert process.returncode == 0


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_deleting_asks_on_a_terminal(tmp_path, answer, code):
    stratalog(tmp_path, "topic", "create", "t")
    with terminal(tmp_path, "topic", "delete", "t") as (process, fd):
        assert b"Delete t and every record in it?" in everything(fd, until=b"]")
        os.write(fd, answer)
        everything(fd)
    assert process.returncode == code


def test_topics_are_completed(tmp_path):
    stratalog(tmp_path, "topic", "create", "orders")
    words = "stratalog read or"
    bash = {"_STRATALOG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    env = os.environ | bash | {"STRATALOG_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "stratalog.cli"]
    found = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert "orders" in found.stdout
    missing = subprocess.run(
        command, capture_output=True, text=True, env=env | {"STRATALOG_DATA": "/nowhere"}, check=False
    )
    assert missing.stdout.strip() == ""
    assert "Traceback" not in missing.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_started_without_its_streams(tmp_path, closed):
    assert stratalog(tmp_path, "topic", "create", "t").returncode == 0
    for arguments in ("append t", "read t", "topic list"):
        command = f"exec {sys.executable} -m stratalog.cli {arguments} {closed}"
        done = subprocess.run(
            ["sh", "-c", command],
            env=os.environ | {"STRATALOG_DATA": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "unexpected" not in done.stderr
