"""Rows of any frame as records, by SQL expressions; those that give none keep their place and say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from stratalog.errors import ConfigError
from stratalog.spark.pipelines import admission, ingest_files
from stratalog.spark.pipelines.commits import PARTITION
from stratalog.spark.pipelines.ingest_files import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LAST_MS = 253_402_300_799_999
"""The end of the year 9999: what Spark can say of times."""
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class Expressions:
    """What of a row becomes what of a record, in Spark's SQL."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    allow_null: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if wrong := sorted(self.allow_null - {"key", "value"}):
            raise ConfigError(f"allow_null: {', '.join(wrong)}, takes key, value or both")

    @property
    def any(self) -> bool:
        """Whether columns are asked for at all."""
        return bool(self.key or self.value or self.timestamp or self.partition or self.headers)

    def apply(self, rows: DataFrame, unreadable: str) -> DataFrame:
        """The columns `admission.INPUT`; ConfigError names an expression that cannot be.

        Rows may have the columns of `ingest_files`; a frame of the user's has none of them.
        """
        inner = (ingest_files.BAD, ingest_files.RAW, ingest_files.FILE, ingest_files.START)
        own = [name for name in rows.columns if name not in (*inner, *ingest_files.SHOWN)]
        from_file = ingest_files.FILE in rows.columns
        raw = sql.col(ingest_files.RAW) if from_file else _none("binary")
        if own:
            columns = sql.struct(*(sql.col(quoted(name)) for name in own))
            whole = sql.to_json(columns, {"ignoreNullFields": "false"})
            raw = sql.coalesce(raw, whole.cast("binary"))
        value = raw if self.value is None else self._bytes(rows, "value", self.value)
        made = rows.select(
            (_none("binary") if self.key is None else self._bytes(rows, "key", self.key)).alias("key"),
            value.alias("value"),
            self._timestamp(rows).alias("timestamp"),
            self._header_list(rows).alias("headers"),
            self._partition(rows).alias(PARTITION),
            (sql.col(ingest_files.BAD) if from_file else _none("string")).alias("bad"),
            (sql.col(ingest_files.FILE) if from_file else sql.lit("a DataFrame")).alias(admission.WHERE),
            raw.alias(admission.RAW),
            (sql.col(ingest_files.START) if from_file else sql.lit(0).cast("bigint")).alias(admission.START),
        )
        reason = self._reason(unreadable)
        made = made.withColumn(admission.REASON, reason)
        # What a record was made of matters only where none was made.
        dead = sql.when(sql.col(admission.REASON).isNotNull(), sql.col(admission.RAW))
        return made.withColumn(admission.RAW, dead).select(*admission.INPUT)

    def _reason(self, unreadable: str) -> Column:
        reason = sql.when(sql.col("bad").isNotNull(), sql.lit(unreadable))
        if self.timestamp is not None:
            told = f"the timestamp's expression {self.timestamp!r} gives no time from 1970 to 9999"
            reason = reason.when(sql.col("timestamp").isNull(), sql.lit(told))
        for name, said in (("key", self.key), ("value", self.value)):
            if said is not None and name not in self.allow_null:
                told = f"the {name}'s expression {said!r} gives null"
                reason = reason.when(sql.col(name).isNull(), sql.lit(told))
        return reason

    def _bytes(self, rows: DataFrame, what: str, text: str) -> Column:
        """A value as the serializers of its type would: text as UTF-8, anything with parts as JSON."""
        kind = _type_of(rows, what, text)
        found = sql.expr(text)
        if isinstance(kind, BinaryType):
            return found
        if isinstance(kind, (StructType, ArrayType, MapType, VariantType)):
            found = sql.to_json(found)
        return found.cast("string").cast("binary")

    def _timestamp(self, rows: DataFrame) -> Column:
        if self.timestamp is None:
            return _none("timestamp")
        kind, found = _type_of(rows, "timestamp", self.timestamp), sql.expr(self.timestamp)
        if isinstance(kind, IntegralType):
            found = found.cast("bigint")
            return sql.when(found.between(0, LAST_MS), sql.timestamp_millis(found))
        if not isinstance(kind, (TimestampType, TimestampNTZType, DateType, StringType, NullType)):
            raise ConfigError(
                f"timestamp: the expression {self.timestamp!r} gives {kind.simpleString()}, takes a"
                " timestamp, a date, ISO text or whole epoch milliseconds"
            )
        found = found.cast("timestamp")
        return sql.when(found.between(sql.timestamp_millis(sql.lit(0)), _last()), found)

    def _partition(self, rows: DataFrame) -> Column:
        if self.partition is None:
            return _none("int")
        kind = _type_of(rows, "partition", self.partition)
        if not isinstance(kind, (IntegralType, NullType)):
            raise ConfigError(
                f"partition: the expression {self.partition!r} gives {kind.simpleString()}, takes a whole"
                " number"
            )
        # One that is no int must stay a wrong one.
        wide = sql.expr(self.partition).cast("bigint")
        return sql.when(wide.between(0, 2**31 - 1), wide.cast("int")).when(wide.isNotNull(), sql.lit(-1))

    def _header_list(self, rows: DataFrame) -> Column:
        if not self.headers:
            return _none(_HEADERS)
        pairs = [
            sql.struct(sql.lit(name).alias("key"), self._bytes(rows, f"header {name!r}", text).alias("value"))
            for name, text in self.headers.items()
        ]
        return sql.array(*pairs).cast(_HEADERS)


def _type_of(rows: DataFrame, what: str, text: str) -> DataType:
    try:
        return rows.select(sql.expr(text).alias("it")).schema["it"].dataType
    except (AnalysisException, ParseException) as error:
        first = str(error).strip().partition("\n")[0]
        names = [name for name in rows.columns if not name.startswith("__")]
        raise ConfigError(
            f"{what}: the expression {text!r} cannot be: {first[:300]}; there are the columns"
            f" {', '.join(names[:40]) or 'none'}"
        ) from None


def _none(kind: str) -> Column:
    return sql.lit(None).cast(kind)


def _last() -> Column:
    return sql.timestamp_millis(sql.lit(LAST_MS))
