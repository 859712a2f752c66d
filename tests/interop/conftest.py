"""One broker for the tests that can share it: a JVM start costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.kafka import KafkaBroker

SHARED_PROPERTIES = {
    # the cleaner looks often, and cleaned or deleted files go soon: readers must live with it
    "log.cleaner.backoff.ms": 50,
    "log.segment.delete.delay.ms": 500,
}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), SHARED_PROPERTIES) as started:
        yield started
