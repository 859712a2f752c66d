"""The files of an ingest: which there are, and their rows as a frame with what is needed to tell of bad ones.

Files are found by Spark, so whatever it can read can be ingested: local paths, ``s3a://``, ``hdfs://``;
names, patterns and directories, which are searched through. Names that begin with ``_`` or ``.`` are
passed over: write a file under such a name and rename it when it is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from stratalog.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("json", "csv", "parquet")
BAD, RAW, FILE, START = "__bad", "__raw", "__file", "__start"
"""Beside the columns of a file: what could not be read, the line, the file, where in it Spark began to
read."""
SHOWN = {"_line": RAW, "_file": FILE}
"""Names under which expressions may use them, where the file has none of the kind."""
UNREADABLE = {
    "json": "the line is not a JSON object that fits the schema",
    "csv": "the line does not fit the columns",
}
_EXTENSIONS = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}
_SUFFIX = re.compile(r"\.(\w+)(?:\.(?:gz|bz2|zst|zstd|lz4|snappy|deflate|xz))?\Z", re.IGNORECASE)
_GLOB = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, order=True)
class File:
    """One file, as Spark lists it. ``url`` is what the ledger and dead letters call it."""

    url: str
    path: str
    size_bytes: int
    modified_ms: int

    def facts(self) -> dict[str, object]:
        return {"size": self.size_bytes, "modified_ms": self.modified_ms}


def find_files(spark: SparkSession, names: Sequence[str]) -> list[File]:
    """Every file behind these names, sorted; NotFoundError when a name leads nowhere."""
    if not names:
        raise ConfigError("no files: name files, patterns or directories")
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = (
            reader.load(list(names))
            .select("_metadata.file_path", "path", "length", sql.unix_millis("modificationTime"))
            .collect()
        )
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise NotFoundError(str(error).partition("] ")[2].partition(" SQLSTATE")[0]) from None
        raise
    return sorted({File(*row) for row in rows})


def format_of(files: Sequence[File]) -> str:
    """What the files' names say they are; ConfigError when they say nothing, or not the same."""
    found = set()
    for file in files:
        match = _SUFFIX.search(file.path)
        kind = _EXTENSIONS.get(match[1].lower()) if match else None
        if kind is None:
            raise ConfigError(
                f"the name of {file.path} does not say what it is; give the format: {', '.join(FORMATS)}"
            )
        found.add(kind)
    if len(found) > 1:
        raise ConfigError(f"files of more than one kind ({', '.join(sorted(found))}); ingest one at a time")
    return found.pop()


@dataclass(frozen=True)
class Input:
    """How files are read. ``options`` are those of Spark's reader for the format."""

    format: str
    schema: StructType | None
    options: Mapping[str, str]

    def read(self, spark: SparkSession, files: Sequence[File], *, columns: bool) -> DataFrame:
        """Their rows, with `BAD`, `RAW`, `FILE` and `START`. ``columns`` False: nobody asks for any of
        JSON's."""
        paths = [_GLOB.sub(r"\\\1", file.path) for file in files]
        if self.format == "json":
            rows = self._json(spark, paths, columns)
        elif self.format == "csv":
            rows = self._csv(spark, paths)
        else:
            rows = self._with_place(spark.read.options(**self.options).parquet(*paths), None, None)
        shown = {name: sql.col(real) for name, real in SHOWN.items() if real in rows.columns}
        return rows.withColumns({name: at for name, at in shown.items() if name not in rows.columns})

    def _json(self, spark: SparkSession, paths: list[str], columns: bool) -> DataFrame:
        schema = self.schema or StructType([])
        if self.schema is None and columns:
            inferred = spark.read.options(**self.options).option("columnNameOfCorruptRecord", BAD).json(paths)
            schema = StructType([each for each in inferred.schema.fields if each.name != BAD])
        told = {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        text = {name: self.options[name] for name in ("lineSep", "encoding") if name in self.options}
        lines = spark.read.options(**text).text(paths)
        lines = lines.where(sql.length(sql.btrim("value", sql.lit(" \t\r\n"))) > 0)
        parsed = lines.select(
            sql.from_json("value", StructType([*schema.fields, StructField(BAD, StringType())]), told).alias(
                "__row"
            ),
            sql.col("value").cast("binary").alias(RAW),
            sql.col("_metadata.file_path").alias(FILE),
            sql.col("_metadata.file_block_start").alias(START),
        )
        return parsed.select("__row.*", RAW, FILE, START)

    def _csv(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        said = {"header": "true", **self.options}
        schema = self.schema or spark.read.options(**said).csv(paths[:1]).schema
        rows = (
            spark.read.options(**said)
            .schema(StructType([*schema.fields, StructField(BAD, StringType())]))
            .option("mode", "PERMISSIVE")
            .option("columnNameOfCorruptRecord", BAD)
            .option("columnPruning", "false")  # else a line is only read as far as columns are asked for
            .option("enforceSchema", "false")  # columns in another order are an error, not other columns
            .csv(paths)
        )
        return self._with_place(rows, BAD, schema.names)

    def _with_place(self, rows: DataFrame, bad: str | None, names: list[str] | None) -> DataFrame:
        columns = [sql.col(quoted(name)) for name in (names or rows.columns)]
        broken = sql.lit(None).cast("string") if bad is None else sql.col(bad)
        return rows.select(
            *columns,
            broken.alias(BAD),
            broken.cast("binary").alias(RAW),
            sql.col("_metadata.file_path").alias(FILE),
            sql.col("_metadata.file_block_start").alias(START),
        )


def explain(reason: str, raw: bytes | None) -> str:
    """Say more of a line that is no JSON; runs where the line is."""
    if reason != UNREADABLE["json"] or raw is None:
        return reason
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return f"{reason}: {error}"
    return reason if isinstance(found, dict) else f"{reason}: it is {type(found).__name__}, not an object"


def quoted(name: str) -> str:
    """A column's name for SQL, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Have the session's settings say this for a while."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
