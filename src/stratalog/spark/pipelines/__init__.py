"""The pipelines: work on whole topics that Spark spreads over its executors.

Each is a function ``name(spark, *, …, progress=None) -> PipelineResult`` in a module of its name, for
notebooks and jobs as for ``stratalog pipeline NAME``; it runs the same on ``local[*]`` and on a cluster whose
executors have this package and see the log directories or the archive.

    from stratalog.spark.pipelines.stats import stats
    print(stats(spark, path="/var/lib/stratalog", topics=["orders"]).counts)

`result` is what they return, `jobs` how they tell their progress, `places` how they say where the log is, and
`steps` runs several of them from a file.
"""

from __future__ import annotations

from stratalog.spark.pipelines.result import PipelineResult, Progress

__all__ = ["NAMES", "PipelineResult", "Progress"]

NAMES = ("ingest", "export", "compact", "materialize", "verify", "replay", "stats", "check")
"""Every pipeline, in the order in which data meets them."""
