"""What a pipeline says when it is done, and how it tells how far it is. Knows neither Spark nor files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Progress = Callable[[str, int, int], None]
"""What is under way, how much of it is done, of how much; a total of 0 is unknown."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The outcome of one run.

    ``counts`` are in the order to be shown, ``details`` are values JSON knows, ``notes`` are lines worth
    telling a person. ``ok`` is False when the pipeline did its work and found something wrong (damage, a
    broken limit): the command line ends with 1 then. Work that could not be done is an exception instead.
    """

    pipeline: str
    counts: Mapping[str, int]
    details: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ok: bool = True
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """The result as a JSON object; counts and details keep their own names."""
        return {
            "pipeline": self.pipeline,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "counts": dict(self.counts),
            "details": dict(self.details),
            "notes": list(self.notes),
        }
