"""Clients in Java, Go and JavaScript at our broker; and at Kafka, to show that they ask for what it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Store
from stratalog.broker.server import Limits
from tests.interop.client_programs import PROGRAMS, Program
from tests.interop.kafka import KafkaBroker

pytestmark = pytest.mark.interop
EVERY = [
    pytest.param(program, scenario, id=f"{program.name}: {scenario}")
    for program in PROGRAMS
    for scenario in program.scenarios
]


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def codec_of(store: Store, topic: str) -> tuple[str, str]:
    """Return the codec in a topic's name, and that of its first batch on disk."""
    segment = Path(store.log_dirs()[0].path, f"{topic}-0", f"{0:020}.log")
    return topic.rpartition("-")[2], CODECS[int.from_bytes(segment.read_bytes()[21:23], "big") & 7]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with stratalog.open(tmp_path_factory.mktemp("programs")) as store:
        yield store


@pytest.fixture(scope="module")
def address(store: Store) -> Iterator[str]:
    with stratalog.serve(store, limits=Limits(group_consumer_heartbeat_interval_ms=200)) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize(("program", "scenario"), EVERY)
def test_at_our_broker(address: str, store: Store, program: Program, scenario: str) -> None:
    program.run(address, scenario)
    if scenario == "records":
        written = {codec_of(store, topic) for topic in store.topics() if "-codec-" in topic}
        assert written == {(codec, codec) for codec in CODECS}
    assert stratalog.verify(store).ok


@pytest.mark.long
@pytest.mark.parametrize(("program", "scenario"), EVERY)
def test_at_kafka(broker: KafkaBroker, program: Program, scenario: str) -> None:
    program.run(broker.bootstrap, scenario)
