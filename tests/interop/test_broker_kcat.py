"""kcat at our broker: what people type first."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Broker, Store
from tests.interop.client_programs import needed
from tests.interop.kafka import ROOT, wait_until

pytestmark = pytest.mark.interop


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    with stratalog.serve(store) as broker:
        yield broker


def kcat(broker: Broker, *arguments: str, given: str = "") -> str:
    """Return what kcat prints."""
    command = [needed("kcat", "this test"), "-b", broker.bootstrap_servers, *arguments]
    done = subprocess.run(command, input=given, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_what_is_there(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 3)
    told = json.loads(kcat(broker, "-L", "-J"))
    assert [each["id"] for each in told["brokers"]] == [1]
    assert [(each["topic"], len(each["partitions"])) for each in told["topics"]] == [("orders", 3)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_with_keys_and_headers(broker: Broker, store: Store, codec: str) -> None:
    store.create_topic("orders", 2)
    lines = [f"k{n}:v{n}" for n in range(50)]
    produce = "-P", "-t", "orders", "-p", "1", "-K", ":", "-H", "a=1", "-H", "b=", "-z", codec
    kcat(broker, *produce, "-X", "enable.idempotence=true", given="\n".join(lines))
    found = [json.loads(line) for line in kcat(broker, "-C", "-t", "orders", "-e", "-q", "-J").splitlines()]
    assert [f"{each['key']}:{each['payload']}" for each in found] == lines
    assert {(each["partition"], *each["headers"]) for each in found} == {(1, "a", "1", "b", "")}
    assert [each["offset"] for each in found] == list(range(50))
    kept = list(store["orders"].read(1))
    assert [each["ts"] for each in found] == [record.timestamp for record in kept]


def test_offsets_and_times(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders", config={"retention.ms": -1})
    for n in range(100):
        topic.append(b"%d" % n, timestamp=1_000_000 + 10 * n)
    read = "-C", "-t", "orders", "-e", "-q", "-o"
    assert kcat(broker, *read, "90").split() == [str(n) for n in range(90, 100)]
    assert kcat(broker, *read, "-3").split() == ["97", "98", "99"]
    between = kcat(broker, *read, "s@1000200", "-o", "e@1000250").split()
    assert between == ["20", "21", "22", "23", "24"]
    assert kcat(broker, "-Q", "-t", "orders:0:1000095").split() == ["orders", "[0]", "offset", "10"]


def test_groups(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders", 2)
    for begin in (0, 10):
        for n in range(begin, begin + 10):
            topic.append(b"%d" % n, partition=n % 2)
        for name, more in (("plain", ()), ("static", ("-X", "group.instance.id=one"))):
            assigned = "-X", "partition.assignment.strategy=cooperative-sticky", *more
            earliest = "-X", "auto.offset.reset=earliest"
            told = kcat(broker, "-G", name, *assigned, *earliest, "-c", "10", "-q", "orders")
            assert sorted(map(int, told.split())) == list(range(begin, begin + 10))
    for name in ("plain", "static"):
        found = [store.groups.offsets.committed(name, "orders", partition) for partition in range(2)]
        assert [each.offset for each in found if each is not None] == [10, 10]


def test_a_transaction(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    produce = "-P", "-t", "orders", "-X", "transactional.id=kcat"
    kcat(broker, *produce, given="a\nb")
    assert [record.value for record in store["orders"].read()] == [b"a", b"b"]
    end = store["orders"].log_end_offset()
    command = [needed("kcat", "this test"), "-b", broker.bootstrap_servers, *produce]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as killed:
        assert killed.stdin is not None
        killed.stdin.write("c\n" * 20_000)
        killed.stdin.flush()
        wait_until(lambda: store["orders"].log_end_offset() > end, "records of an open transaction")
        killed.kill()
    kcat(broker, *produce, given="d")  # aborts what the one before it left
    read = "-C", "-t", "orders", "-e", "-q", "-X"
    assert kcat(broker, *read, "isolation.level=read_committed").split() == ["a", "b", "d"]
    assert "c" in kcat(broker, *read, "isolation.level=read_uncommitted").split()


def test_the_version_is_the_one_in_the_documentation(broker: Broker) -> None:
    told = kcat(broker, "-V")
    [version] = re.findall(r"Version ([\d.]+)", told)
    assert f"| kcat | {version} |" in (ROOT / "docs" / "BROKER.md").read_text()
