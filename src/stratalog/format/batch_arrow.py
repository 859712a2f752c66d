"""Arrow to batches: tables with the columns of a scan, encoded without a Python object a record.

Pure functions: a table in, one batch at a time out. Columns of kindred types are cast; what cannot be
records is an InvalidRecordError. pyarrow is imported when first needed.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from stratalog import kernel
from stratalog.errors import InvalidRecordError, RecordTooLargeError
from stratalog.format.arrow import COLUMNS, column_types
from stratalog.format.batch_encode import Encoded, batch_attributes, finish

if TYPE_CHECKING:
    import pyarrow as pa

_NO_Q, _NO_I = array("q"), array("i")
_RECORD_ROOM = 32  # more than the varints of one record take


class ArrowRows:
    """A table or record batch made ready for ``encode_arrow``: checked, cast, cut into its chunks.

    ``value`` is required; ``key``, ``timestamp`` and ``headers`` may be there; the other columns of a scan
    are ignored, and any other name is an InvalidRecordError.
    """

    def __init__(self, data: pa.Table | pa.RecordBatch) -> None:
        import pyarrow as pa

        names = data.schema.names
        for name in names:
            if name not in COLUMNS:
                raise InvalidRecordError(f"no column {name!r} in a record; there are {', '.join(COLUMNS)}")
        if len(set(names)) != len(names):
            raise InvalidRecordError("a column name twice")
        if "value" not in names:
            raise InvalidRecordError("a table of records needs a column 'value'")
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        wanted = [name for name in ("value", "key", "timestamp", "headers") if name in names]
        table = pa.table({name: _fitted(name, table.column(name)) for name in wanted})
        chunks = max((table.column(name).num_chunks for name in wanted), default=0)
        if chunks > 1 and table.num_rows // chunks < 4096:
            table = table.combine_chunks()
        self.num_rows: int = table.num_rows
        self.starts: list[int] = []
        self.chunks: list[_Chunk] = []
        start = 0
        for batch in table.to_batches():
            if batch.num_rows:
                self.starts.append(start)
                self.chunks.append(_Chunk(batch))
                start += batch.num_rows

    def __len__(self) -> int:
        return self.num_rows

    def find(self, row: int) -> tuple[int, _Chunk]:
        """The chunk that holds a row, and the row's number in it."""
        at = bisect_right(self.starts, row) - 1
        return row - self.starts[at], self.chunks[at]


