"""Records into a file: Parquet, Arrow, CSV or JSON lines, a few thousand at a time.

A file is written beside its name and renamed when it is complete and on disk: a run that fails or is killed
leaves no half of it. Without ``force`` a file that is there is never replaced.

CSV and JSON hold text. Bytes that are UTF-8 are written as they are, others as base64, or all as hex when
asked. JSON says which by the name of the field (``value``, ``value_base64``, ``value_hex``), CSV by a column
beside it (``value_encoding``: utf8, base64, hex, or null, which has no value). Both can be read back without
loss.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Annotated, Any, BinaryIO, Protocol

from stratalog.analysis.payloads import decoded_batch, decoded_schema
from stratalog.cli.analysis.formats import Formats, with_text
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import opt
from stratalog.errors import InvalidArgumentError, NotFoundError
from stratalog.model import LOG_APPEND_TIME, Record

OutOption = Annotated[
    str | None, opt("--out FILE", "Write a file instead: FILE.parquet, .arrow, .csv or .jsonl.")
]
ForceOption = Annotated[bool, opt("--force", "With --out: replace an existing file.")]
ROWS = 4096
"""So many records are held in memory at a time."""
SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".arrow": "arrow"}
CSV_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "key_encoding",
    "value",
    "value_encoding",
    "headers",
)


def form_of(path: str) -> str:
    """Return the form of a file by the end of its name."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise WrongUsage(f"--out {path}: the name must end with one of {', '.join(SUFFIXES)}")
    return SUFFIXES[suffix]


@contextmanager
def new_file(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """Yield a file that gets the name ``path`` when the block ends in order; else it is removed."""
    if os.path.isdir(path):
        raise InvalidArgumentError(f"{path} is a directory")
    if not force and os.path.lexists(path):
        raise InvalidArgumentError(f"{path} already exists; --force replaces it")
    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise NotFoundError(f"{path}: the directory {folder} does not exist")
    handle, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=folder)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        if force:
            os.replace(temporary, path)
        else:
            _name(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _name(temporary: str, path: str) -> None:
    """Give a file its name unless another one has it meanwhile."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise InvalidArgumentError(f"{path} already exists; --force replaces it") from None
    except OSError:  # a filesystem without links
        os.rename(temporary, path)


def write_records(
    file: BinaryIO,
    form: str,
    records: Iterable[Record],
    line: Callable[[Record], bytes],
    hexed: set[str],
    formats: Formats,
) -> int:
    """Write records to a file; ``line`` makes one of JSON. Return how many there were."""
    if form == "jsonl":
        return _count(records, lambda rows: file.writelines(map(line, rows)))
    if form == "csv":
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        out = csv.writer(text, lineterminator="\n")
        out.writerow(CSV_COLUMNS)
        count = _count(
            records, lambda rows: out.writerows(csv_row(with_text(row, formats), hexed) for row in rows)
        )
        text.detach()
        return count
    from stratalog.format.batch import COLUMNS, schema_for

    plain = schema_for(COLUMNS)
    schema = decoded_schema(plain, formats)

    def batch(rows: list[Record]) -> Any:
        return decoded_batch(arrow_batch(rows, plain), schema, formats)

    with arrow_writer(file, form, schema) as writer:
        return _count(records, lambda rows: writer.write_batch(batch(rows)))


class BatchWriter(Protocol):
    """What writes Arrow record batches."""

    def write_batch(self, batch: Any) -> None: ...


@contextmanager
def arrow_writer(file: BinaryIO, form: str, schema: Any) -> Iterator[BatchWriter]:
    """Yield what writes record batches of a schema as Parquet or as an Arrow file."""
    import pyarrow as pa

    try:
        if form == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                yield writer
        else:
            with pa.ipc.new_file(file, schema) as writer:
                yield writer
    except pa.ArrowNotImplementedError as error:
        raise InvalidArgumentError(f"this cannot be written as {form}: {error}") from error


def arrow_batch(rows: list[Record], schema: Any) -> Any:
    """Return records as a record batch with the columns of a scan."""
    import pyarrow as pa

    columns = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": [row.topic for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "timestamp": [row.timestamp for row in rows],
        "timestampType": [row.timestamp_type for row in rows],
        "headers": [[{"key": name, "value": value} for name, value in row.headers] for row in rows],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[each.name], each.type) for each in schema], schema=schema
    )


def _count(records: Iterable[Record], put: Callable[[list[Record]], object]) -> int:
    count, source = 0, iter(records)
    while rows := list(islice(source, ROWS)):
        put(rows)
        count += len(rows)
    return count


def csv_row(record: Record, hexed: set[str]) -> list[object]:
    """Return a record as a row of `CSV_COLUMNS`."""
    headers = [{"key": name, **json_bytes("value", value)} for name, value in record.headers]
    return [
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        "LogAppendTime" if record.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        *_encoded(record.key, "key" in hexed),
        *_encoded(record.value, "value" in hexed),
        json.dumps(headers, ensure_ascii=False, separators=(",", ":")),
    ]


def _encoded(data: bytes | None, hexed: bool) -> tuple[str, str]:
    """Return bytes as text, and how."""
    if data is None:
        return "", "null"
    if hexed:
        return data.hex(), "hex"
    try:
        return data.decode("utf-8"), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), "base64"


def json_bytes(
    name: str, data: bytes | None, suffix: str = "_base64", *, hexed: bool = False
) -> dict[str, str | None]:
    """Return bytes for JSON: text under ``name``, or base64 under ``name`` + ``suffix`` if not UTF-8.

    With ``hexed`` hexadecimal digits under ``name`` + ``_hex``.
    """
    if data is None:
        return {name: None}
    text, how = _encoded(data, hexed)
    return {name if how == "utf8" else f"{name}_hex" if hexed else f"{name}{suffix}": text}
