"""A store that is served on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Broker, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    with stratalog.serve(store) as broker:
        yield broker
