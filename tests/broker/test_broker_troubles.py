"""What an operator finds in the log when something is wrong, and what clients are answered then."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Store
from stratalog.broker import codes
from stratalog.broker.codes import Code
from stratalog.broker.loop import EventLoop
from stratalog.broker.server import Limits
from stratalog.cli.console import Warnings
from stratalog.fs import RealFileSystem
from stratalog.fs.failing import FailingFileSystem, Fault
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, batch, client, fetch_fields, produce_fields
from tests.broker.test_broker_hostile import commit_fields, join_fields, until

FULL = Fault("pwrite", "*.log", errno.ENOSPC)


@pytest.fixture
def fs() -> FailingFileSystem:
    return FailingFileSystem(RealFileSystem())


@pytest.fixture
def store(tmp_path: Path, fs: FailingFileSystem) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        yield store
        fs.heal()


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with client(broker) as made:
        yield made


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if words in each.getMessage()]


# -- the log -------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_and_not_one_for_each_request(
    wire: Wire, store: Store, fs: FailingFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders").append(b"before")
    fs.inject(FULL)
    for version in (9, 3):
        for _ in range(20):
            told = wire.ask("Produce", version, **produce_fields("orders", batch(b"x")))
            assert told.responses[0].partition_responses[0].error_code == Code.KAFKA_STORAGE_ERROR
    [part] = wire.ask("Fetch", 12, **fetch_fields("orders", 0)).responses[0].partitions
    assert (part.error_code, part.high_watermark) == (0, 1)
    assert b"before" in bytes(part.records)
    until(lambda: bool(lines(caplog, "Produce failed: ")))
    [line] = lines(caplog, "Produce failed: ")
    assert "orders-0" in line
    assert "No space left on device" in line
    fs.heal()
    told = wire.ask("Produce", 9, **produce_fields("orders", batch(b"x")))
    assert told.responses[0].partition_responses[0].base_offset == 1


def test_a_client_that_sends_nonsense_is_no_trouble_of_the_broker(
    wire: Wire, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders")
    told = wire.ask("Produce", 9, **produce_fields("orders", b"x" * 100))
    assert told.responses[0].partition_responses[0].error_code
    wire.ask("Fetch", 12, **fetch_fields("orders", 99))
    assert wire.ask("ApiVersions", 3).error_code == 0
    assert not lines(caplog, "failed")


def test_troubles_are_counted_between_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(codes, "QUIET_S", 0.01)
    loop = EventLoop()
    told = codes.Troubles(loop)
    for each in range(5):
        told.tell_soon("a", f"trouble {each}")
    told.tell_soon("b", "another")
    listening = logging.getLogger("stratalog.broker")

    class Ends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "times" in record.getMessage():
                loop.stop()

    ends = Ends()
    listening.addHandler(ends)
    loop.run()
    listening.removeHandler(ends)
    loop.close()
    assert lines(caplog, "trouble") == ["trouble 0", "trouble 4 (4 times in 0.01 s)"]
    assert lines(caplog, "another") == ["another"]


def test_kinds_of_trouble_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = EventLoop()
    told = codes.Troubles(loop)
    monkeypatch.setattr(codes, "MAX_KINDS", 3)
    for each in range(10):
        told.tell(each, "x")
    loop.close()
    assert lines(caplog, "x") == ["x"] * 3


def test_a_refused_connection_is_in_the_log(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(max_connections=1)
    with stratalog.serve(store, limits=limits) as broker, client(broker) as wire:
        assert wire.ask("ApiVersions", 3).error_code == 0
        for _ in range(3):
            with client(broker) as other:
                assert other.closed
        until(lambda: bool(lines(caplog, "was refused")))
        [line] = lines(caplog, "was refused")
        assert "1 of max.connections=1" in line


def test_one_address_does_not_take_all_connections(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(max_connections_per_ip=2)
    with stratalog.serve(store, limits=limits) as broker, client(broker) as first, client(broker) as second:
        for each in (first, second):
            assert each.ask("ApiVersions", 3).error_code == 0
        with client(broker) as third:
            assert third.closed
        until(lambda: bool(lines(caplog, "was refused")))
        [line] = lines(caplog, "was refused")
        assert "2 of max.connections.per.ip=2 from there" in line
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.connect(broker.address)
            other.sendall(first.frame("ApiVersions", 3))
            assert other.recv(1)
        first.sock.close()
        until(lambda: len(broker.connections) == 1)
        with client(broker) as third:
            assert third.ask("ApiVersions", 3).error_code == 0


def test_an_unexpected_error_in_a_thread_is_in_the_log(
    wire: Wire, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong() -> Any:
        raise KeyError("a mistake")

    monkeypatch.setattr(store.groups.offsets, "all", wrong)
    wire.ask("ListGroups", 4)
    [record] = [each for each in caplog.records if "unexpected" in each.getMessage()]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


def test_the_log_of_a_service_has_times_repetitions_and_tracebacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("a service")
    warnings = Warnings()
    logger.addHandler(warnings)
    with warnings.service():
        for _ in range(3):
            logger.warning("the disk is full")
        monkeypatch.setattr("stratalog.cli.console.AGAIN_S", 0.0)
        logger.warning("the disk is full")
        try:
            raise KeyError("a mistake")
        except KeyError:
            logger.exception("an unexpected error")
    logger.removeHandler(warnings)
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith(" the disk is full")
    assert second.endswith(" the disk is full")
    assert first[4] == "-"
    assert rest[-1] == "KeyError: 'a mistake'"


# -- groups on a full disk -----------------------------------------------------------------------------------


def assigned(generation: int, member_id: str) -> dict[str, Any]:
    made = codec("SyncGroupRequest").struct("SyncGroupRequestAssignment")
    return {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member_id,
        "assignments": [made(member_id=member_id, assignment=b"all")],
    }


def test_an_assignment_that_was_not_written_is_written_before_it_is_told(
    store: Store, fs: FailingFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    store.groups.offsets.topic_to_write()
    with stratalog.serve(store) as broker, client(broker) as wire:
        joined = wire.ask("JoinGroup", 3, **join_fields("g"))
        fs.inject(FULL)
        told = wire.ask("SyncGroup", 3, **assigned(joined.generation_id, joined.member_id))
        assert (told.error_code, bytes(told.assignment)) == (Code.COORDINATOR_NOT_AVAILABLE, b"")
        told = wire.ask("SyncGroup", 3, **assigned(joined.generation_id, joined.member_id))
        assert told.error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert len(lines(caplog, "group 'g' is not written")) == 1
        fs.heal()
        told = wire.ask("SyncGroup", 3, **assigned(joined.generation_id, joined.member_id))
        assert (told.error_code, bytes(told.assignment)) == (0, b"all")
    with stratalog.serve(store) as broker, client(broker) as wire:
        beat = wire.ask(
            "Heartbeat", 3, group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
        )
        assert beat.error_code == 0


def test_a_group_that_cannot_be_deleted_is_told_so(wire: Wire, store: Store, fs: FailingFileSystem) -> None:
    store.create_topic("orders")
    joined = wire.ask("JoinGroup", 3, **join_fields("g"))
    assert wire.ask("LeaveGroup", 1, group_id="g", member_id=joined.member_id).error_code == 0
    fs.inject(FULL)
    [told] = wire.ask("DeleteGroups", 1, groups_names=["g"]).results
    assert told.error_code == Code.COORDINATOR_NOT_AVAILABLE
    [refused] = wire.ask("OffsetCommit", 7, **commit_fields("g")).topics
    assert refused.partitions[0].error_code == Code.COORDINATOR_NOT_AVAILABLE
    fs.heal()
    [told] = wire.ask("DeleteGroups", 1, groups_names=["g", "g"]).results
    assert told.error_code == 0


# -- one frame -----------------------------------------------------------------------------------------------


def test_the_same_topic_thousands_of_times_is_shown_once(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    one = codec("DescribeConfigsRequest").struct("DescribeConfigsResource")
    asked = [one(resource_type=2, resource_name=name) for name in ("orders", "none") * 5000]
    told = wire.ask("DescribeConfigs", 4, resources=asked).results
    assert [(each.resource_name, each.error_code) for each in told] == [("orders", 0), ("none", 3)]
    told = wire.ask("DescribeGroups", 5, groups=["g"] * 5000).groups
    assert [each.group_id for each in told] == ["g"]
