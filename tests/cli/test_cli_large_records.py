"""Records larger than a request of the control socket, and what is said of those that are too large."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import stratalog
from stratalog.cli.guard import ExitCode
from stratalog.errors import ControlError, RecordTooLargeError
from stratalog.store import connect
from stratalog.store.admin import admin, control, control_server
from tests.cli.shell import Shell

MIB = 1 << 20


@pytest.fixture
def small_requests(monkeypatch):
    """A request carries 1 MiB and a payload 2 MiB, so that a large record need not be a huge one."""
    monkeypatch.setattr(admin, "APPEND_BYTES", MIB)
    monkeypatch.setattr(admin, "MAX_PAYLOAD_BYTES", 2 * MIB)
    monkeypatch.setattr(control, "MAX_PAYLOAD_BYTES", 2 * MIB)
    monkeypatch.setattr(control_server, "LARGE_FRAMES_BYTES", 4 * MIB)


@pytest.mark.parametrize("held", [True, False])
def test_records_up_to_the_topics_limit_pass(tmp_path, small_requests, held):
    config = {"max.message.bytes": 12 * MIB, "segment.bytes": 64 * MIB}
    values = [b"a", b"b" * (9 * MIB), b"c", b"d" * (3 * MIB), b"e"]
    with stratalog.open(tmp_path) as store:
        store.create_topic("t", config=config)
        if held:
            with connect(tmp_path) as client:
                assert client.remote
                client.append("t", [stratalog.Record(value) for value in values])
    if not held:
        with connect(tmp_path) as client:
            client.append("t", [stratalog.Record(value) for value in values])
    with stratalog.open(tmp_path, read_only=True) as store:
        assert [record.value for record in store.topic("t").read()] == values


def test_a_record_above_the_limit_is_refused_by_the_holder(tmp_path, small_requests):
    with stratalog.open(tmp_path) as store:
        store.create_topic("t", config={"max.message.bytes": 3 * MIB})
        with connect(tmp_path) as client:
            with pytest.raises(RecordTooLargeError, match="max.message.bytes=3145728"):
                client.append("t", [stratalog.Record(b"x" * (4 * MIB))])
            with pytest.raises(ControlError):
                client.ask(
                    "append", {"topic": "absent", "partition": None, "sync": False}, b"x" * 3 * MIB, None
                )
            client.append("t", [stratalog.Record(b"after")])
        assert [record.value for record in store.topic("t").read()] == [b"after"]


def test_several_large_records_at_once_find_room_one_after_the_other(tmp_path, small_requests):
    script = (
        "import sys, stratalog\n"
        "from stratalog.store import connect\n"
        "from stratalog.store.admin import admin\n"
        f"admin.APPEND_BYTES = {MIB}\n"
        "with connect(sys.argv[1]) as client:\n"
        f"    client.append('t', [stratalog.Record(b'x' * {6 * MIB})] * 3)\n"
    )
    with stratalog.open(tmp_path) as store:
        store.create_topic("t", config={"max.message.bytes": 8 * MIB})
        writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
        assert [writer.wait(120) for writer in writers] == [0, 0, 0]
        assert store.topic("t").high_watermark(0) == 9


@pytest.mark.parametrize("held", [True, False])
def test_append_names_the_line_that_is_too_large(tmp_path, held):
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "t", "--config", "max.message.bytes=1000")
    lines = b"one\ntwo\n" + b"x" * 2000 + b"\nfour\n"
    if held:
        with stratalog.open(tmp_path / "data"):
            done = shell("append", "t", stdin=lines)
    else:
        done = shell("append", "t", stdin=lines)
    assert done.exit_code == ExitCode.RECORD_REFUSED
    assert "stdin line 3: 2" in done.stderr
    assert "record " not in done.stderr.split("—")[0].removeprefix("stratalog: before the error")
    file = tmp_path / "records.jsonl"
    file.write_text('{"value": "a"}\n\n{"value": "' + "x" * 2000 + '"}\n')
    assert f"{file} line 3: " in shell("append", "t", "--jsonl", str(file)).stderr
    assert f"{file}: " in shell("append", "t", "--whole", str(file)).stderr


def test_append_opens_the_store_once(tmp_path, monkeypatch):
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "t")
    opened = []
    usual = stratalog.store.store.Store.__init__

    def counted(self, *arguments, **options):
        opened.append(self)
        usual(self, *arguments, **options)

    monkeypatch.setattr(stratalog.store.store.Store, "__init__", counted)
    shell.ok("append", "t", stdin=b"one\n")
    assert len(opened) == 1
    assert shell("append", "absent", stdin=b"one\n").exit_code == ExitCode.NOT_FOUND
    assert os.listdir(tmp_path / "data")
