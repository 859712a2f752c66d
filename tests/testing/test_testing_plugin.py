"""The pytest plugin and its brokers: fixtures, faults, restarts, kills and clones, with a real client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from stratalog.broker.codes import Code
from stratalog.errors import ClosedError, InvalidArgumentError, TopicExistsError
from stratalog.testing import LocalBroker, ProcessBroker
from stratalog.testing.faults import ERRORS, refusal
from stratalog.wire.messages import codec
from stratalog.wire.schema import table
from tests.broker.test_broker_bytes import Wire, batch, fetch_fields, metadata_topic, produce_fields

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60
PLUGIN = ("-p", "no:stratalog", "-p", "stratalog.testing.plugin", "-p", "no:cacheprovider")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "data") as made:
        yield made


def produce(broker: LocalBroker | ProcessBroker, value: str, topic: str = "orders", **config: str) -> int:
    """Produce one record; return its offset, or raise the client's error."""
    found: list[int] = []
    failed: list[KafkaError] = []

    def done(error: KafkaError | None, message: object) -> None:
        if error is not None:
            failed.append(error)
        else:
            found.append(message.offset())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **config})
    producer.produce(topic, value, partition=0, on_delivery=done)
    assert not producer.flush(WAIT_S)
    if failed:
        raise KafkaException(failed[0])
    return found[0]


def host_and_port(broker: ProcessBroker) -> tuple[str, int]:
    host, port = broker.bootstrap_servers.split(":")
    return host, int(port)


