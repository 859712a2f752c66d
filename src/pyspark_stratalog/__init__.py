"""The module that Spark finds by itself: every installed ``pyspark_*`` module with a ``DefaultSource``.

So ``format("stratalog")`` works in any session. Filters are pushed down only in sessions that
`stratalog.spark.register` or `stratalog.spark.session` prepared; in others whole topics are read, with one
warning.
"""

from __future__ import annotations

from stratalog.spark.source import StratalogSource as DefaultSource

__all__ = ["DefaultSource"]
