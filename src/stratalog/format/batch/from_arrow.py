"""Arrow to batches: tables with the columns of a scan, encoded without a Python object a record.

Pure functions: a table in, one batch at a time out. Columns of kindred types are cast; what cannot be
records is an InvalidRecordError. pyarrow is imported when first needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratalog import kernel
from stratalog.errors import InvalidRecordError
from stratalog.format.arrow import COLUMNS, column_types
from stratalog.format.batch.encode import Encoded, batch_attributes, finished, too_large

if TYPE_CHECKING:
    import pyarrow as pa

_NO_Q, _NO_I = array("q"), array("i")
_NO_BINARY = (_NO_I, b"", b"", 0)
_WANTED = ("value", "key", "timestamp", "headers")
_RECORD_ROOM = 36  # the varints of one record at their longest
_HEADER_ROOM = 10  # and those of one header
_SMALL_CHUNK = 4096  # rows; smaller ones are joined, because no batch reaches past its chunk


class ArrowRows:
    """A table or record batch made ready to be encoded: checked, cast, cut into its chunks.

    ``value`` is required; ``key``, ``timestamp`` and ``headers`` may be there; the other columns of a scan
    are ignored, and any other name is an InvalidRecordError.
    """

    __slots__ = ("chunks", "num_rows", "starts")

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
        columns = {name: _fitted(name, data.column(name)) for name in _WANTED if name in names}
        self.num_rows: int = data.num_rows
        self.starts: list[int] = []
        self.chunks: list[_Chunk] = []
        if isinstance(data, pa.RecordBatch):
            self._add(columns)
            return
        chunks = max(column.num_chunks for column in columns.values())
        if chunks == 1:
            self._add({name: column.chunk(0) for name, column in columns.items()})
            return
        table = pa.table(columns)
        if chunks and self.num_rows // chunks < _SMALL_CHUNK:
            table = table.combine_chunks()
        for batch in table.to_batches():
            self._add({name: batch.column(name) for name in columns})

    def _add(self, columns: Mapping[str, pa.Array]) -> None:
        rows = len(columns["value"])
        if rows:
            self.starts.append(self.starts[-1] + self.chunks[-1].rows if self.starts else 0)
            self.chunks.append(_Chunk(columns, rows))

    def __len__(self) -> int:
        return self.num_rows

    def encode_into(
        self,
        target: bytearray,
        row: int,
        now_ms: int,
        max_bytes: int,
        base_offset: int,
        leader_epoch: int,
        attributes: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
    ) -> tuple[int, int, int, int, int]:
        """The kernel's ``encode_tuples`` for rows: the same arguments, the same answer."""
        if not 0 <= row < self.num_rows:
            raise InvalidRecordError(f"no row {row} in a table of {self.num_rows}")
        slot = bisect_right(self.starts, row) - 1
        chunk, at = self.chunks[slot], row - self.starts[slot]
        room = min(max_bytes, chunk.room(at))
        if len(target) < room:
            target.extend(bytes(room - len(target)))
        state = array("q", bytes(64))
        code = kernel.encode_columns(
            target,
            at,
            chunk.rows,
            max_bytes,
            now_ms,
            *chunk.args,
            base_offset,
            leader_epoch,
            attributes,
            producer_id,
            producer_epoch,
            base_sequence,
            state,
        )
        if code:
            raise InvalidRecordError(f"record {row + state[1]}: {_ENCODE_REASONS[code]}")
        if not state[1]:
            return state[4], 0, 0, 0, 0
        return state[0], state[1], state[2], state[3], state[5]


def _fitted(name: str, column: Any) -> Any:
    """A column, chunked or not, in the type the kernel reads, or an InvalidRecordError."""
    kind, target = column.type, column_types()[name]
    if kind == target:
        return column
    import pyarrow as pa
    from pyarrow import types

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
        return column.cast(target, safe=name != "timestamp")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRecordError(f"column {name!r}: {kind} cannot be taken as {target}: {error}") from error


class _Chunk:
    """Columns without chunks, as the memory the kernel reads. Keeps them alive."""

    __slots__ = ("_columns", "_extra", "args", "rows")

    def __init__(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        self._columns = columns
        self.rows = rows
        self._extra = 0
        args: list[Any] = []
        args += _binary_views(columns["value"])
        column = columns.get("key")
        args += _NO_BINARY if column is None else _binary_views(column)
        column = columns.get("timestamp")
        if column is not None:
            valid, data = column.buffers()
            stamps = _view(data).cast("q")[column.offset : column.offset + rows]
            args += (stamps, _bits(column, valid), column.offset)
        else:
            args += (_NO_Q, b"", 0)
        column = columns.get("headers")
        if column is not None:
            valid, ends = column.buffers()[:2]
            pairs = column.values
            if pairs.null_count:
                raise InvalidRecordError("column 'headers': a header is null")
            views = _view(ends).cast("i")[column.offset : column.offset + rows + 1]
            args += (views, _bits(column, valid), column.offset)
            names, contents = _binary_views(pairs.field(0)), _binary_views(pairs.field(1))
            args += (*names, *contents)
            self._extra = _span(names[0], 0) + _span(contents[0], 0) + _HEADER_ROOM * len(pairs)
        else:
            args += (_NO_I, b"", 0, *_NO_BINARY, *_NO_BINARY)
        self.args = args

    def room(self, row: int) -> int:
        """What the rows from ``row`` on take at most, as a batch; the kernel stops at the end anyway."""
        fields = _span(self.args[0], row) + (_span(self.args[4], row) if len(self.args[4]) else 0)
        return 61 + (self.rows - row) * _RECORD_ROOM + fields + self._extra


def _span(ends: Any, row: int) -> int:
    return max(int(ends[-1]) - int(ends[row]), 0)


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
    rows = table if isinstance(table, ArrowRows) else ArrowRows(table)
    data = bytearray()
    size, count, least, largest, crc = rows.encode_into(
        data,
        row,
        now_ms,
        max_bytes,
        base_offset,
        leader_epoch,
        batch_attributes(0, timestamp_type, transactional),
        producer_id,
        producer_epoch,
        base_sequence,
    )
    if not count:
        raise too_large(row, size, max_bytes)
    del data[size:]
    return finished(data, count, least, largest, crc, base_offset, codec, level), row + count