def values(broker: LocalBroker | ProcessBroker, wanted: int, topic: str = "orders") -> list[bytes]:
    """Read the first ``wanted`` records with a client."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < wanted:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value())
        return found
    finally:
        consumer.close()


# -- faults --------------------------------------------------------------------------------------------------


def test_a_producer_retries_what_can_be_retried(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    assert produce(broker, "a") == 0
    assert [each.value for each in broker.store["orders"].read()] == [b"a"]


def test_an_error_that_is_final_reaches_the_program_and_has_no_effect(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    broker.fail_next("Produce", "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException) as caught:
        produce(broker, "a")
    assert caught.value.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
    assert produce(broker, "b") == 0


def test_one_partition_fails_and_the_others_are_written(broker: LocalBroker) -> None:
    broker.create_topic("orders", 2)
    broker.create_topic("other", 2)
    broker.fail_next("Produce", "KAFKA_STORAGE_ERROR", topic="orders", partition=1)
    made = codec("ProduceRequest")
    part, topic = made.struct("PartitionProduceData"), made.struct("TopicProduceData")
    parts = [part(index=at, records=batch(b"x")) for at in (0, 1)]
    fields = produce_fields("orders", None) | {
        "topic_data": [topic(name=name, partition_data=parts) for name in ("orders", "other")]
    }
    wire = Wire(broker.broker)
    answer = wire.ask("Produce", 9, **fields)
    found = {
        (each.name, one.index): one.error_code
        for each in answer.responses
        for one in each.partition_responses
    }
    assert found == {
        ("orders", 0): 0,
        ("orders", 1): Code.KAFKA_STORAGE_ERROR,
        ("other", 0): 0,
        ("other", 1): 0,
    }
    assert [len(answer.responses), broker.store["orders"].high_watermark(1)] == [2, 0]
    assert broker.store["orders"].high_watermark(0) == 1
    again = wire.ask("Produce", 9, **produce_fields("orders", batch(b"y"), partition=1))
    assert again.responses[0].partition_responses[0].error_code == 0
    wire.sock.close()


def test_a_delayed_request_keeps_its_bytes_and_others_go_on(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    broker.delay_next("Produce", 3600)
    wire, other = Wire(broker.broker), Wire(broker.broker)
    wire.sock.sendall(wire.frame("Produce", 9, **produce_fields("orders", batch(b"slow"))))
    wire.sock.sendall(wire.frame("Metadata", 9, 2, topics=None))
    assert other.ask("ApiVersions", 3).error_code == 0
    assert broker.store["orders"].high_watermark(0) == 0
    broker.clear_faults()
    assert wire.answer("Produce", 9).responses[0].partition_responses[0].base_offset == 0
    assert wire.answer("Metadata", 9, 2).topics[0].name == "orders"
    assert [each.value for each in broker.store["orders"].read()] == [b"slow"]
    for each in (wire, other):
        each.sock.close()


def test_a_delay_ends_by_itself(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    broker.delay_next("Produce", 0.01, times=None)
    assert [produce(broker, each) for each in "ab"] == [0, 1]


def test_a_delay_that_ends_as_the_faults_are_cleared_ends_once(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("orders")
    broker.delay_next("Produce", 0.01)
    wire, other = Wire(broker.broker), Wire(broker.broker)
    wire.sock.sendall(wire.frame("Produce", 9, **produce_fields("orders", batch(b"slow"))))
    assert other.ask("ApiVersions", 3).error_code == 0
    broker.pause()
    time.sleep(0.02)  # it is due when the loop goes on
    broker.clear_faults()
    broker.resume()
    assert wire.answer("Produce", 9).responses[0].partition_responses[0].base_offset == 0
    assert wire.ask("ApiVersions", 3).error_code == 0
    assert "unexpected" not in caplog.text
    for each in (wire, other):
        each.sock.close()


def test_a_dropped_answer_of_a_fetch_leaves_no_file_open(broker: LocalBroker) -> None:
    orders = broker.create_topic("orders")
    orders.append(b"a")
    broker.drop_next("Fetch", when="after")
    wire = Wire(broker.broker)
    wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 0)))
    assert wire.closed
    wire.sock.close()
    broker.store.delete_topic("orders")
    broker.stop()
    paths = [target(each) for each in Path("/proc/self/fd").iterdir()]
    assert [path for path in paths if path.startswith(str(broker.directory))] == []


def target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # the listing's own
        return ""


@pytest.mark.parametrize(("when", "written"), [("before", 0), ("after", 1)])
def test_a_dropped_connection_with_and_without_the_effect(broker: LocalBroker, when, written) -> None:
    broker.create_topic("orders")
    broker.drop_next("Produce", when=when)
    wire = Wire(broker.broker)
    wire.sock.sendall(wire.frame("Produce", 9, **produce_fields("orders", batch(b"a"))))
    assert wire.closed
    wire.sock.close()
    assert broker.store["orders"].high_watermark(0) == written
    # A client that is idempotent writes once in either case.
    broker.drop_next("Produce", when=when)
    assert produce(broker, "b", **{"enable.idempotence": "true"}) == written


def test_names_are_kafkas_and_a_wrong_one_is_told(broker: LocalBroker) -> None:
    with pytest.raises(
        InvalidArgumentError, match="'Prodcue' is not an API of this broker; did you mean Produce"
    ):
        broker.fail_next("Prodcue", "NOT_ENOUGH_REPLICAS")
    with pytest.raises(
        InvalidArgumentError, match="'OOPS' is not an error of Kafka; expected one of .*UNKNOWN_TOPIC_ID"
    ):
        broker.fail_next("Produce", "OOPS")
    with pytest.raises(InvalidArgumentError, match="requests of Heartbeat name no topics"):
        broker.fail_next("Heartbeat", "NOT_COORDINATOR", partition=0)
    with pytest.raises(InvalidArgumentError, match="times"):
        broker.delay_next("Fetch", 1, times=0)
    with pytest.raises(InvalidArgumentError, match="seconds"):
        broker.delay_next("Fetch", 0)
    with pytest.raises(InvalidArgumentError, match="when"):
        broker.drop_next("Fetch", when="never")  # type: ignore[arg-type]
    by_type: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("api must be a string, not 0", (0, "NOT_COORDINATOR"), {}),
        ("error must be a string, not 19", ("Produce", 19), {}),
        ("topic must be a string, not b'o'", ("Produce", "NONE"), {"topic": b"o"}),
        ("partition must be a whole number, not '0'", ("Produce", "NONE"), {"partition": "0"}),
        ("times must be a whole number, not '2'", ("Produce", "NONE"), {"times": "2"}),
    ]
    for words, arguments, named in by_type:
        with pytest.raises(InvalidArgumentError, match=words):
            broker.fail_next(*arguments, **named)
    with pytest.raises(InvalidArgumentError, match="seconds must be a number of seconds, not '1'"):
        broker.delay_next("Fetch", "1")  # type: ignore[arg-type]
    broker.stop()
    with pytest.raises(ClosedError):
        broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS")


def test_errors_have_kafkas_numbers() -> None:
    assert {each.name: each.value for each in Code}.items() <= ERRORS.items()
    assert {each.name.upper(): each.value for each in ErrorCode} == ERRORS


def test_a_broker_without_faults_runs_its_own_handlers(broker: LocalBroker) -> None:
    before = dict(broker.broker.apis)
    broker.clear_faults()
    assert broker.broker.apis == before
    broker.fail_next("Fetch", "KAFKA_STORAGE_ERROR")
    changed = [key for key, api in broker.broker.apis.items() if api != before[key]]
    assert changed == [1]


def filled(name: str, struct) -> dict[str, object]:
    """Fields for a request of any API that name one of everything."""
    fields: dict[str, object] = {}
    for field in struct.fields:
        at = field.name[0].lower() + field.name[1:]
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in at)
        if field.struct is not None:
            made = codec(name).struct(field.struct.name)(**filled(name, field.struct))
            fields[snake] = (made,) if field.is_array else made
        elif field.is_array:
            fields[snake] = ("x",) if field.kind == "string" else (0,) if field.kind.startswith("int") else ()
        elif field.kind == "string":
            fields[snake] = "x"
    return fields


def test_every_api_can_be_refused_in_every_version(broker: LocalBroker) -> None:
    """The answer can be encoded, and carries the error at least once; ids and names are the request's."""
    for api in broker.broker.apis.values():
        name = api.request.name
        body = api.request(**filled(name, table("requests")[name].struct))
        for version in range(api.versions.low, api.versions.high + 1):
            asked, _ = api.request.decode(api.request.encode(body, version), version)
            answer = refusal(api, asked, ERRORS["KAFKA_STORAGE_ERROR"])
            data = api.response.encode(answer, version)
            found, _ = api.response.decode(data, version)
            if api.request.name != "ListGroupsRequest" or version:
                assert f"error_code={Code.KAFKA_STORAGE_ERROR.value}" in str(found), (name, version)


