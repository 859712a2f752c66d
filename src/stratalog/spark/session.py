"""A Spark session with good defaults for this source, or an existing one that gets them.

Without a JDK Spark fails with a message about a gateway; `check_java` says what to install.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from stratalog.errors import ConfigError
from stratalog.spark.optimizer_rule import give_own_plans
from stratalog.spark.options import BATCH_ID, MICRO_BATCH, QUERY_ID, RUN_ID
from stratalog.spark.source import PruningSource, StratalogSource
from stratalog.spark.startup import quick_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
REPLACED = "org.apache.spark.sql.execution.datasources.DataSourceManager"
"""Spark's logger that warns when a source is registered again."""
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
    """Return a session with good defaults for this source; ``conf`` wins: ``spark_executor_memory="2g"``, or
    a ``**`` dict of Spark's own names.

    ``master`` is ``local[*]``, under spark-submit the one given there; ``sc://…`` connects to a server.
    """
    from pyspark.sql import SparkSession

    given = {name if "." in name else name.replace("_", "."): _text(value) for name, value in conf.items()}
    master = master or given.pop("spark.master", None)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    remote = master is not None and master.startswith("sc://")
    defaults = dict(DEFAULTS)
    java = "" if remote else check_java()
    if remote:
        defaults = {}
    if master is not None and master.startswith("local"):
        defaults |= LOCAL_DEFAULTS | {"spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1))}
        # Workers run this process's Python, not the first python3 on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif not remote:
        defaults |= CLUSTER_DEFAULTS
    builder = SparkSession.builder.appName(app_name)
    for name, value in (defaults | given).items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.remote(master) if remote else builder.master(master)
    own_python = os.environ.get("PYSPARK_PYTHON") == sys.executable
    local = master is not None and re.fullmatch(r"local(\[[^]]*\])?", master) is not None
    with quick_start(java) if local and own_python else nullcontext():
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("stratalog")`` known to a session, with filters pushed down where that is safe."""
    prunes = give_own_plans(spark)
    if prunes:
        spark.conf.set(PUSHDOWN, "true")
    # Spark may have found the source by itself, and warns when it is replaced: now, and for every stream.
    _set_level(spark, "ERROR")
    spark.dataSource.register(PruningSource if prunes else StratalogSource)
    if getattr(spark, "_jvm", None) is not None:
        prepare_saves()


@cache
def prepare_saves() -> None:
    """Let Python threads other than the main one save: Spark looks a Python source up in the thread's active
    session, and saving is the one way that does not set it. And name the micro-batch of a ``foreachBatch``
    to the sink: Spark names it only to tasks, and if all of them fail, nothing else tells what failed."""
    from pyspark.sql import DataFrameWriter

    plain = DataFrameWriter.save

    @wraps(plain)
    def save(writer: DataFrameWriter, *args: Any, **options: Any) -> None:
        spark: Any = writer._spark
        sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
        if sessions.getActiveSession().isEmpty():
            sessions.setActiveSession(spark._jsparkSession)
        names = (QUERY_ID, BATCH_ID, RUN_ID)
        query, batch, run = (spark.sparkContext.getLocalProperty(each) for each in names)
        form = options.get("format") or (args[1] if len(args) > 1 else None) or writer._jwrite.source()
        if query is not None and batch is not None and form == StratalogSource.name():
            writer.option(MICRO_BATCH, json.dumps([query, int(batch), run or ""]))
        plain(writer, *args, **options)

    DataFrameWriter.save = save  # type: ignore[method-assign, assignment]


def check_java() -> str:
    """Return the path of Java; raise ConfigError, with what to install, if there is no JDK that Spark can
    use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    how = (
        f"install one ('apt install openjdk-{OLDEST_JAVA}-jdk-headless' or"
        f" 'brew install openjdk@{OLDEST_JAVA}') and point JAVA_HOME to it"
    )
    if java is None or not os.access(java, os.X_OK):
        raise ConfigError(f"Spark needs a JDK {OLDEST_JAVA} or later and none was found; {how}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"Spark needs a JDK {OLDEST_JAVA} or later; {java} does not run: {error}; {how}"
        ) from None
    found = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr + answer.stdout)
    if found is not None and int(found[1]) < OLDEST_JAVA:
        raise ConfigError(f"Spark needs a JDK {OLDEST_JAVA} or later; {java} is Java {found[1]}; {how}")
    return java


@contextmanager
def replacing_quietly(spark: SparkSession) -> Iterator[None]:
    """Register a source again without Spark's warning."""
    jvm: Any = getattr(spark, "_jvm", None)
    before = None if jvm is None else jvm.org.apache.logging.log4j.LogManager.getLogger(REPLACED).getLevel()
    _set_level(spark, "ERROR")
    try:
        yield
    finally:
        _set_level(spark, before)


def _set_level(spark: SparkSession, level: Any) -> None:
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is not None:
        level = jvm.org.apache.logging.log4j.Level.ERROR if level == "ERROR" else level
        jvm.org.apache.logging.log4j.core.config.Configurator.setLevel(REPLACED, level)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
