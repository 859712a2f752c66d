"""Spark's own Kafka connector, for tests and benchmarks that read the same log through it.

Version 4.2.0, with the token provider 4.0.0, which is the newest that Maven Central has. The jars are fetched
once and stay in ``.cache/`` of the project, apart from the broker's: the connector brings an older client.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.interop.kafka import ROOT, KafkaError

CONNECTOR_VERSION = "4.2.0"
CACHE = ROOT / ".cache" / f"spark-kafka-{CONNECTOR_VERSION}"
LIBS = CACHE / "libs"
READY = CACHE / ".ready"
# Spark brings these itself, and another version of one on its class path does harm.
SPARKS_OWN = ("scala-", "slf4j-", "lz4-java", "snappy-java", "jsr305")


def fetch(attempts: int = 3) -> Path:
    """The directory with the connector's jars, downloaded on first use; safe from several processes."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".fetching", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pom = Path(__file__).with_name("connector.pom.xml")
        if READY.exists() and READY.stat().st_mtime >= pom.stat().st_mtime:
            return LIBS
        if shutil.which("mvn") is None:
            raise KafkaError("Maven (mvn) is needed to fetch Spark's Kafka connector; run `make interop`")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={LIBS}")
        for attempt in range(attempts):
            shutil.rmtree(LIBS, ignore_errors=True)
            done = subprocess.run(
                command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode == 0 and any(LIBS.glob("spark-sql-kafka-0-10_*.jar")):
                READY.touch()
                return LIBS
            time.sleep(2 * (attempt + 1))
        raise KafkaError(f"fetching Spark's connector failed {attempts} times:\n{done.stdout[-2000:]}")


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
