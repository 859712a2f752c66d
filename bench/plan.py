"""One run of the benchmarks: how much, how often, where."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.sizes import Sizes

_numbers = count()


@dataclass(frozen=True, slots=True)
class Plan:
    """``directory`` is where every system keeps its data, on one filesystem."""

    sizes: Sizes
    repeat: int
    directory: Path
    kafka: bool = True
    """Whether Kafka's own tool may be fetched and run."""

    def say(self, text: str) -> None:
        """Progress, for people, on stderr."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A fresh directory, gone afterwards."""
        path = self.directory / f"run-{next(_numbers)}"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
