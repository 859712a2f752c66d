"""Installs ``OwnPlans.java``, a rule of the session's optimizer, where Spark needs it.

Spark 4.2 and 4.3 share the plan of a Python source between all scans of a table: pushed filters would lose
rows (the comment in the Java file has the details). The rule gives each scan its own plan and its own
columns. It is compiled in the driver's JVM by the compiler that Spark brings along. Only sessions that have
it, or need none, push filters down.
"""

from __future__ import annotations

import logging
from importlib import resources
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("stratalog.spark")

RULE = "OwnPlans"


def give_own_plans(spark: SparkSession) -> bool:
    """Make it safe to push filters down in this session; return False if that is not possible."""
    session: Any = getattr(spark, "_jsparkSession", None)
    jvm: Any = getattr(spark, "_jvm", None)
    if session is None or jvm is None:
        return False  # Spark Connect: the planner is on the other side
    try:
        installed = session.experimental().extraOptimizations().mkString(" ")
        if _shares_plans(jvm) and RULE not in installed:
            _compile(spark, jvm).install(session)
        return True
    except Py4JError as error:
        logger.warning("stratalog: filters are not pushed down in this version of Spark: %s", error)
        return False


def _shares_plans(jvm: Any) -> bool:
    source = "org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2"
    methods = jvm.java.lang.Class.forName(source).getMethods()
    return any(method.getName() == "setReadInfo" for method in methods)


def _compile(spark: SparkSession, jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(resources.files(__package__).joinpath(f"{RULE}.java").read_text(encoding="utf-8"))
    kind = compiler.getClassLoader().loadClass(f"stratalog.{RULE}")
    gateway: Any = spark.sparkContext._gateway
    nothing = gateway.new_array(jvm.java.lang.Class, 0)
    return kind.getConstructor(nothing).newInstance(gateway.new_array(jvm.java.lang.Object, 0))