def _fitted(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in the type the kernel reads, or an InvalidRecordError."""
    import pyarrow as pa
    from pyarrow import types

    kind, target = column.type, column_types()[name]
    if name == "timestamp":
        kind_ok = types.is_timestamp(kind) or types.is_int64(kind) or types.is_null(kind)
    elif name == "headers":
        kind_ok = (
            types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) or types.is_null(kind)
        )
    else:
        inner = kind.value_type if types.is_dictionary(kind) else kind
        kind_ok = types.is_null(inner) or any(
            test(inner)
            for test in (
                types.is_binary, types.is_large_binary, types.is_string, types.is_large_string,
                types.is_fixed_size_binary, types.is_binary_view, types.is_string_view,
            )
        )  # fmt: skip
    if not kind_ok:
        raise InvalidRecordError(f"column {name!r} must be {target}, not {kind}")
    if name == "headers" and types.is_map(kind):
        target = pa.map_(pa.string(), pa.binary())
    try:
        if types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        if types.is_fixed_size_binary(column.type):
            column = column.cast(pa.large_binary())
        return column.cast(target, safe=name != "timestamp") if column.type != target else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRecordError(f"column {name!r}: {kind} cannot be taken as {target}: {error}") from error


class _Chunk:
    """One RecordBatch as the memory the kernel reads. Keeps the batch alive."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.rows: int = batch.num_rows
        self.args: list[Any] = []
        names = batch.schema.names
        for name in ("value", "key"):
            self.args += _binary_views(batch.column(name)) if name in names else (_NO_I, b"", b"", 0)
        if "timestamp" in names:
            column = batch.column("timestamp")
            valid, data = column.buffers()
            stamps = _view(data).cast("q")[column.offset : column.offset + len(column)]
            self.args += (stamps, _bits(column, valid), column.offset)
        else:
            self.args += (_NO_Q, b"", 0)
        if "headers" in names:
            column = batch.column("headers")
            valid, ends = column.buffers()[:2]
            pairs = column.values
            views = _view(ends).cast("i")[column.offset : column.offset + len(column) + 1]
            self.args += (views, _bits(column, valid), column.offset)
            if pairs.null_count:
                raise InvalidRecordError("column 'headers': a header is null")
            self.args += (*_binary_views(pairs.field(0)), *_binary_views(pairs.field(1)))
        else:
            self.args += (_NO_I, b"", 0, _NO_I, b"", b"", 0, _NO_I, b"", b"", 0)
        self.per_row: int = (batch.nbytes // self.rows) + _RECORD_ROOM + 1

    def room(self, rows: int) -> int:
        """About what this many rows take, and some more; the kernel stops at the end anyway."""
        return 61 + rows * self.per_row


def _view(buffer: pa.Buffer | None) -> memoryview:
    if buffer is None or buffer.size == 0:
        return memoryview(bytes(8))
    return memoryview(buffer).cast("B")


def _bits(column: pa.Array, valid: pa.Buffer | None) -> memoryview | bytes:
    return _view(valid) if valid is not None and column.null_count else b""


def _binary_views(column: pa.Array) -> tuple[Any, Any, Any, int]:
    valid, ends, data = column.buffers()
    cut = _view(ends)
    cut = cut[: len(cut) & ~3].cast("i")[column.offset : column.offset + len(column) + 1]
    return cut, _view(data), _bits(column, valid), column.offset


_prepared: tuple[weakref.ref[Any], ArrowRows] | None = None


def prepare_arrow(data: pa.Table | pa.RecordBatch | ArrowRows) -> ArrowRows:
    """``ArrowRows`` of a table; the last one is remembered, since a table is encoded by one call a batch."""
    global _prepared
    if isinstance(data, ArrowRows):
        return data
    last = _prepared
    if last is not None and last[0]() is data:
        return last[1]
    made = ArrowRows(data)
    _prepared = (weakref.ref(data, _forget), made)
    return made


def _forget(reference: weakref.ref[Any]) -> None:
    global _prepared
    if _prepared is not None and _prepared[0] is reference:
        _prepared = None


_ENCODE_REASONS = {
    -1: "its key lies outside the column's buffers",
    -2: "its value lies outside the column's buffers",
    -3: "its headers lie outside the column's buffers",
    -4: "a header has no key",
    -5: "its timestamp is negative",
}


def encode_arrow(
    table: pa.Table | pa.RecordBatch | ArrowRows,
    row: int = 0,
    *,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    timestamp_type: int = 0,
    codec: int = 0,
    level: int | None = None,
    max_bytes: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> tuple[Encoded, int]:
    """One batch of the rows from ``row`` on, as many as fit in ``max_bytes`` uncompressed; and the next row.

    A batch ends with its chunk of the table at the latest. A null timestamp is ``now_ms``.
    """
    prepared = prepare_arrow(table)
    if not 0 <= row < prepared.num_rows:
        raise InvalidRecordError(f"no row {row} in a table of {prepared.num_rows}")
    at, chunk = prepared.find(row)
    state = array("q", bytes(64))
    room = min(max_bytes, chunk.room(chunk.rows - at))
    while True:
        data = bytearray(max(room, 61))
        code = kernel.encode_columns(
            data,
            at,
            chunk.rows,
            max_bytes,
            now_ms,
            *chunk.args,
            base_offset,
            leader_epoch,
            batch_attributes(0, timestamp_type, transactional),
            producer_id,
            producer_epoch,
            base_sequence,
            state,
        )
        if code:
            raise InvalidRecordError(f"record {row + state[1]}: {_ENCODE_REASONS[code]}")
        if state[1]:
            break
        if state[4] > max_bytes:
            raise RecordTooLargeError(
                f"record {row}: {state[4]} bytes as a batch, more than the {max_bytes} allowed"
            )
        room = state[4]  # one record far above the average
    del data[state[0] :]
    return finish(data, state[1], state[2], state[3], base_offset, codec, level), row + state[1]
