"""Where a pipeline's log is, in the words of the source's options. Touches no file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratalog.archive.objects import absolute_url
from stratalog.errors import ConfigError
from stratalog.fs import RealFileSystem
from stratalog.store.paths import path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

Path = str | Sequence[str] | None
"""One or several log directories; None when everything is in the archive."""


def paths_of(path: Path) -> tuple[str, ...]:
    """The directories, absolute: executors have a working directory of their own."""
    given = (path,) if isinstance(path, str) else tuple(path or ())
    return tuple(path_of(RealFileSystem(), each) for each in given)


def place_options(path: Path, archive: str | None = None) -> dict[str, str]:
    """The source's options that say where; ConfigError when neither does."""
    paths = paths_of(path)
    if not paths and not archive:
        raise ConfigError("nothing says where the log is: give path, archive or both")
    options: dict[str, str] = {}
    if paths:
        options["paths"] = json.dumps(paths)
    if archive:
        options["archive"] = absolute_url(archive)
    return options


def reader(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | None = None,
    pairs: Mapping[str, Sequence[int]] | None = None,
    **options: object,
) -> DataFrameReader:
    """``spark.read`` of these topics, or of every topic there; ``.schema(…)`` and ``.load()`` are left to do.

    ``pairs`` names partitions of topics instead. ``options`` are the source's own: ``view="batches"``.
    """
    chosen = subscription(topics) if pairs is None else {"assign": json.dumps(pairs)}
    said = place_options(path, archive) | chosen | {name: _text(value) for name, value in options.items()}
    return spark.read.format("stratalog").options(**said)


def subscription(topics: Sequence[str] | None) -> dict[str, str]:
    """The option for these topics, or for all of them."""
    if isinstance(topics, str):
        topics = (topics,)
    return {"subscribe": ",".join(topics)} if topics else {"subscribePattern": ".*"}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