def test_a_failed_look_at_the_cluster_still_names_its_brokers(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    wire = Wire(broker.broker)
    answer = wire.ask("Metadata", 9, topics=[metadata_topic(name="orders")])
    assert [each.error_code for each in answer.topics] == [ERRORS["LEADER_NOT_AVAILABLE"]]
    assert len(answer.brokers) == 1
    wire.sock.close()


# -- life ----------------------------------------------------------------------------------------------------


def test_a_restart_keeps_port_and_records(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    before = broker.bootstrap_servers
    produce(broker, "a")
    broker.restart()
    assert broker.bootstrap_servers == before
    assert produce(broker, "b") == 1
    assert values(broker, 2) == [b"a", b"b"]


def test_a_clone_goes_its_own_way(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    produce(broker, "a")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    clone = broker.clone()
    produce(broker, "b")
    produce(clone, "c")
    clone.create_topic("more")
    assert values(broker, 2) == [b"a", b"b"]
    assert values(clone, 2) == [b"a", b"c"]
    assert "more" not in broker.store
    consumer = Consumer({"bootstrap.servers": clone.bootstrap_servers, "group.id": "g"})
    assert consumer.committed([TopicPartition("orders", 0)], timeout=WAIT_S)[0].offset == 1
    consumer.close()
    again = clone.clone()
    assert values(again, 2) == [b"a", b"c"]
    broker.stop()
    with pytest.raises(ClosedError):
        _ = again.store


def test_a_paused_broker_answers_later(broker: LocalBroker) -> None:
    broker.pause()
    broker.pause()
    wire = Wire(broker.broker)  # the kernel takes it
    wire.sock.sendall(wire.frame("ApiVersions", 3))
    wire.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        wire.sock.recv(1)
    wire.sock.settimeout(WAIT_S)
    broker.resume()
    assert wire.answer("ApiVersions", 3).error_code == 0
    wire.sock.close()


def test_a_killed_broker_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with ProcessBroker(tmp_path / "data") as broker:
        broker.create_topic("orders")
        with pytest.raises(TopicExistsError):
            broker.create_topic("orders")
        with pytest.raises(InvalidArgumentError, match="not an API"):
            broker.fail_next("Nothing", "NONE")
        broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
        assert produce(broker, "a") == 0
        broker.pause()
        broker.resume()
        broker.kill()
        with pytest.raises(ClosedError):
            broker.kill()
        with pytest.raises(OSError):
            socket.create_connection(host_and_port(broker), timeout=WAIT_S)
        dead = broker.clone()
        broker.restart()
        assert produce(broker, "b") == 1
        assert values(broker, 2) == [b"a", b"b"]
        assert values(dead, 1) == [b"a"]
        clone = broker.clone()
        assert values(clone, 2) == [b"a", b"b"]
        with broker.connect() as admin:
            assert admin.describe_topic("orders")["partitions"] == 1


def test_a_process_that_ended_by_itself_can_be_started_again(tmp_path: Path) -> None:
    with ProcessBroker(tmp_path / "data") as broker:
        broker.create_topic("orders")
        os.kill(broker.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ClosedError):
                broker.create_topic("more")
        broker.restart()
        assert produce(broker, "a") == 0
        os.kill(broker.pid, signal.SIGKILL)
        broker.restart()
        assert values(broker, 1) == [b"a"]


def test_an_error_in_the_process_is_raised_here(tmp_path: Path) -> None:
    with ProcessBroker(tmp_path / "data") as broker:
        with pytest.raises(InvalidArgumentError, match="times must be a whole number"):
            broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times="2")  # type: ignore[arg-type]
        broker.create_topic("orders")
        broker.pause()
        with pytest.raises(InvalidArgumentError, match="paused"):
            broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
        broker.resume()
        broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
        assert produce(broker, "a") == 0


def test_a_clone_after_a_restart_has_a_directory_of_its_own(broker: LocalBroker) -> None:
    broker.create_topic("orders")
    first = broker.clone().directory
    broker.stop()
    broker.restart()
    second = broker.clone()
    assert second.directory != first
    assert second.store.topics() == ["orders"]


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys; from stratalog.testing import ProcessBroker;"
        " print(ProcessBroker(sys.argv[1]).pid, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")], capture_output=True, text=True, check=True
    )
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- the plugin ----------------------------------------------------------------------------------------------


