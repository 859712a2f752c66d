"""``spark.read.format("stratalog")``: the data source and its batch reader.

Options are checked when the source is made, which is when ``load()`` is called; the schema when the reader
is made. Objects of this module travel: Spark pickles the source to the planner and the reader to the
executors, so they hold the query's options and no open files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from stratalog.errors import ConfigError
from stratalog.spark.filters import Bounds
from stratalog.spark.options import SUBSCRIPTIONS, SourceOptions, parse_options
from stratalog.spark.schema import SPARK_SCHEMA_WITH_HEADERS, TOTALS_SCHEMA, check_schema, schema_of
from stratalog.spark.workers import shared_facts, spare_the_collector, warn_once

# Spark starts processes of its own to look up sources, to make one, to plan, to read and to write, for every
# query: each imports below only what it needs.
if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.spark.offsets import Pair
    from stratalog.spark.sink import StratalogStreamWriter, StratalogWriter
    from stratalog.spark.stream import StratalogStreamReader


QUERY = "stratalog.query"
"""In the metadata of a schema's first field: an id that all scans of a query have (see `OwnPlans.java`)."""


@dataclass(frozen=True)
class SegmentsOf(InputPartition):
    """The partitions whose segments to list."""

    pairs: tuple[Pair, ...]


class StratalogSource(DataSource):
    """A log, or several, as a table. Filters are left to Spark, so whole topics are read."""

    prunes = False

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.parsed = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    def schema(self) -> StructType:
        self._check_readable()
        if self.parsed.view != "records":
            return _columns(self.parsed.view)
        return schema_of(self.parsed.include_headers)

    def reader(self, schema: StructType) -> StratalogReader:
        self._check_readable()
        return StratalogReader(self.parsed, schema, prunes=self.prunes)

    def streamReader(self, schema: StructType) -> StratalogStreamReader:  # noqa: N802 - Spark's name
        from stratalog.spark.stream import StratalogStreamReader

        self._check_readable()
        return StratalogStreamReader(self.parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> StratalogWriter:
        from stratalog.spark.sink import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StratalogStreamWriter:  # noqa: N802
        from stratalog.spark.sink import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)

    def _check_readable(self) -> None:
        if self.parsed.view == "records" and not self.parsed.subscription:
            raise ConfigError(
                "option 'subscribe': no topics to read; pass topics separated by commas,"
                f" or {' or '.join(SUBSCRIPTIONS[1:])}"
            )


class PruningSource(StratalogSource):
    """The same in sessions where pushing filters down is safe: see `stratalog.spark.optimizer_rule`."""

    prunes = True


class StratalogReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: SourceOptions, schema: StructType, *, prunes: bool) -> None:
        self.options = options
        self.prunes = prunes
        self.names = check_schema(schema, _columns(options.view))
        self.query = str((schema.fields[0].metadata or {}).get(QUERY, ""))
        self.bounds = Bounds()
        self.pushFilters = _Push(self)  # type: ignore[method-assign]

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        if not self.prunes:
            return iter(filters)
        if self.options.view in ("records", "totals"):
            return self.bounds.push(filters)
        return self.bounds.push(filters, ("topic", "partition"))

    def partitions(self) -> list[InputPartition]:
        from stratalog.spark.logs import LookedAt, opened
        from stratalog.spark.planning import plan

        spare_the_collector()
        if not self.prunes:
            warn_once(
                "unpruned",
                "stratalog: this session does not push filters down, so every query reads whole topics;"
                " call stratalog.spark.register(spark) to change that",
            )
        with opened(self.options.where) as logs:
            if self.options.view == "segments":
                pairs = tuple(
                    pair for pair in logs.choose(self.options.subscription) if self.bounds.admits(*pair)
                )
                return [SegmentsOf(pairs)]
            with shared_facts(self.query, repr(self.options.where)) as known:
                now_ms = known.setdefault("now_ms", time.time_ns() // 1_000_000)
                return [*plan(logs, LookedAt(logs, known), self.options, self.bounds, now_ms)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from stratalog.spark.logs import opened
        from stratalog.spark.planning import LogRange

        spare_the_collector()
        options = self.options
        with opened(options.where) as logs:
            if isinstance(partition, SegmentsOf):
                from stratalog.spark.views import segment_rows

                yield from segment_rows(logs, partition.pairs, self.names)
            elif isinstance(partition, LogRange) and options.view == "batches":
                from stratalog.spark.views import batch_rows

                yield from batch_rows(logs, partition, self.names)
            elif isinstance(partition, LogRange):
                from stratalog.spark.planning import Losses
                from stratalog.spark.reading import read_rows, read_totals

                losses = Losses(options.fail_on_data_loss)
                read = read_totals if options.view == "totals" else read_rows
                yield from read(logs, partition, self.names, options.isolation, losses)


def _columns(view: str) -> StructType:
    if view == "records":
        return SPARK_SCHEMA_WITH_HEADERS
    if view == "totals":
        return TOTALS_SCHEMA
    from stratalog.spark.views import view_schema

    return view_schema(view)


class _Push:
    """The reader's ``pushFilters``.

    Spark refuses a reader that overrides the method while the session's
    ``spark.sql.python.filterPushdown.enabled`` is off, which is the default. It detects an override by the
    function behind the bound method. This object shows the base class's, so a reader in such a session reads
    without pruning instead of failing, and in any other its filters arrive here.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: StratalogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(self._reader.take(filters))
