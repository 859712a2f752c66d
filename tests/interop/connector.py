"""Spark's own Kafka connector, for tests and benchmarks that read the same log through it.

Version 4.2.0, with the token provider 4.0.0, which is the newest that Maven Central has. The jars are fetched
once and stay in ``.cache/`` of the project, apart from the broker's: the connector brings an older client.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.kafka import ROOT, KafkaError, fetch_jars

CONNECTOR_VERSION = "4.2.0"
CACHE = ROOT / ".cache" / f"spark-kafka-{CONNECTOR_VERSION}"
# Spark brings these itself, and another version of one on its class path does harm.
SPARKS_OWN = ("scala-", "slf4j-", "lz4-java", "snappy-java", "jsr305")


def fetch() -> Path:
    """The directory with the connector's jars, downloaded on first use; safe from several processes."""
    return fetch_jars(CACHE, "connector.pom.xml", "spark-sql-kafka-0-10_*.jar", "Spark's Kafka connector")


def jars() -> str:
    """What ``spark.jars`` takes."""
    found = sorted(path for path in fetch().glob("*.jar") if not path.name.startswith(SPARKS_OWN))
    return ",".join(map(str, found))


if __name__ == "__main__":
    try:
        fetch()
    except KafkaError as error:
        sys.exit(f"interop: {error}")
    print(f"interop: Spark's Kafka connector {CONNECTOR_VERSION} is in .cache/{CACHE.name}")