def run_pytest(tmp_path: Path, text: str, *options: str) -> str:
    (tmp_path / "test_it.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *PLUGIN, *options, "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FIXTURES = """
seen = []

def test_one(stratalog_broker):
    stratalog_broker.create_topic("orders").append(b"a")
    seen.append(stratalog_broker.bootstrap_servers)

def test_two(stratalog_broker):
    assert ("orders" in stratalog_broker.store) == SHARED
    assert (stratalog_broker.bootstrap_servers in seen) == SHARED

def test_process(stratalog_broker_process):
    stratalog_broker_process.kill()
    stratalog_broker_process.restart()
"""


@pytest.mark.parametrize("shared", [False, True])
def test_the_fixtures(tmp_path: Path, shared: bool) -> None:
    options = ["--stratalog-broker-scope=session"] if shared else []
    assert "3 passed" in run_pytest(tmp_path, FIXTURES.replace("SHARED", str(shared)), *options)


def test_the_scope_can_be_set_in_the_ini_file(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nstratalog_broker_scope = module\n")
    assert "3 passed" in run_pytest(tmp_path, FIXTURES.replace("SHARED", "True"))


def test_a_run_that_needs_no_broker_loads_none_of_it(tmp_path: Path) -> None:
    text = (
        "import sys\ndef test_it():\n"
        "    loaded = [each for each in sys.modules if each.startswith('stratalog')]\n"
        "    assert sorted(loaded) == WANTED\n"
    )
    wanted = ["stratalog", *(f"stratalog.{each}" for each in ("errors", "model", "testing"))]
    wanted += ["stratalog.testing.plugin", "stratalog.version"]
    assert "1 passed" in run_pytest(tmp_path, text.replace("WANTED", repr(wanted)))


def test_pytest_finds_the_plugin_by_itself() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert found == {"stratalog": "stratalog.testing.plugin"}


def test_the_examples_of_the_documentation_pass(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "TESTING.md").read_text()
    blocks = [each.split("```")[0] for each in text.split("```python\n")[1:] if "def test_" in each]
    assert len(blocks) == 2
    assert "5 passed" in run_pytest(tmp_path, "\n".join(blocks))
