"""The pipelines: work on whole topics that Spark spreads over its executors.

Each is a function ``name(spark, *, …, progress=None) -> PipelineResult`` in a module of its name, for
notebooks and jobs as for ``stratalog pipeline NAME``; it runs the same on ``local[*]`` and on a cluster whose
executors have this package and see the log directories or the archive.

    from stratalog.spark.pipelines.stats import stats
    print(stats(spark, path="/var/lib/stratalog", topics=["orders"]).counts)

`result` is what they return, `executors` how they spread work and report progress, `places` how they say
where the log is; `commits`, `ledger` and `dead_letters` write into the log exactly once, and `lake` holds the
tables that ``export`` and ``materialize`` write.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from stratalog.errors import ConfigError
from stratalog.spark.pipelines.result import PipelineResult, Progress

__all__ = ["NAMES", "PipelineResult", "Progress", "pipeline"]

NAMES = ("ingest", "export", "compact", "materialize", "verify", "replay", "stats", "check")
"""Every pipeline, in the order in which data meets them."""


def pipeline(name: str) -> Callable[..., PipelineResult]:
    """Return the function of a pipeline; raise ConfigError if there is none of that name."""
    if name not in NAMES:
        raise ConfigError(f"there is no pipeline {name!r}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: Callable[..., PipelineResult] = getattr(module, name)
    return found
