"""Spark: read the log as a table or a stream, without a broker and without a JAR.

    spark = stratalog.spark.session("local[*]")
    orders = spark.read.format("stratalog").option("subscribe", "orders").load("/data/log")

`options` and `offsets` say what was asked for, `logs` where it is, `filters` and `planning` what of it,
`reading` and `views` what the executors do, `source` and `stream` are the doors Spark calls. Knows the
store, the log and the archive; only the command line and the demo know this room. Needs the extra
``spark``.
"""

from __future__ import annotations

from stratalog.errors import ConfigError

try:
    import pyspark
except ImportError as missing:
    raise ConfigError(
        "stratalog.spark needs PySpark 4.2 or later; pip install 'stratalog[spark]'"
    ) from missing

if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2):
    raise ConfigError(
        f"stratalog.spark needs PySpark 4.2 or later, this is {pyspark.__version__};"
        " pip install 'stratalog[spark]'"
    )

from stratalog.spark.session import register, session
from stratalog.spark.source import StratalogSource
from stratalog.spark.workers import expect_hang_ups

# Workers come by here before they read, and a query may stop before that.
expect_hang_ups()

__all__ = ["StratalogSource", "register", "session"]
