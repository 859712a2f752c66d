"""Logs that queries opened are used again, as long as opening them anew would change nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import stratalog
from stratalog.spark import logs
from stratalog.spark.options import Where


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
