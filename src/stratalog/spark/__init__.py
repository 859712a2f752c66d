"""Spark: read the log as a table or a stream, without a broker and without a JAR.

    spark = stratalog.spark.session("local[*]")
    orders = spark.read.format("stratalog").option("subscribe", "orders").load("/data/log")

`source` and `stream` are what Spark calls to read, `sink` to write. `options` and `offsets` parse what the
user chose, `logs` opens it, `filters` and `planning` cut it into ranges, `reading` and `views` read those
on the executors. Imports the store, the log and the archive; only the command line and the demo import this
room. Needs the extra ``spark``.
"""

from __future__ import annotations

from stratalog.errors import ConfigError

try:
    import pyspark
except ImportError as missing:
    raise ConfigError("stratalog.spark needs PySpark 4.2 or later").advising(
        "pip install 'stratalog[spark]'"
    ) from missing

if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2):
    raise ConfigError(f"stratalog.spark needs PySpark 4.2 or later, this is {pyspark.__version__}").advising(
        "pip install 'stratalog[spark]'"
    )

from stratalog.spark.schema import decoded
from stratalog.spark.session import register, session
from stratalog.spark.source import StratalogSource
from stratalog.spark.workers import expect_hang_ups, keep_late_times

# Workers import this before they read, and a query may stop before that.
expect_hang_ups()
keep_late_times()

__all__ = ["StratalogSource", "decoded", "register", "session"]
