"""Batch reads under Spark Connect: the session lives in a server, the client has no JVM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import stratalog
from tests.spark.cluster import descendants, environment_of, signal_group, signal_one
from tests.spark.direct import fill

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_ADDRESS = re.compile(r"Spark Connect server started at: \S*?:(\d+)")

CLIENT = """
import json, sys
import stratalog.spark

spark = stratalog.spark.session(sys.argv[1])
frame = spark.read.format("stratalog").option("subscribe", "orders").load(sys.argv[2])
few = frame.where("offset >= 30 and partition = 1")
table = frame.orderBy("partition", "offset").toArrow().to_pylist()
print("told", json.dumps({
    "classic": hasattr(spark, "_jvm") and spark._jvm is not None,
    "counts": [few.count(), frame.count(), few.count()],
    "values": [row["value"].decode() for row in table],
    "where": [[row["partition"], row["offset"]] for row in table],
    "view": spark.read.format("stratalog").option("view", "segments").load(sys.argv[2]).count(),
}))
try:
    wrong = spark.read.format("stratalog").option("subscribe", "orders").option("startingOffsets", "soon")
    wrong.load(sys.argv[2]).count()
except Exception as error:
    print("error", json.dumps(str(error)))
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server from the package's own jars, on a port of its choice."""
    where = tmp_path_factory.mktemp("connect")
    home = Path(pyspark.__file__).parent
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(where / "local"),
    }
    said = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    log = where / "server.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
            + ["--class", SERVER, *said, "spark-internal"],
            env=environment_of(home),
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 300
        while (found := _ADDRESS.search(log.read_text(errors="replace"))) is None:
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.05)
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        below = [*descendants([process.pid])]
        signal_group(process.pid)
        process.wait(60)
        for pid in below:
            signal_one(pid)


@pytest.mark.long
def test_batch_reads(server: str, tmp_path: Path) -> None:
    fill(tmp_path / "log", partitions=2, records=10)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server, str(tmp_path / "log")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line[:5] in ("told ", "error"))
    assert set(lines) == {"told", "error"}, done.stdout + done.stderr
    told = json.loads(lines["told"])
    assert told["classic"] is False
    assert told["counts"] == [10, 80, 10]
    with stratalog.open(tmp_path / "log", read_only=True) as store:
        wanted = [
            (record.partition, record.offset, record.value)
            for at in range(2)
            for record in store.topic("orders").read(at)
        ]
    assert [tuple(each) for each in told["where"]] == [each[:2] for each in wanted]
    assert [value.encode() for value in told["values"]] == [each[2] for each in wanted]
    assert told["view"] == 8
    assert "option 'startingOffsets'" in json.loads(lines["error"])
