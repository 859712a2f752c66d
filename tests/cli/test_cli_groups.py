"""``stratalog group``: what consumer groups committed, shown and changed, also beside a holder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stratalog
from stratalog.cli.guard import ExitCode
from stratalog.store.groups.offsets import OFFSETS_TOPIC
from tests.cli.shell import Shell

BASE = 1_790_000_000_000


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", 2)
        for number in range(20):
            topic.append(b"%d" % number, partition=number % 2, timestamp=BASE + number * 60_000)
        store.groups.offsets.commit("billing", {("orders", 0): 4, ("orders", 1): 10})
        store.groups.offsets.commit("audit", {("orders", 0): 1, ("gone", 3): 5})
        topic.delete_records(0, 2)
    return Shell(tmp_path / "data")


def committed(shell: Shell, group: str) -> dict[str, int]:
    rows = shell.json("group", "describe", group)["partitions"]
    return {f"{row['topic']}-{row['partition']}": row["offset"] for row in rows}


def test_groups_are_listed_and_described(shell: Shell) -> None:
    facts = shell.json("group", "list")
    assert [(each["group"], each["lag"], each["topics"]) for each in facts] == [
        ("audit", 8, ["gone", "orders"]),
        ("billing", 6, ["orders"]),
    ]
    assert "billing" in shell.ok("group", "list")
    rows = shell.json("group", "describe", "audit")["partitions"]
    assert [(row["topic"], row["offset"], row["end"], row["lag"], row["note"]) for row in rows] == [
        ("gone", 5, None, None, "no such partition"),
        ("orders", 1, 10, 8, "1 offsets were deleted before they were read"),
    ]
    assert "no such partition" in shell.ok("group", "describe", "audit")
    result = shell("group", "describe", "nope")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "no group nope" in result.stderr


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", {"orders-0": 2, "orders-1": 0}),
        ("latest", {"orders-0": 10, "orders-1": 10}),
        ("-3", {"orders-0": 7, "orders-1": 7}),
        (f"@{BASE + 600_000}", {"orders-0": 5, "orders-1": 5}),
    ],
)
@pytest.mark.parametrize("held", [False, True])
def test_offsets_are_reset(shell: Shell, to: str, offsets: dict[str, int], held: bool) -> None:
    before = committed(shell, "billing")
    planned = shell.json("group", "reset-offsets", "billing", "--to", to, "--dry-run")
    assert {f"{row['topic']}-{row['partition']}": row["offset"] for row in planned["partitions"]} == offsets
    assert committed(shell, "billing") == before
    holder = stratalog.open(shell.paths[0]) if held else None
    try:
        shell.ok("group", "reset-offsets", "billing", "--to", to, "--yes")
        assert committed(shell, "billing") == offsets
    finally:
        if holder is not None:
            holder.close()
    with stratalog.open(shell.paths[0]) as store, store.consumer("billing", ["orders"], timeout_s=0) as c:
        assert len(list(c)) == 20 - sum(offsets.values())


def test_one_partition_is_reset(shell: Shell) -> None:
    shell.ok("group", "reset-offsets", "billing", "-t", "orders", "-p", "1", "--to", "3", "--yes")
    assert committed(shell, "billing") == {"orders-0": 4, "orders-1": 3}
    for arguments in (["--to", "3"], ["--to", "soon"], ["--to", "latest", "-p", "0"]):
        assert shell("group", "reset-offsets", "billing", *arguments, "--yes").exit_code == ExitCode.USAGE
    for arguments in (["nope"], ["billing", "-t", "nope"], ["billing", "-t", "orders", "-p", "7"]):
        result = shell("group", "reset-offsets", *arguments, "--to", "latest", "--yes")
        assert result.exit_code == ExitCode.NOT_FOUND
    shell.ok("group", "reset-offsets", "new", "--topic", "orders", "--to", "latest", "--yes")
    assert committed(shell, "new") == {"orders-0": 10, "orders-1": 10}


def test_a_group_begins_in_a_store_that_has_none(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "new")
    shell.ok("topic", "create", "t")
    assert shell.json("group", "list") == []
    assert "no groups" in shell.ok("group", "list")
    shell.ok("group", "reset-offsets", "g", "--topic", "t", "--to", "earliest", "--yes")
    assert committed(shell, "g") == {"t-0": 0}
    assert json.loads(shell.ok("topic", "describe", OFFSETS_TOPIC, "--json"))["partitions"] == 1


def test_names_that_are_not_for_a_terminal(shell: Shell, tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        store.groups.offsets.commit("a\nb\x1b[31m", {("orders\x1b[5m", 0): 4})
    for command in (("group", "list"), ("group", "describe", "a\nb\x1b[31m"), ("inspect",)):
        out = shell(*command).stdout
        assert "a\\nb\\x1b[31m" in out
        assert "\x1b" not in out
    assert shell.json("group", "list")[0]["group"] == "a\nb\x1b[31m"
    for group in ("", "\udcff"):
        result = shell("group", "reset-offsets", group, "--to", "latest", "-t", "orders", "--yes")
        assert result.exit_code == ExitCode.USAGE
        assert result.stdout == ""


def test_groups_are_deleted(shell: Shell) -> None:
    assert shell("group", "delete", "billing").exit_code == ExitCode.USAGE, "not without --yes"
    shell.ok("group", "delete", "audit", "--topic", "gone", "--yes")
    assert committed(shell, "audit") == {"orders-0": 1}
    assert shell.json("group", "delete", "billing", "--dry-run")["deleted"] == ["orders-0", "orders-1"]
    shell.ok("group", "delete", "billing", "--yes")
    assert [each["group"] for each in shell.json("group", "list")] == ["audit"]
    assert shell("group", "delete", "billing", "--yes").exit_code == ExitCode.NOT_FOUND
