"""kcat at our broker: what people type first. Skipped where it is not installed, which fails in CI."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog import Broker, Store
from tests.broker.test_broker_transactions import until
from tests.interop.client_programs import needed

PAGE = Path(__file__).parents[2] / "docs" / "BROKER.md"


def command_of(broker: Broker, *arguments: str) -> list[str]:
    return [needed("kcat", "this test"), "-b", broker.bootstrap_servers, *arguments]


def kcat(broker: Broker, *arguments: str, given: str = "") -> str:
    """Return what kcat prints."""
    command = command_of(broker, *arguments)
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


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go(broker: Broker, store: Store, tmp_path: Path, assignor: str) -> None:
    """Every record is read once."""
    topic = store.create_topic("orders", 2)
    settings = "-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=100"
    more = "-X", f"partition.assignment.strategy={assignor}", "orders"
    command = command_of(broker, "-G", "g", "-q", "-u", "-f", "%p %o\n", *settings, *more)
    outputs = [tmp_path / "one", tmp_path / "two"]

    def assigned() -> list[int]:
        """How many partitions each member was given."""
        members = [member for group in broker.groups.all() for member in group.members.values()]
        return [int.from_bytes(member.assignment[14:18], "big") for member in members]

    def append_20(count: int) -> None:
        """Append twenty records; wait until that many are read."""
        for n in range(20):
            topic.append(b"x", partition=n % 2)
        until(lambda: sum(len(each.read_text().splitlines()) for each in outputs if each.exists()) >= count)

    with ExitStack() as stack:
        running: list[subprocess.Popen[bytes]] = []
        for output in outputs:
            stdout = stack.enter_context(output.open("wb"))
            running.append(stack.enter_context(subprocess.Popen(command, stdout=stdout)))
            stack.callback(running[-1].kill)
            until(lambda: assigned() == [2 // len(running)] * len(running))
            append_20(20 * len(running))
        assert all(output.read_text() for output in outputs)
        running[0].terminate()
        until(lambda: assigned() == [2])
        append_20(60)
        running[1].terminate()
        assert [each.wait(30) for each in running] == [0, 0]
    lines = [line for output in outputs for line in output.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{partition} {offset}" for partition in range(2) for offset in range(30))


def test_groups_go_on_from_their_offsets(broker: Broker, store: Store) -> None:
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
    with subprocess.Popen(
        command_of(broker, *produce), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as killed:
        assert killed.stdin is not None
        killed.stdin.write("c\n" * 20_000)
        killed.stdin.flush()
        until(lambda: store["orders"].log_end_offset() > end)
        killed.kill()
    kcat(broker, *produce, given="d")  # aborts what the one before it left
    read = "-C", "-t", "orders", "-e", "-q", "-X"
    assert kcat(broker, *read, "isolation.level=read_committed").split() == ["a", "b", "d"]
    assert "c" in kcat(broker, *read, "isolation.level=read_uncommitted").split()


def test_the_version_is_the_one_in_the_documentation(broker: Broker) -> None:
    told = kcat(broker, "-V")
    [version] = re.findall(r"Version ([\d.]+)", told)
    assert f"| kcat | {version} |" in PAGE.read_text()
