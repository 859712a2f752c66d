"""The pipelines: work on whole topics that Spark spreads over its executors.

Each is a function ``name(spark, *, …, progress=None) -> PipelineResult`` in a module of its name, for
notebooks and jobs as for ``stratalog pipeline NAME``. It runs the same on ``local[*]`` and on a cluster whose
executors have this package and see the log directories or the archive.

    from stratalog.spark.pipelines.stats import stats
    print(stats(spark, path="/var/lib/stratalog", topics=["orders"]).counts)

`executors` spreads work and reports progress, `commits` and `pipeline_offsets` write into the log exactly
once, and `lake` holds the tables that ``export`` and ``materialize`` write.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stratalog.errors import ConfigError

__all__ = ["NAMES", "PipelineResult", "Progress", "pipeline"]

NAMES = ("ingest", "export", "compact", "materialize", "verify", "replay", "stats", "check")
"""Every pipeline, in the order in which data meets them."""

Progress = Callable[[str, int, int], None]
"""Called with what is running, how much of it is done, and of how much; a total of 0 is unknown."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The outcome of one run.

    ``counts`` are in display order, ``details`` are JSON values, ``notes`` are lines for people. ``ok`` is
    False when the pipeline finished and found something wrong (damage, a broken limit): the command line then
    exits with 1. Work that could not be done raises an exception instead.
    """

    pipeline: str
    counts: Mapping[str, int]
    details: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ok: bool = True
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        return {
            "pipeline": self.pipeline,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "counts": dict(self.counts),
            "details": dict(self.details),
            "notes": list(self.notes),
        }


def pipeline(name: str) -> Callable[..., PipelineResult]:
    """Return the function of a pipeline; raise ConfigError if there is none of that name."""
    if name not in NAMES:
        raise ConfigError(f"unknown pipeline {name!r}; expected one of {', '.join(NAMES)}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: Callable[..., PipelineResult] = getattr(module, name)
    return found
