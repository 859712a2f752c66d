"""The two servers, each a process of its own: started, asked for its CPU time and its memory, stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import stratalog
from bench.harness import MismatchError
from bench.sections.compaction import JVM_FLAGS
from tests.interop.kafka import KafkaBroker, KafkaError, free_ports

OURS, KAFKA = "stratalog", "Kafka"
START_S = 120.0
STOP_S = 60.0
BROKER_SETTINGS = {
    "log.retention.check.interval.ms": 300_000,  # Kafka's default again, where the tests want another
    "log.segment.delete.delay.ms": 1000,
}
_STARTED_OURS = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""No server outlives the benchmark."""


class Server(Protocol):
    """A broker in a process of its own. It keeps its data and its port when it is started again."""

    name: str
    port: int

    @property
    def pid(self) -> int: ...

    def start(self) -> float:
        """Start; return the seconds until a client had its metadata."""

    def stop(self) -> None: ...


class Ours:
    """``stratalog serve``, as a user starts it."""

    name = OURS

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        source = Path(stratalog.__file__).resolve().parents[1]
        command = ["-m", "stratalog", "serve", "--data", str(self._data), "--listen"]
        began = time.monotonic()
        with self._data.with_suffix(".output").open("ab") as output:
            process = self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _STARTED_OURS),
                    *(sys.executable, *command, f"127.0.0.1:{self.port}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
                    "PYTHONPATH": str(source),
                },
            )
        while not _answers(self.port):
            if process.poll() is not None or time.monotonic() - began > START_S:
                raise MismatchError("stratalog serve did not start")
        return time.monotonic() - began

    def stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Kafka:
    """Kafka 4.3.1 with the heap and the flags of its own scripts."""

    name = KAFKA

    def __init__(self, data: Path) -> None:
        self._broker: Any = KafkaBroker(data, BROKER_SETTINGS, flags=JVM_FLAGS)
        self.port = int(self._broker.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return int(self._broker.pid)

    def start(self) -> float:
        began = time.monotonic()
        try:
            self._broker.start(START_S)
        except KafkaError as error:
            raise MismatchError(str(error)) from error
        return time.monotonic() - began

    def stop(self) -> None:
        with suppress(KafkaError):  # it did not stop in time, and was killed
            self._broker.stop(STOP_S)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return bool(admin(port).list_topics(timeout=2).brokers)
    except (OSError, KafkaException):
        time.sleep(0.02)
        return False


def admin(port: int) -> AdminClient:
    """Return a client for topics."""
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 3})


def resident_mb(pid: int) -> float:
    """Return how much memory a process holds now."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0
