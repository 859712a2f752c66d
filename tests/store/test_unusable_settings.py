"""A topic whose settings cannot be used, saved by a newer version or by hand: offline alone, and altered."""

from __future__ import annotations

from dataclasses import replace

import pytest

import stratalog
from stratalog.errors import ConfigError, LogDirOfflineError
from stratalog.format import settings as settings_file
from stratalog.fs import MemoryFileSystem
from stratalog.model import LONG_MAX
from stratalog.store.store import Store
from stratalog.testing import ManualClock

ROOT = "/data/log"
PATH = f"{ROOT}/{settings_file.FILE_NAME}"


def opened(fs: MemoryFileSystem) -> Store:
    return stratalog.open(ROOT, fs=fs, clock=ManualClock(), background=False)


def values(store: Store, name: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in store.topic(name).read(partition)]


@pytest.mark.parametrize(
    ("name", "value"), [("segment.ms", "0"), ("retention.ms", "much"), ("retention.moons", "3")]
)
def test_only_that_topic_is_offline_until_it_is_altered(name: str, value: str) -> None:
    fs = MemoryFileSystem()
    with opened(fs) as store:
        for topic in ("good", "bad"):
            store.create_topic(topic, 2)
            for partition in (0, 1):
                store.topic(topic).append(b"%d" % partition, partition=partition)
    found = settings_file.parse(fs.read_file(PATH))
    bad = found.topics["bad"]
    edited = replace(bad, config={**bad.config, name: value})
    fs.write_file(PATH, settings_file.pack(replace(found, topics={**found.topics, "bad": edited})), sync=True)

    with opened(fs) as store:
        assert store.topics() == ["bad", "good"]
        store.topic("good").append(b"more", partition=0)
        for partition in (0, 1):
            with pytest.raises(LogDirOfflineError, match=name) as caught:
                store.topic("bad").append(b"refused", partition=partition)
            assert "stratalog topic alter bad" in str(caught.value)
        with pytest.raises(ConfigError, match=name):
            store.alter_topic("bad", {"segment.bytes": 2000})
        store.tick()
        store.flush()
    with opened(fs) as store:
        store.alter_topic("bad", {name: None})
        store.topic("bad").append(b"more", partition=1)
        assert values(store, "bad", 0) == [b"0"]
        assert values(store, "bad", 1) == [b"1", b"more"]
    with opened(fs) as store:
        assert values(store, "bad", 1) == [b"1", b"more"]
        assert values(store, "good") == [b"0", b"more"]
        assert stratalog.verify(store).ok


def test_a_directory_with_too_high_a_partition_number_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A table of two thousand million partitions does not fit into memory."""
    fs = MemoryFileSystem()
    with opened(fs) as store:
        store.create_topic("t").append(b"x")
    for number in (100_000, 2**31 - 1):
        fs.make_dir(f"{ROOT}/t-{number}")
    with opened(fs) as store:
        assert store.topic("t").partitions == 1
        assert values(store, "t") == [b"x"]
    assert f"{ROOT}/t-100000: passed over, partitions end at 99999" in caplog.text
    assert fs.exists(f"{ROOT}/t-100000")


@pytest.mark.parametrize("url", ["nowhere://bucket", f"{ROOT}/archive"])
def test_a_topic_does_not_begin_to_use_an_archive_that_cannot_be_opened(url: str) -> None:
    fs, archived = MemoryFileSystem(), {"remote.storage.enable": True}
    with stratalog.open(
        ROOT, {"log.archive.url": url}, fs=fs, clock=ManualClock(), background=False
    ) as store:
        store.create_topic("t", 2)
        with pytest.raises(ConfigError, match=r"log\.archive\.url"):
            store.alter_topic("t", {**archived, "flush.messages": 1})
        assert {each.value for each in store.describe_topic("t") if each.name == "flush.messages"} == {
            str(LONG_MAX)
        }
        for create in (store.check_new_topic, store.create_topic):
            with pytest.raises(ConfigError, match=r"log\.archive\.url"):
                create("new", 1, archived)
        assert store.topics() == ["t"]
    with opened(fs) as store:
        for partition in (0, 1):
            store.topic("t").append(b"in use", partition=partition)
            assert values(store, "t", partition) == [b"in use"]
