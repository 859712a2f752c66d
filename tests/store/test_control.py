"""Beside a program that holds the store: the control socket, and being told who holds it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.store.admin.control import (
    ControlClient,
    Frame,
    FrameReader,
    listen,
    pack_frame,
    remove_address,
)

HOLDER = """
import sys, stratalog
with stratalog.open(sys.argv[1]) as store:
    store.create_topic("t", partitions=2)
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
    assert child.stdin is not None
    assert child.stdout.readline() == "ready\n"
    yield child
    child.stdin.close()
    assert child.wait(20) == 0
    child.stdout.close()


def test_changes_go_through_the_holder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with stratalog.connect(tmp_path / "data") as client:
        assert client.remote
        assert client.pid == holder.pid
        assert client.create_topic("u", 3, {"segment.bytes": 4096})["partitions"] == 3
        placed = client.append("u", [Record(b"v%d" % i, b"k", [("h", None)]) for i in range(10)], sync=True)
        assert sum(each.count for each in placed) == 10
        client.append("u", [Record(b"at", timestamp=1234)], partition=1)
        assert client.roll("u") >= 1
        client.alter_topic("u", {"segment.bytes": "8192"})
        client.flush()
        with pytest.raises(errors.TopicExistsError):
            client.create_topic("u")
        with pytest.raises(errors.UnknownTopicError):
            client.append("nope", [Record(b"x")])
        with pytest.raises(errors.ConfigError):
            client.alter_topic("u", {"segment.bytes": "many"})
        reader = stratalog.open(tmp_path / "data", read_only=True)
        assert reader.topics() == ["t", "u"]
        assert reader.topic("u").config.segment_bytes == 8192
        records = [record for partition in range(3) for record in reader.topic("u").read(partition)]
        assert len(records) == 11
        assert [record.timestamp for record in records if record.value == b"at"] == [1234]
        client.delete_topic("u")
        assert reader.topics() == ["t"]


def test_the_second_opener_is_told_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(errors.StoreLockedError) as caught:
        stratalog.open(tmp_path / "data")
    assert caught.value.pid == holder.pid
    assert str(holder.pid) in str(caught.value)


def test_without_a_holder_it_opens_the_store_itself(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError):
        stratalog.connect(tmp_path / "data")
    with stratalog.connect(tmp_path / "data", create=True) as client:
        assert not client.remote
        client.create_topic("t")
        client.append("t", [Record(b"x")])
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert [record.value for record in store.topic("t").read()] == [b"x"]


def test_a_holder_that_does_not_answer_is_named(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    client = ControlClient(address, 4711, timeout_s=0.1)
    with pytest.raises(errors.ControlError, match=r"4711.*'roll'"):
        client.request("roll", {})
    client.close()
    listener.close()
    with pytest.raises(errors.ControlError, match="4711"):
        ControlClient(address, 4711)


def test_hostile_frames_end_only_their_connection(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        address = store.control_address
        assert address is not None
        for data in (b"\xff" * 64, struct.pack(">I", 4) + b"nope", pack_frame(Frame({"command": "absent"}))):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
                raw.connect(address)
                raw.sendall(data)
                raw.settimeout(5)
                raw.recv(65536)
        client = ControlClient(address, None)
        assert client.request("ping", {}).header["result"] == {"topics": 0}
        with pytest.raises(errors.ControlError, match="absent"):
            client.request("absent", {})
        with pytest.raises(errors.ControlError, match="missing"):
            client.request("roll", {})
        client.close()
        socket_file = Path(store.control_address or "")
        assert socket_file.stat().st_mode & 0o777 == 0o600
    assert not socket_file.exists()


def test_frames_travel_in_pieces() -> None:
    frame = Frame({"command": "x", "arguments": {"a": 1}}, b"payload")
    reader, taken = FrameReader(), []
    for byte in pack_frame(frame) * 2:
        found = reader.feed(bytes([byte]))
        if found is not None:
            taken.append(found)
    assert reader.empty
    assert [found.payload for found in taken] == [b"payload"] * 2
    assert json.dumps(taken[0].header["arguments"]) == '{"a": 1}'


def test_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with stratalog.open(deep) as store:
        address = store.control_address
        assert address is not None
        assert len(address) < 108
        client = ControlClient(address, None)
        assert client.request("ping", {}).header["result"] == {"topics": 0}
        client.close()
    assert not Path(address).exists()


def test_what_a_killed_holder_left_elsewhere_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else in the temporary directory is touched."""
    data, other = tmp_path / ("d" * 120), tmp_path / ("e" * 120)
    program = "import os, sys, stratalog; stratalog.open(sys.argv[1]); os.kill(os.getpid(), 9)"
    with tempfile.TemporaryDirectory() as short:
        shared = Path(short)
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", None)
        for path in (data, data, other):
            done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
            assert done.returncode == -9
        left = sorted(shared.iterdir())
        assert len(left) == 2  # the second life swept the first
        stranger = shared / f"{left[0].name}x"
        stranger.symlink_to(tmp_path)
        for path, others in ((data, 1), (other, 0)):
            with stratalog.open(path) as store:
                assert len([found for found in left if found.exists()]) == others
                assert str(store.control_address).startswith(short)
        assert list(shared.iterdir()) == [stranger]


def test_a_temporary_directory_that_is_too_deep_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 100)))
    Path(tempfile.gettempdir()).mkdir()
    listener, address = listen(str(tmp_path / ("d" * 120)))
    listener.close()
    assert address.startswith("/tmp/stratalog-")
    remove_address(address)
    assert not Path(address).parent.exists()
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_threads_that_share_a_client_get_their_own_answers(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    names, rounds = ("a", "b", "c"), 60
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with stratalog.connect(tmp_path / "data") as client:
            for name in names:
                client.create_topic(name, 1)

            def append(name: str) -> dict[int, bytes]:
                values = [f"{name}{i}".encode() for i in range(rounds)]
                return {client.append(name, [Record(value)])[0].offset: value for value in values}

            with ThreadPoolExecutor(len(names)) as pool:
                acknowledged = dict(zip(names, pool.map(append, names), strict=True))
    finally:
        sys.setswitchinterval(before)
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        for name in names:
            assert {each.offset: each.value for each in store.topic(name).read(0)} == acknowledged[name]


def test_a_forked_child_may_not_use_its_parents_connection(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with stratalog.connect(tmp_path / "data") as client:
        child = os.fork()
        if child == 0:
            try:
                client.flush()
            except errors.ForkedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        client.flush()


def test_a_request_from_the_progress_of_another_is_refused(tmp_path: Path) -> None:
    listener, address = listen(str(tmp_path))
    listener.setblocking(True)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(pack_frame(Frame({"progress": ["copying", 1, 2]})))
            connection.sendall(pack_frame(Frame({"result": "done"})))

    with closing(listener), closing(ControlClient(address, None, 5)) as client, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        refused = []

        def progress(*_: object) -> None:
            with pytest.raises(errors.ControlError, match="from the progress of another request"):
                client.request("flush", {})
            refused.append(True)

        assert client.request("erase", {}, b"", progress).header["result"] == "done"
        assert refused
        served.result()
