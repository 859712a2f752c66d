"""Incremental changes of a topic's settings: set, delete, append, subtract; a refused one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Store, errors


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        opened.create_topic("t", config={"retention.ms": 5})
        yield opened


def in_force(store: Store) -> dict[str, str]:
    return {each.name: each.value for each in store.describe_topic("t")}


def test_the_four_operations(store: Store) -> None:
    store.alter_topic(
        "t", {"segment.bytes": 4096, "retention.ms": None}, append={"cleanup.policy": "compact"}
    )
    assert in_force(store)["cleanup.policy"] == "delete,compact"
    assert in_force(store)["segment.bytes"] == "4096"
    assert in_force(store)["retention.ms"] == "604800000"
    store.alter_topic("t", append={"cleanup.policy": ["compact"]})  # it is there: nothing changes
    assert in_force(store)["cleanup.policy"] == "delete,compact"
    store.alter_topic("t", subtract={"cleanup.policy": "delete"})
    assert in_force(store)["cleanup.policy"] == "compact"
    store.alter_topic("t", subtract={"cleanup.policy": "delete"})  # it is not there: nothing changes
    assert in_force(store)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    "given",
    [
        {"append": {"retention.ms": 1}},
        {"subtract": {"segment.bytes": 1}},
        {"append": {"cleanup.policy": "nonsense"}},
        {"append": {"no.such.setting": "x"}},
        {"append": {"cleanup.policy": "compact"}, "subtract": {"cleanup.policy": "delete"}},
        {"changes": {"cleanup.policy": "delete"}, "append": {"cleanup.policy": "compact"}},
    ],
)
def test_a_refused_one_changes_nothing(store: Store, given: dict[str, Any]) -> None:
    before = in_force(store)
    with pytest.raises(errors.ConfigError):
        store.alter_topic("t", **{**given, "changes": {"segment.bytes": 4096, **given.get("changes", {})}})
    assert in_force(store) == before
    store.create_topic("other")  # an unrelated save
    assert in_force(store) == before
