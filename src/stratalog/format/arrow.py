"""Batches to and from Arrow, in one schema.

    key binary, value binary, topic string, partition int32, offset int64, timestamp timestamp(ms, UTC),
    timestampType int32, headers list<struct<key: string, value: binary>>; all nullable

Pure functions over buffers; nothing handed out points into a buffer that came in. pyarrow is imported when
first needed, so that importing this module costs nothing.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from stratalog import kernel
from stratalog.errors import InvalidArgumentError, InvalidRecordError, RecordTooLargeError
from stratalog.format.batch_decode import (
    MAX_BATCH_BYTES,
    MAX_OFFSET,
    Run,
    make_bounds,
    make_skip,
    record_error,
    runs,
)
from stratalog.format.batch_encode import Encoded, batch_attributes, finish
from stratalog.format.batch_scan import Buffer, Scan, as_view

if TYPE_CHECKING:
    import pyarrow as pa

    SCHEMA: pa.Schema

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
GROUP_BYTES = 8 << 20
"""About how many bytes of records go into one RecordBatch."""

_WANT = {"key": 1, "value": 2, "offset": 4, "timestamp": 8, "timestampType": 16, "headers": 32}
_KEY, _VALUE, _OFFSET, _TIMESTAMP, _TYPE, _HEADERS = 1, 2, 4, 8, 16, 32
_HEADER_ROOM = -17
_NO_Q, _NO_I, _NO_B = array("q"), array("i"), bytearray()
_RECORD_ROOM = 32  # more than the varints of one record take

_schemas: dict[tuple[str, ...], Any] = {}


def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }


def schema_for(columns: Sequence[str]) -> pa.Schema:
    """The schema of some columns, in the order asked for."""
    names = tuple(columns)
    made = _schemas.get(names)
    if made is None:
        import pyarrow as pa

        for name in names:
            if name not in COLUMNS:
                raise InvalidArgumentError(f"no column {name!r}; there are {', '.join(COLUMNS)}")
        if len(set(names)) != len(names):
            raise InvalidArgumentError(f"a column twice: {', '.join(names)}")
        types = _types()
        made = _schemas[names] = pa.schema([pa.field(name, types[name]) for name in names])
    return made


def __getattr__(name: str) -> Any:
    if name == "SCHEMA":
        return schema_for(COLUMNS)
    raise AttributeError(name)


def decode_arrow(
    buf: Buffer,
    scan: Scan,
    first: int = 0,
    last: int | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    topic: str,
    partition: int,
    lo: int = 0,
    hi: int = MAX_OFFSET,
    since: int | None = None,
    until: int | None = None,
    skip: Container[int] | None = None,
    max_bytes: int = MAX_BATCH_BYTES,
) -> list[pa.RecordBatch]:
    """The records of batches first … last - 1 as Arrow, about 8 MiB of them a RecordBatch.

    Only offsets in [lo, hi) and timestamps in [since, until); control batches and rows in ``skip`` left out.
    """
    view = as_view(buf)
    bounds = make_bounds(lo, hi, since, until)
    reader = _Reader(scan, columns, topic, partition, bounds, make_skip(scan, skip))
    made: list[pa.RecordBatch] = []
    group: list[Run] = []
    size = 0
    for run in runs(view, scan, first, last, bounds, reader.skip, GROUP_BYTES, max_bytes):
        if group and size + run.size > GROUP_BYTES:
            made += reader.decode(group)
            group, size = [], 0
        group.append(run)
        size += run.size
    if group:
        made += reader.decode(group)
    return made


class _Reader:
    """Groups of runs to RecordBatches."""

    def __init__(
        self, scan: Scan, columns: Sequence[str], topic: str, partition: int, bounds: array[int], skip: bytes
    ) -> None:
        self.scan = scan
        self.schema = schema_for(columns)
        self.topic = topic
        self.partition = partition
        self.bounds = bounds
        self.skip = skip
        self.want = 0
        for name in columns:
            self.want |= _WANT.get(name, 0)
        self.header_rows = 64
        self.header_bytes = 1024

    def decode(self, group: list[Run]) -> list[pa.RecordBatch]:
        size = sum(run.size for run in group)
        while True:
            blocks = _Blocks(self.want, group, min(self.header_rows, size // 2), min(self.header_bytes, size))
            code = 0
            for run in group:
                code = kernel.decode_columns(
                    run.source,
                    self.scan.table,
                    run.first,
                    run.last,
                    run.body,
                    self.bounds,
                    self.skip,
                    self.want,
                    *blocks.views,
                    blocks.state,
                )
                if code:
                    break
            if code != _HEADER_ROOM or (self.header_rows >= size // 2 and self.header_bytes >= size):
                break
            # Headers cannot be counted without reading them: start over with more room.
            self.header_rows *= 8
            self.header_bytes *= 8
        if code:
            raise record_error(self.scan, blocks.state)
        rows = blocks.state[8]
        return [self._assemble(blocks, rows)] if rows else []

    def _assemble(self, blocks: _Blocks, rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        arrays: list[pa.Array] = []
        for field in self.schema:
            match field.name:
                case "topic":
                    arrays.append(pa.repeat(pa.scalar(self.topic, field.type), rows))
                case "partition":
                    arrays.append(pa.repeat(pa.scalar(self.partition, field.type), rows))
                case _:
                    arrays.append(blocks.array(field.name, field.type, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Blocks:
    """The buffers of one RecordBatch while they are filled."""

    def __init__(self, want: int, group: list[Run], header_rows: int, header_bytes: int) -> None:
        rows = sum(run.records for run in group)
        size = sum(run.size for run in group)
        self.state = array("q", bytes(8 * 24))
        self.buffers: dict[str, pa.ResizableBuffer] = {}
        self.valid: dict[str, bytearray] = {}
        plain = [
            self._numbers(name, "q", rows) if want & bit else _NO_Q
            for name, bit in (("offset", _OFFSET), ("timestamp", _TIMESTAMP))
        ]
        self.views: list[Any] = [*plain, self._numbers("timestampType", "i", rows) if want & _TYPE else _NO_I]
        for name, bit in (("key", _KEY), ("value", _VALUE)):
            self.views += self._binary(name, rows, size) if want & bit else (_NO_I, _NO_B, _NO_B)
        if want & _HEADERS:
            self.views.append(self._ends("headers", rows))
            self.views += self._binary("header key", header_rows, header_bytes)[:2]
            self.views += self._binary("header value", header_rows, header_bytes)
        else:
            self.views += [_NO_I, _NO_I, _NO_B, _NO_I, _NO_B, _NO_B]

    def _block(self, name: str, size: int) -> memoryview:
        import pyarrow as pa

        block = pa.allocate_buffer(max(size, 8), resizable=True)
        self.buffers[name] = block
        return memoryview(block).cast("B")

    def _numbers(self, name: str, code: str, n: int) -> memoryview:
        return self._block(name, n * (8 if code == "q" else 4)).cast(code)

    def _ends(self, name: str, rows: int) -> memoryview:
        ends = self._block(name + " ends", (rows + 2) * 4 & ~7).cast("i")
        ends[0] = 0
        return ends

    def _binary(self, name: str, rows: int, size: int) -> tuple[memoryview, memoryview, bytearray]:
        self.valid[name] = bytearray(b"\xff") * (rows // 8 + 1)
        return self._ends(name, rows), self._block(name, size), self.valid[name]

    def array(self, name: str, kind: pa.DataType, rows: int) -> pa.Array:
        import pyarrow as pa

        self.views = []  # the blocks may move from here on
        state = self.state
        match name:
            case "key":
                return self._binary_array(name, kind, rows, state[9], state[11])
            case "value":
                return self._binary_array(name, kind, rows, state[10], state[12])
            case "headers":
                fields = kind.value_type
                n = state[13]
                keys = self._header_keys(n, state[14], bool(state[17]))
                values = self._binary_array("header value", pa.binary(), n, state[15], state[16])
                pairs = pa.StructArray.from_arrays([keys, values], fields=list(fields))
                return pa.Array.from_buffers(kind, rows, [None, self._take("headers ends", 4 * (rows + 1))], 0, 0, [pairs])
            case _:
                return pa.Array.from_buffers(kind, rows, [None, self._take(name, rows * kind.bit_width // 8)], 0)

    def _take(self, name: str, size: int) -> pa.Buffer:
        block = self.buffers.pop(name)
        block.resize(size, shrink_to_fit=True)
        return block

    def _binary_array(self, name: str, kind: pa.DataType, rows: int, size: int, nulls: int) -> pa.Array:
        import pyarrow as pa

        valid = pa.py_buffer(bytes(self.valid[name][: (rows + 7) // 8])) if nulls else None
        ends = self._take(name + " ends", 4 * (rows + 1))
        return pa.Array.from_buffers(kind, rows, [valid, ends, self._take(name, size)], nulls)

    def _header_keys(self, n: int, size: int, judge: bool) -> pa.Array:
        import pyarrow as pa

        if not judge:
            return self._binary_array("header key", pa.string(), n, size, 0)
        keys = self._binary_array("header key", pa.binary(), n, size, 0)
        try:
            return keys.cast(pa.string())
        except pa.ArrowInvalid:  # not UTF-8: repaired as decode_records does
            return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


class ArrowRows:
    """A table or record batch made ready for ``encode_arrow``: checked, cast, cut into its chunks.

    ``value`` is required; ``key``, ``timestamp`` and ``headers`` may be there; the other columns of a scan are
    ignored, and any other name is an InvalidRecordError.
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
        from bisect import bisect_right

        at = bisect_right(self.starts, row) - 1
        return row - self.starts[at], self.chunks[at]


def _fitted(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in the type the kernel reads, or an InvalidRecordError."""
    import pyarrow as pa
    from pyarrow import types

    kind, target = column.type, _types()[name]
    if name == "timestamp":
        kind_ok = types.is_timestamp(kind) or types.is_int64(kind) or types.is_null(kind)
    elif name == "headers":
        kind_ok = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) or types.is_null(kind)
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
            # field() leaves out the struct's own offset and validity
            for i in (0, 1):
                self.args += _binary_views(pairs.field(i)[pairs.offset : pairs.offset + len(pairs)] if pairs.offset else pairs.field(i))
        else:
            self.args += (_NO_I, b"", 0, _NO_I, b"", b"", 0, _NO_I, b"", b"", 0)
        self.per_row = (batch.nbytes // self.rows) + _RECORD_ROOM + 1

    def room(self, rows: int) -> int:
        """More bytes than this many rows can take, going by the average; the kernel stops at the end anyway."""
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
