"""Consumers of librdkafka, and `stratalog serve` in a process of its own, for tests of groups."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException

WAIT_S = 60
NO_COMPLAINTS = {"log_level": 0}


@contextmanager
def consumer(
    address: str, topics: Sequence[str] = ("orders",), callbacks: dict[str, Any] | None = None, **config: Any
) -> Iterator[Consumer]:
    """Yield a consumer that reads from the start and commits only when told to."""
    made = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **NO_COMPLAINTS,
            **config,
        }
    )
    try:
        if topics:
            made.subscribe(list(topics), **(callbacks or {}))
        yield made
    finally:
        made.close()


def until(true: Callable[[], bool], *consumers: Consumer) -> None:
    """Poll consumers until something holds."""
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s
        for each in consumers:
            each.poll(0.05)


def partitions_of(made: Consumer) -> set[int]:
    return {each.partition for each in made.assignment()}


def values(made: Consumer, count: int) -> list[bytes]:
    """Read ``count`` records; fewer after a minute."""
    found: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline_s:
        message = made.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            found.append(value)
    return found


def commits(made: Consumer) -> bool:
    """Commit what was read; return False if the broker refuses."""
    try:
        made.commit(asynchronous=False)
    except KafkaException:
        return False
    return True


def served(data: Path, listen: str) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """Run `stratalog serve`; yield its process and its address."""
    serve = [sys.executable, "-m", "stratalog", "serve", "--json"]
    return serving([*serve, "--data", str(data), "--listen", listen])


@contextmanager
def serving(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command that serves; yield its process and its address."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["bootstrap_servers"]
        finally:
            process.kill()
