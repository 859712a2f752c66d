"""A command whose client has given up: it is cancelled, or the error says that it may still happen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.store.admin import admin
from stratalog.store.admin.admin import COMMANDS
from stratalog.store.admin.control import ControlClient, Frame, Progress, pack_frame
from tests.store.lifecycle_support import eventually

HOLDER = """
import sys, stratalog
with stratalog.open(sys.argv[1]) as store:
    store.create_topic("t")
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield child
    if child.poll() is None:
        os.kill(child.pid, signal.SIGCONT)
        child.communicate(timeout=20)
    assert child.returncode == 0


def stop(child: subprocess.Popen[str]) -> None:
    """Stop a process and wait until it stands still."""
    os.kill(child.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{child.pid}/stat")
    eventually(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")


@pytest.mark.parametrize("connected", ["before", "after"])
def test_what_was_asked_of_a_stopped_holder_does_not_happen_when_it_wakes_up(
    tmp_path: Path, holder: subprocess.Popen[str], connected: str
) -> None:
    data = tmp_path / "data"
    if connected == "before":
        with stratalog.connect(data) as patient:
            patient.flush()
        client = stratalog.connect(data, timeout_s=0.1)
    stop(holder)
    if connected == "after":
        client = stratalog.connect(data, timeout_s=0.1)
    with client:
        with pytest.raises(
            errors.ControlError, match="did not answer 'create_topic'.*had not started and was cancel"
        ):
            client.create_topic("late")
        with pytest.raises(errors.ControlError, match="had not started and was cancelled"):
            client.append("t", [Record(b"late")])
        with pytest.raises(errors.ControlError, match="had not started and was cancelled"):
            client.append("t", [Record(b"x" * 4_000_000)])  # more than a socket takes
        os.kill(holder.pid, signal.SIGCONT)
    with stratalog.connect(data) as other:
        assert other.append("t", [Record(b"awake")])[0].offset == 0
    holder.communicate(timeout=20)  # it waits for whatever it has begun
    with stratalog.open(data, read_only=True) as store:
        assert store.topics() == ["t"]
        assert [record.value for record in store.topic("t").read()] == [b"awake"]


def test_what_was_begun_may_still_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, ran = threading.Event(), threading.Event()
    entry = COMMANDS["ping"]

    def wait(*_: object) -> None:
        go_on.wait(20)
        ran.set()

    with stratalog.open(tmp_path / "data") as store:
        assert store.control_address is not None
        client = ControlClient(store.control_address, 4711, timeout_s=0.1)
        monkeypatch.setitem(COMMANDS, "ping", entry._replace(run=wait))
        with pytest.raises(errors.ControlError, match="4711.*'ping'.*had started and may still complete"):
            client.request("ping", {})
        go_on.set()
        assert ran.wait(20)
        monkeypatch.setitem(COMMANDS, "ping", entry)
        # Its answer is not taken for that of the next request.
        assert client.request("ping", {}).header["result"] == {"topics": 0}
        client.close()


def test_a_client_that_is_interrupted_does_not_meet_its_old_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(store: object, progress: Progress) -> str:
        progress("work", 1, 2)
        return "old"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with stratalog.open(tmp_path / "data") as store:
        assert store.control_address is not None
        client = ControlClient(store.control_address, None)
        monkeypatch.setitem(COMMANDS, "flush", COMMANDS["flush"]._replace(run=tell, takes_progress=True))
        with pytest.raises(KeyboardInterrupt):
            client.request("flush", {}, progress=interrupt)
        assert client.request("ping", {}).header["result"] == {"topics": 0}
        client.close()


def test_of_many_commands_sent_at_once_those_left_are_cancelled_with_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()
    count = []

    def wait(*_: object) -> None:
        count.append(1)
        began.release()
        go_on.wait(20)

    with stratalog.open(tmp_path / "data") as store:
        assert store.control_address is not None
        monkeypatch.setitem(COMMANDS, "ping", COMMANDS["ping"]._replace(run=wait))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.connect(store.control_address)
            raw.sendall(pack_frame(Frame({"command": "ping", "arguments": {}})) * 5)
            assert began.acquire(timeout=20)
        go_on.set()
    assert count == [1]


def test_numbers_and_previews_are_read_beside_a_holder_that_does_not_answer(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "ANSWER_S", 0.2)
    with stratalog.connect(tmp_path / "data", read_only=True) as client:
        assert client.remote
    stop(holder)
    with stratalog.connect(tmp_path / "data", read_only=True) as client:
        assert not client.remote
        assert [each.topic for each in client.lifecycle()] == ["t"]
        assert client.janitor(preview=True).preview
