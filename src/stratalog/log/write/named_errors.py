"""Appends of what a caller handed in: an error names the record that is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratalog.errors import InvalidRecordError
from stratalog.format.batch.arrow import is_arrow
from stratalog.log.write import append
from stratalog.log.write.sequenced import Source
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import Appended, AppendedRange, Record


def append_record(
    writer: PartitionWriter, record: Record, sync: bool, expected: int | None, *, wait: bool = True
) -> Appended:
    """Append one record; InvalidRecordError if it is none."""
    try:
        return append.append_record(writer, record, sync, expected, wait=wait)
    except TypeError as error:
        raise InvalidRecordError(wrong_record(record) or str(error)) from error


def append_sequenced(
    writer: PartitionWriter, records: Any, source: Source, sync: bool, *, wait: bool = True
) -> list[AppendedRange]:
    """Append records with sequences; one that is not a record is an InvalidRecordError that names it."""
    try:
        return append.append_sequenced(writer, records, source, sync, wait=wait)
    except (TypeError, IndexError, KeyError) as error:
        _name_wrong_record(writer, records, error)
        raise


def append_rows(
    writer: PartitionWriter,
    rows: list[Record],
    sync: bool,
    expected: int | None = None,
    *,
    wait: bool = True,
) -> AppendedRange:
    """Append records; one that is not a record is an InvalidRecordError that names it."""
    try:
        return append.append_records(writer, rows, sync, expected, wait=wait)
    except (TypeError, IndexError, KeyError) as error:
        _name_wrong_record(writer, rows, error)
        raise


def _name_wrong_record(writer: PartitionWriter, rows: Iterable[Any], error: Exception) -> None:
    for index, row in enumerate(() if is_arrow(rows) else rows):
        if (why := wrong_record(row)) is not None:
            raise InvalidRecordError(f"record {index}: {why}") from error
        if len(row) < 2 and writer.admission.needs_key:
            raise writer.admission.keyless() from error


def wrong_record(row: object) -> str | None:
    """Return why this is not a record, or a tuple that begins like one, as far as value and key tell."""
    if not isinstance(row, tuple):
        return f"it must be a Record, not {type(row).__name__}"
    if not row:
        return "an empty tuple has no value"
    for name, part in zip(("value", "key"), row, strict=False):
        if not isinstance(part, bytes | None):
            return f"{name} must be bytes or None, not {type(part).__name__}"
    return None
