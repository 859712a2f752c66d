"""Settings of `stratalog serve`: a file with Kafka names, the environment, options; errors name the place."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.broker.operations.settings import parse, parse_listener, read_properties
from stratalog.broker.server import Address
from stratalog.cli.commands.serve import MOST_FILES
from stratalog.errors import ConfigError
from tests.broker.test_broker_admin import BROKER, described
from tests.broker.test_broker_bytes import Wire

WAIT_S = 60
FILE = """\
# a broker on one machine
listeners=PLAINTEXT://127.0.0.1:0
advertised.listeners = PLAINTEXT://localhost:9999
log.dirs={data}/a, {data}/b

auto.create.topics.enable=false
max.connections=7
log.retention.ms=1000000
num.partitions=3
"""


def serve(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stratalog", "serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def refused(*arguments: str, **environment: str) -> tuple[int, str]:
    with serve(*arguments, **environment) as process:
        _, errors = process.communicate(timeout=WAIT_S)
        return process.returncode, errors


def test_a_file_the_environment_and_options_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(FILE.format(data=tmp_path))
    arguments = "--config", str(path), "--store-config", "num.partitions=5", "--json"
    with serve(*arguments, STRATALOG_CONFIG="max.connections=9;num.partitions=4") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["bootstrap_servers"] == "localhost:9999"
        assert 0 < ready["ready_s"] < WAIT_S
        values = _asked(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=WAIT_S)[1] == ""
    assert values["max.connections"] == "9"
    assert values["num.partitions"] == "5"
    assert values["log.retention.ms"] == "1000000"
    assert values["auto.create.topics.enable"] == "false"
    assert values["log.dirs"] == f"{tmp_path}/a,{tmp_path}/b"
    assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()


def test_a_low_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """Shells often have 1,024, which is less than ``max.connections``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-m", "stratalog", "serve", "--data", str(tmp_path / "data"), "--json"]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *command, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (wanted, hard)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def _asked(pid: int) -> dict[str, Any]:
    """Return the settings that a broker tells; its port is that of the one socket it listens on."""
    inodes = {
        link.removeprefix("socket:[").removesuffix("]")
        for fd in Path(f"/proc/{pid}/fd").iterdir()
        if (link := os.readlink(fd)).startswith("socket:[")
    }
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    [port] = [int(line[1].split(":")[1], 16) for line in lines if line[9] in inodes and line[3] == "0A"]

    class At:
        address = ("127.0.0.1", port)

    wire = Wire(At)  # type: ignore[arg-type]
    try:
        return {each.name: each.value for each in described(wire, BROKER, "1").configs}
    finally:
        wire.sock.close()


def test_all_unknown_names_of_a_file_are_named_at_once() -> None:
    text = "broker.id=1\nlog.dirs=a\nzookeeper.connect=x:1\nmax.conections=5\n"
    with pytest.raises(ConfigError) as caught:
        parse(read_properties(text, "server.properties"))
    assert str(caught.value) == (
        "server.properties, line 1: broker.id is not a setting of this broker; leave it out, and also"
        " zookeeper.connect (server.properties, line 3), max.conections (server.properties, line 4;"
        " did you mean max.connections?)"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max.conections=5", "line 2: max.conections is not a setting of this broker; did you mean max.conn"),
        ("num.network.threads=3", "line 2: num.network.threads is not a setting of this broker"),
        ("max.connections=many", "line 2: max.connections=many: must be a whole number"),
        ("max.connections=0", "line 2: max.connections=0: out of range, must be 1 to 2147483647"),
        ("log.retention.ms=soon", "line 2: log.retention.ms=soon"),
        ("max.connections", "line 2: 'max.connections' is not NAME=VALUE on one line"),
        ("log.dirs=a,\\", "is not NAME=VALUE on one line"),
        ("a=1", "line 2: a is also in line 1"),
        ("listeners=SSL://x:1", "line 2: 'SSL://x:1': one listener is served, PLAINTEXT://HOST:PORT"),
        ("listeners=a:1,b:2", "one listener is served"),
        ("listeners=nowhere", "is not HOST:PORT"),
        ("auto.create.topics.enable=perhaps", "must be true or false"),
        ("group.consumer.assignors=sticky", "group.consumer.assignors=sticky: must be one or more of range"),
        ("group.consumer.assignors=", "must be one or more of range, uniform"),
    ],
)
def test_an_unclear_line_is_named(line: str, words: str) -> None:
    first = "a=1\n" if line == "a=1" else "# first\n"
    with pytest.raises(ConfigError) as caught:
        parse(read_properties(f"{first}{line}\n", "server.properties"))
    assert words in str(caught.value)
    assert str(caught.value).startswith("server.properties, line 2: ")


def test_addresses() -> None:
    assert parse_listener("PLAINTEXT://0.0.0.0:9092") == Address("0.0.0.0", 9092)
    assert parse_listener("[::1]:0") == Address("::1", 0)


def test_what_is_wrong_on_the_command_line(tmp_path: Path) -> None:
    data = "--data", str(tmp_path / "data")
    code, words = refused(*data, "--config", str(tmp_path / "nowhere"))
    assert code != 0
    assert "no such file" in words
    code, words = refused(*data, STRATALOG_CONFIG="max.connections=many")
    assert code != 0
    assert "max.connections=many: must be a whole number" in words
    assert "docs/BROKER.md" in words, "`stratalog config` has the settings of the store alone"
    with stratalog.open(tmp_path / "data"):
        code, words = refused(*data)
    assert code != 0
    assert str(os.getpid()) in words, "the process that holds the store"
    assert "one process at a time writes or serves a store" in words
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        code, words = refused("--data", str(tmp_path / "other"), "--listen", f"{host}:{port}")
    assert code == 2
    assert f"cannot listen on {host}:{port}: address already in use; give another address" in words
