"""Delta Lake's own connector for Spark, for a test that reads our tables through it.

Version 4.4.0, the first that is built for Spark 4.2. The jars are fetched once and stay in ``.cache/`` of the
project; running this file fetches them, which ``make interop`` does first.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.kafka import ROOT, KafkaError, fetch_jars

DELTA_VERSION = "4.4.0"
CACHE = ROOT / ".cache" / f"delta-{DELTA_VERSION}"


def fetch() -> Path:
    """The directory with the connector's jars, downloaded on first use; safe from several processes."""
    return fetch_jars(CACHE, "delta.pom.xml", "delta-spark_*.jar", "Delta Lake's connector for Spark")


def settings() -> dict[str, str]:
    """What a session needs to read Delta tables."""
    return {
        "spark.jars": ",".join(map(str, sorted(fetch().glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Delta spreads a table's log over 50 tasks; these logs are short.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


if __name__ == "__main__":
    try:
        fetch()
    except KafkaError as error:
        sys.exit(f"interop: {error}")
    print(f"interop: Delta Lake's connector {DELTA_VERSION} is in .cache/{CACHE.name}")
