"""One broker, and one Spark, for the tests that can share it: a JVM start costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.interop import connector
from tests.interop.kafka import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARED_PROPERTIES = {
    # the cleaner looks often, and cleaned or deleted files go soon: readers must live with it
    "log.cleaner.backoff.ms": 50,
    "log.segment.delete.delay.ms": 500,
}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), SHARED_PROPERTIES) as started:
        yield started


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Spark's own Kafka connector."""
    import stratalog.spark

    where = tmp_path_factory.mktemp("spark")
    session = stratalog.spark.session(
        "local[2]",
        app_name="connector",
        **{
            "spark.driver.memory": "1g",
            "spark.jars": connector.jars(),
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(where / "warehouse"),
            "spark.local.dir": str(where / "local"),
            "spark.log.level": "ERROR",
        },
    )
    yield session
    session.stop()
