"""Logs that queries opened are used again, as long as opening them anew would change nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import StratalogError
from stratalog.spark import logs
from stratalog.spark.options import Where
from tests.spark.direct import append, fill, rows


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Where:
    make(tmp_path / "data")
    logs.forget()
    monkeypatch.setattr(logs, "LIFE_S", -1.0)
    return Where((str(tmp_path / "data"),))


def make(path: Path) -> None:
    with stratalog.open(path, background=False) as store:
        store.create_topic("t").append(b"x")


def opened(where: Where) -> logs.Logs:
    with logs.opened(where) as found:
        assert found.end_offset("t", 0) == 1
        return found


def test_logs_that_are_the_same_stay_open(where: Where) -> None:
    assert opened(where) is opened(where)


def test_other_settings_open_them_anew(where: Where) -> None:
    before = opened(where)
    with stratalog.open(where.paths[0], config={"log.segment.bytes": 1 << 20}, background=False) as store:
        store.create_topic("u")  # the settings are kept with what is written next
    assert opened(where) is not before


def test_another_directory_of_the_name_opens_them_anew(where: Where) -> None:
    before = opened(where)
    shutil.rmtree(where.paths[0])
    make(Path(where.paths[0]).with_name("other"))
    Path(where.paths[0]).with_name("other").rename(where.paths[0])
    assert opened(where) is not before


def test_an_archive_is_opened_anew(where: Where, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    both = Where(where.paths, (tmp_path / "archive").as_uri())
    assert opened(both) is not opened(both)


def change(store: stratalog.Store, rng: random.Random, cold: dict[str, object]) -> None:
    """Do one of the things that happen to a log."""
    names = store.topics()
    topic = store.topic(rng.choice(names))

    def make_anew() -> None:
        store.delete_topic(topic.name)
        append(store.create_topic(topic.name, 1, {"file.delete.delay.ms": 0}), rng.randint(1, 30))

    def archive() -> None:
        store.alter_topic(topic.name, cold)
        topic.roll()
        store.archive()
        store.retain()

    def compact() -> None:
        store.alter_topic(topic.name, {"cleanup.policy": "compact"})
        store.compact()

    changes: list[Callable[[], object]] = [
        lambda: append(topic, rng.randint(1, 20)),
        topic.roll,
        lambda: topic.delete_records(0, rng.randint(topic.log_start_offset(0), topic.log_end_offset(0))),
        make_anew,
        archive,
        compact,
        lambda: (store.alter_topic(topic.name, {"retention.bytes": 1}), store.retain()),
        lambda: store.create_topic(f"t{len(names)}").append(b"x"),
        lambda: store.add_partitions(topic.name, topic.partitions + 1),
        lambda: store.delete_topic(topic.name) if len(names) > 1 else None,
    ]
    try:
        rng.choice(changes)()
    except StratalogError:
        pass  # such a topic cannot be compacted or archived, or the name is taken


@pytest.mark.parametrize("seed", range(4))
def test_kept_logs_show_what_new_ones_show(where: Where, seed: int) -> None:
    rng = random.Random(seed)
    path = Path(where.paths[0])
    cold: dict[str, object] = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.ms": 1}
    fill(path, "orders", config={"file.delete.delay.ms": 0, "min.cleanable.dirty.ratio": 0})

    def seen() -> list[str]:
        return sorted(map(repr, rows(path, subscribePattern=".*", failOnDataLoss="false")))

    seen()
    for _ in range(15):
        with stratalog.open(path, background=False) as store:
            for _ in range(rng.randint(1, 3)):
                change(store, rng, cold)
            if rng.random() < 0.5:
                seen()
        found = seen()
        kept = dict(logs._kept)
        logs._kept.clear()
        assert found == seen()
        logs.forget()
        logs._kept.update(kept)
