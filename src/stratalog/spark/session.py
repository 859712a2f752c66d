"""A Spark session that fits, or an existing one made to fit.

Without a JDK Spark dies with a message about a gateway: here that is looked for first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from stratalog.errors import ConfigError
from stratalog.spark.scans import give_own_plans, silence
from stratalog.spark.source import PruningSource, StratalogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
DEFAULTS = {
    PUSHDOWN: "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark gives a Python process 15 s to start and then fails the query: too few on a machine at its limits.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
}
CLUSTER_DEFAULTS = {
    # Containers have long temporary directories, and the address of a Unix socket has 108 bytes.
    "spark.python.unix.domain.socket.dir": "/tmp",
}
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def session(master: str | None = None, *, app_name: str = "stratalog", **conf: object) -> SparkSession:
    """A session with good defaults for this source; ``conf`` wins: ``spark_executor_memory="2g"``, or a
    ``**`` dict of Spark's own names.

    ``master`` is ``local[*]``, under spark-submit what that was told; ``sc://…`` connects to a server.
    """
    from pyspark.sql import SparkSession

    said = {name if "." in name else name.replace("_", "."): _text(value) for name, value in conf.items()}
    master = master or said.pop("spark.master", None)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    remote = master is not None and master.startswith("sc://")
    defaults = dict(DEFAULTS)
    if remote:
        defaults = {}
    else:
        check_java()
    if master is not None and master.startswith("local"):
        defaults |= LOCAL_DEFAULTS | {"spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1))}
        # Workers as this process is, not whichever python3 comes first.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif not remote:
        defaults |= CLUSTER_DEFAULTS
    builder = SparkSession.builder.appName(app_name)
    for name, value in (defaults | said).items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.remote(master) if remote else builder.master(master)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("stratalog")`` known to a session, with filters pushed down where that is safe."""
    prunes = give_own_plans(spark)
    if prunes:
        spark.conf.set(PUSHDOWN, "true")
    # Spark may have found the source by itself, and warns when it is replaced: now, and for every stream.
    silence(spark, "org.apache.spark.sql.execution.datasources.DataSourceManager")
    spark.dataSource.register(PruningSource if prunes else StratalogSource)


def check_java() -> None:
    """ConfigError, saying what to install, when there is no JDK that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    how = (
        f"install one ('apt install openjdk-{OLDEST_JAVA}-jdk-headless' or"
        f" 'brew install openjdk@{OLDEST_JAVA}') and point JAVA_HOME to it"
    )
    if java is None or not os.access(java, os.X_OK):
        raise ConfigError(f"Spark needs a JDK {OLDEST_JAVA} or later and none was found; {how}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"Spark needs a JDK {OLDEST_JAVA} or later; {java} does not run: {error}; {how}"
        ) from None
    found = re.search(r'version "(?:1\.)?([0-9]+)', told.stderr + told.stdout)
    if found is not None and int(found[1]) < OLDEST_JAVA:
        raise ConfigError(f"Spark needs a JDK {OLDEST_JAVA} or later; {java} is Java {found[1]}; {how}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
