"""Names in a log directory: both ways, and calm about anything that merely looks like one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.errors import InvalidTopicError
from stratalog.log.names import (
    FileName,
    PartitionDir,
    collides,
    file_name,
    parse_file,
    parse_partition_dir,
    partition_dir,
    segment_name,
    torn_name,
    validate_topic,
)

DIGITS = "0" * 18 + "42"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (f"{DIGITS}.log", FileName(42, "log")),
        (f"{DIGITS}.index", FileName(42, "index")),
        (f"{DIGITS}.timeindex.swap", FileName(42, "timeindex", ".swap")),
        (f"{DIGITS}.txnindex.cleaned", FileName(42, "txnindex", ".cleaned")),
        (f"{DIGITS}.log.deleted", FileName(42, "log", ".deleted")),
        (f"{DIGITS}.snapshot", FileName(42, "snapshot")),
        (f"{DIGITS}.snapshot.deleted", FileName(42, "snapshot", ".deleted")),
        (f"{DIGITS}.seal.tmp", FileName(42, "seal", ".tmp")),
        (f"{DIGITS}.keyindex", FileName(42, "keyindex")),
        (f"{DIGITS}.log.torn-0", FileName(42, "torn", "", 0)),
        (f"{DIGITS}.log.torn-81920.2", FileName(42, "torn", "", 81920, 2)),
        ("09223372036854775807.log", FileName(2**63 - 1, "log")),
    ],
)
def test_parses_and_prints(name: str, parsed: FileName) -> None:
    assert parse_file(name) == parsed
    assert parsed.name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0.log",
        f"{DIGITS[1:]}.log",
        f"0{DIGITS}.log",
        f"{DIGITS}.log\n",
        f" {DIGITS}.log",
        f"{DIGITS}.LOG",
        f"{DIGITS}.logs",
        f"{DIGITS}.log.swap.deleted",
        f"{DIGITS}.log.tmp",
        f"{DIGITS}.snapshot.swap",
        f"{DIGITS}.log.torn-",
        f"{DIGITS}.log.torn-01",
        f"{DIGITS}.log.torn-5.0",
        f"{DIGITS}.log.torn-5.deleted",
        f"{DIGITS}-0000000001.checkpoint.deleted",
        "-" + DIGITS[1:] + ".log",
        "٠" * 20 + ".log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_lookalikes_are_nobody(name: str) -> None:
    assert parse_file(name) is None


@given(st.text(max_size=60))
@example("00000000000000000000.log.torn-" + "9" * 40)
def test_any_name_parses_to_itself_or_to_nothing(name: str) -> None:
    parsed = parse_file(name)
    assert parsed is None or parsed.name == name
    directory = parse_partition_dir(name)
    assert directory is None or directory.state or partition_dir(directory.topic, directory.partition) == name


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_built_names_parse(base: int, position: int) -> None:
    assert len(segment_name(base)) == 20
    assert parse_file(file_name(base, "log", ".swap")) == FileName(base, "log", ".swap")
    assert parse_file(torn_name(base, position)) == FileName(base, "torn", "", position)
    assert parse_file(torn_name(base, position, 3)) == FileName(base, "torn", "", position, 3)


@pytest.mark.parametrize("base", [-1, 2**63])
def test_segment_name_refuses_what_is_no_offset(base: int) -> None:
    with pytest.raises(ValueError, match="base offset"):
        segment_name(base)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("orders-0", PartitionDir("orders", 0)),
        ("a.b-1-12", PartitionDir("a.b-1", 12)),
        ("orders--1", PartitionDir("orders-", 1)),
        ("__consumer_offsets-49", PartitionDir("__consumer_offsets", 49)),
        ("x-delete-3", PartitionDir("x-delete", 3)),
        ("orders-2.5f1c7d-delete", PartitionDir("orders", 2, "delete")),
        ("a.b-c-2.5f1c7d-stray", PartitionDir("a.b-c", 2, "stray")),
        ("orders-7.abc-future", PartitionDir("orders", 7, "future")),
        ("a.b-2.1-3", PartitionDir("a.b-2.1", 3)),
        ("t-2147483647", PartitionDir("t", 2**31 - 1)),
    ],
)
def test_partition_directories(name: str, parsed: PartitionDir) -> None:
    assert parse_partition_dir(name) == parsed


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-01",
        "orders-+1",
        "orders-2147483648",
        "orders-99999999999",
        "orders-0\n",
        "or ders-0",
        "..-0",
        ".-0",
        "orders-delete",
        "orders-1-delete",
        "orders-1.-delete",
        "remote-log-index-cache",
        "a" * 250 + "-0",
        "ördens-0",
    ],
)
def test_other_directories(name: str) -> None:
    assert parse_partition_dir(name) is None


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "a" * 249, "__transaction_state"])
def test_topics_kafka_takes(name: str) -> None:
    validate_topic(name)
    assert parse_partition_dir(partition_dir(name, 3)) == PartitionDir(name, 3)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "a\n", "é", "a\0", "x" * 10**6])
def test_topics_kafka_refuses(name: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        validate_topic(name)
    assert len(str(caught.value)) < 300


def test_a_topic_is_a_string() -> None:
    with pytest.raises(InvalidTopicError, match="string"):
        validate_topic(b"orders")  # type: ignore[arg-type]


def test_collisions() -> None:
    assert collides("a.b", "a_b")
    assert collides("a", "a")
    assert not collides("a.b", "a-b")
