"""The archive under fire: killed and failed at every request, this machine crashed at every call."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from stratalog import errors
from stratalog.archive.objects import DirectoryObjects
from stratalog.fs import MemoryFileSystem, SimulatedCrash, SurvivorMode
from tests.archive.faulty import Killed, When
from tests.store.tiered import EVERYTHING_GOES, TOPIC, Tiered


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """Where failures are the point, the log need not say so."""
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def story(tiered: Tiered) -> None:
    """Everything the archive does to a topic, in one life."""
    tiered.open()
    tiered.create()
    tiered.seal(2)
    tiered.archive()
    tiered.store.alter_topic(TOPIC, EVERYTHING_GOES)
    tiered.archive()
    tiered.seal(2)
    tiered.archive()
    tiered.store.alter_topic(TOPIC, {"local.retention.ms": -1})
    tiered.delete_records(15)
    tiered.erase(b"k3")
    tiered.seal(1)
    tiered.archive()
    tiered.append(3)


def requests_of_the_story() -> int:
    tiered = Tiered()
    story(tiered)
    total = len(tiered.objects.requests)
    tiered.check()
    tiered.check_archive()
    return total


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_request(when: When, quiet_log: None) -> None:
    """No acknowledged record lost, none back from the dead, no orphan once the next life has looked."""
    total = requests_of_the_story()
    assert total > 100
    for number in range(total):
        tiered = Tiered()
        tiered.objects.kill_at, tiered.objects.kill_when = number, when
        with pytest.raises(Killed):
            story(tiered)
        tiered.reboot()
        if TOPIC not in tiered.store.topics():
            continue
        tiered.check()
        tiered.archive()
        tiered.check()
        tiered.check_archive()
        tiered.seal(1)
        tiered.leave()
        tiered.check()
        tiered.check_archive()
        tiered.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_at_every_request(when: When, quiet_log: None) -> None:
    """One request fails, or its answer is lost; the same process goes on, and mends it by doing it again."""
    total = requests_of_the_story()
    for number in range(0, total, 2):
        tiered = Tiered()
        tiered.objects.fail = lambda at, request, wanted=number: when if at == wanted else None  # type: ignore[misc,assignment]
        try:
            story(tiered)
        except errors.ArchiveError:
            tiered.check()
        tiered.objects.fail = lambda at, request: None
        tiered.check()
        if tiered.perhaps_gone - tiered.surely_gone:
            tiered.delete_records(15)
            tiered.erase(b"k3")
        tiered.archive()
        tiered.check()
        tiered.check_archive()
        tiered.close()


@pytest.mark.parametrize("modes", [("kill",), ("drop", "torn", "reorder")], ids=["kill", "power cut"])
def test_a_crash_at_every_call_of_this_machine(modes: tuple[SurvivorMode, ...], quiet_log: None) -> None:
    """While segments are copied, their files leave, and a key is erased from the archive."""
    base, cloud = Tiered(), MemoryFileSystem()
    base.cloud = base.objects.inner = DirectoryObjects(cloud, "/cloud")
    base.open()
    base.create()
    base.seal(2)
    base.close()
    calls = 0
    while True:
        calls += 1
        here = DirectoryObjects(cloud.survivor("kill", random.Random(0)), "/cloud")
        tiered = Tiered(here, base.fs.survivor("kill", random.Random(0)))
        tiered.records = dict(base.records)
        tiered.open()
        tiered.fs.crash_at(calls)
        try:
            tiered.leave()
            tiered.erase(b"k3")
        except SimulatedCrash:
            tiered.store.partitions.archives.close()
        else:
            break
        after = Tiered(here, tiered.fs.survivor(modes[calls % len(modes)], random.Random(calls)))
        after.records, after.perhaps_gone = dict(base.records), tiered.perhaps_gone
        after.open()
        after.check()
        after.leave()
        after.check()
        after.check_archive()
        after.close()
    assert calls > 60
    assert tiered.surely_gone


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_while_a_topic_is_deleted(when: When, quiet_log: None) -> None:
    """It is there with all its records, or gone for good with all its objects."""
    outcomes: set[bool | str] = set()
    number = 0
    while len(outcomes) < 3:
        tiered = Tiered()
        tiered.open()
        tiered.create()
        tiered.seal(2)
        tiered.leave()
        tiered.store.create_topic("other", config={"remote.storage.enable": True}).append(b"x")
        tiered.objects.kill_at, tiered.objects.kill_when = len(tiered.objects.requests) + number, when
        try:
            tiered.store.delete_topic(TOPIC)
        except Killed:
            tiered.reboot()
            outcomes.add(TOPIC in tiered.store.topics())
        else:
            tiered.objects.kill_at = -1
            outcomes.add("done")
        if TOPIC in tiered.store.topics():
            tiered.check()
            tiered.seal(1)
            tiered.leave()
            tiered.check()
            assert [state for _, state in tiered.states()] == ["archived"] * 3 + ["active"]
        else:
            tiered.archive()
            assert not any(key.startswith(TOPIC) for key in tiered.stored())
        tiered.check_archive()
        tiered.close()
        number += 1
    assert number > 10
