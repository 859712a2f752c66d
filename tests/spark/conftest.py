"""One Spark session for every test of this directory: starting one takes longer than any of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    import stratalog.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    where = tmp_path_factory.mktemp("spark")
    session = stratalog.spark.session(
        "local[2]",
        app_name="tests",
        **{
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(where / "warehouse"),
            "spark.local.dir": str(where / "local"),
            "spark.log.level": "ERROR",
        },
    )
    yield session
    session.stop()
