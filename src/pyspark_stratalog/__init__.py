"""What Spark finds by itself: every installed module named ``pyspark_*`` that has a ``DefaultSource``.

So ``format("stratalog")`` works in any session. Filters are pushed down only where the session allows it,
which `stratalog.spark.register` and `stratalog.spark.session` see to; elsewhere whole topics are read, and
it is said once.
"""

from __future__ import annotations

from stratalog.spark.source import StratalogSource as DefaultSource

__all__ = ["DefaultSource"]
