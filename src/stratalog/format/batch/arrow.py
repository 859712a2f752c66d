"""Batches to Arrow and Arrow to batches, and the one schema of it.

    key binary, value binary, topic string, partition int32, offset int64, timestamp timestamp(ms, UTC),
    timestampType int32, headers list<struct<key: string, value: binary>>; all nullable

Pure functions over buffers; nothing handed out points into a buffer that came in. Columns to be encoded are
cast from kindred types; what cannot be records is an InvalidRecordError. pyarrow is imported when first
needed, so that importing this module costs nothing.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from stratalog import kernel
from stratalog.errors import InvalidArgumentError, InvalidRecordError
from stratalog.format.batch.decode import (
    EVERYTHING,
    MAX_BATCH_BYTES,
    Bounds,
    Run,
    make_skip,
    record_error,
    runs,
)
from stratalog.format.batch.encode import BatchOptions, Encoded, encode_with
from stratalog.format.batch.header_scan import HEADER_SIZE, Buffer, Scan, as_view

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
GROUP_BYTES = 8 << 20
"""About how many bytes of records go into one RecordBatch."""

_WANT = {"key": 1, "value": 2, "offset": 4, "timestamp": 8, "timestampType": 16, "headers": 32}
_KEY, _VALUE, _OFFSET, _TIMESTAMP, _TYPE, _HEADERS = 1, 2, 4, 8, 16, 32
_HEADER_ROOM = -17
_KEPT_ROWS = 1 << 17
_NO_Q, _NO_I, _NO_B = array("q"), array("i"), bytearray()

_schemas: dict[tuple[str, ...], Any] = {}


@cache
def column_types() -> Mapping[str, pa.DataType]:
    """Return the type of each column; cached, since making it costs more than encoding a short table."""
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
    """Return the schema of these columns, in this order."""
    names = tuple(columns)
    made = _schemas.get(names)
    if made is None:
        import pyarrow as pa

        for name in names:
            if name not in COLUMNS:
                raise InvalidArgumentError(f"no column {name!r}; there are {', '.join(COLUMNS)}")
        if len(set(names)) != len(names):
            raise InvalidArgumentError(f"a column twice: {', '.join(names)}")
        types = column_types()
        made = _schemas[names] = pa.schema([pa.field(name, types[name]) for name in names])
    return made


@lru_cache(maxsize=16)
def _repeated(name: str, value: str | int, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, column_types()[name]), rows)


def _constant(name: str, value: str | int, rows: int) -> pa.Array:
    """Return a column of one value: a slice of a cached one, unless that would be large."""
    if rows > _KEPT_ROWS:
        return _repeated.__wrapped__(name, value, rows)
    return _repeated(name, value, max(1024, 1 << (rows - 1).bit_length())).slice(0, rows)


def iter_arrow(
    buf: Buffer,
    scan: Scan,
    first: int = 0,
    last: int | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    topic: str,
    partition: int,
    bounds: Bounds = EVERYTHING,
    skip: Container[int] | None = None,
    max_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """Yield the records of batches first … last - 1, about 8 MiB a RecordBatch, each with the row after it.

    Only records within ``bounds``; control batches and rows in ``skip`` are left out. None stands for batches
    without such a record. No more is decompressed at a time than goes into one RecordBatch, and the batch
    that did not fit in it.
    """
    view = as_view(buf)
    limits = bounds.for_kernel()
    reader = _Reader(scan, columns, topic, partition, limits, make_skip(scan, skip))
    group: list[Run] = []
    size = 0
    for run in runs(view, scan, first, last, limits, reader.skip, GROUP_BYTES, max_bytes):
        if group and size + run.size > GROUP_BYTES:
            end_row = group[-1].last
            made = reader.decode(group)
            group, size = [], 0
            yield made, end_row
        group.append(run)
        size += run.size
    if group:
        yield reader.decode(group), group[-1].last


def decode_arrow(buf: Buffer, scan: Scan, *args: Any, **options: Any) -> list[pa.RecordBatch]:
    """Return all that `iter_arrow` yields."""
    return [made for made, _ in iter_arrow(buf, scan, *args, **options) if made is not None]


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

    def decode(self, group: list[Run]) -> pa.RecordBatch | None:
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
        return self._assemble(blocks, rows) if rows else None

    def _assemble(self, blocks: _Blocks, rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        arrays: list[pa.Array] = []
        for field in self.schema:
            match field.name:
                case "topic":
                    arrays.append(_constant("topic", self.topic, rows))
                case "partition":
                    arrays.append(_constant("partition", self.partition, rows))
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
        self.views.append(self.state)

    def _block(self, name: str, size: int) -> memoryview:
        import pyarrow as pa

        block = pa.allocate_buffer(max(size, 8), resizable=True)
        self.buffers[name] = block
        return memoryview(block).cast("B")

    def _numbers(self, name: str, code: Literal["q", "i"], n: int) -> memoryview:
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
                return pa.Array.from_buffers(
                    kind, rows, [None, self._take("headers ends", 4 * (rows + 1))], 0, 0, [pairs]
                )
            case _:
                return pa.Array.from_buffers(
                    kind, rows, [None, self._take(name, rows * kind.bit_width // 8)], 0
                )

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


# -- Arrow to batches

_NO_BINARY = (_NO_I, b"", b"", 0)
_COLUMNS = frozenset(COLUMNS)
_WANTED = frozenset(("value", "key", "timestamp", "headers"))
_RECORD_BYTES = 36  # the varints of one record at their longest
_HEADER_BYTES = 10  # and those of one header
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
        check_names(names)
        columns = {name: fitted(name, data.column(at)) for at, name in enumerate(names) if name in _WANTED}
        self.num_rows: int = data.num_rows
        self.starts: list[int] = []
        self.chunks: list[_Chunk] = []
        if isinstance(data, pa.RecordBatch):
            self._add(columns)
            return
        chunks = max([column.num_chunks for column in columns.values()])
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
        """Encode rows as the kernel's ``encode_tuples`` encodes records: same arguments, same result."""
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


def check_names(names: list[str]) -> None:
    """Raise InvalidRecordError unless a table with these columns is one of records."""
    if not _COLUMNS.issuperset(names) or len(set(names)) < len(names):
        for name in names:
            if name not in _COLUMNS:
                raise InvalidRecordError(f"no column {name!r} in a record; there are {', '.join(COLUMNS)}")
            if names.count(name) > 1:
                raise InvalidRecordError(f"a column {name!r} twice")
    if "value" not in names:
        raise InvalidRecordError(f"a table of records needs a column 'value'; this one has {names}")


def fitted(name: str, column: Any) -> Any:
    """Convert a column, chunked or not, to the type the kernel reads; InvalidRecordError if it cannot be."""
    kind, target = column.type, column_types()[name]
    if kind == target:
        return column
    import pyarrow as pa
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    if name == "partition":
        kind_ok = types.is_integer(inner)
    elif name == "timestamp":
        kind_ok = types.is_timestamp(kind) or types.is_int64(kind) or types.is_null(kind)
    elif name == "headers":
        kind_ok = (
            types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) or types.is_null(kind)
        )
    else:
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
            self._extra = _span(names[0], 0) + _span(contents[0], 0) + _HEADER_BYTES * len(pairs)
        else:
            args += (_NO_I, b"", 0, *_NO_BINARY, *_NO_BINARY)
        self.args = args

    def room(self, row: int) -> int:
        """Return the most bytes that the rows from ``row`` on take as a batch."""
        fields = _span(self.args[0], row) + (_span(self.args[4], row) if len(self.args[4]) else 0)
        return HEADER_SIZE + (self.rows - row) * _RECORD_BYTES + fields + self._extra


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
    offset, size = column.offset, len(column) + 1
    cut = _view(ends)
    if len(cut) & 3:
        cut = cut[: len(cut) & ~3]
    cut = cut.cast("i")
    if offset or len(cut) != size:
        cut = cut[offset : offset + size]
    return cut, _view(data), b"" if valid is None else _bits(column, valid), offset


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
    options: BatchOptions,
) -> tuple[Encoded, int]:
    """Encode one batch of the rows from ``row`` on, as many as fit; return it and the next row.

    A batch ends with its chunk of the table at the latest. A null timestamp is ``now_ms``.
    """
    rows = table if isinstance(table, ArrowRows) else ArrowRows(table)
    data = bytearray()
    return encode_with(partial(rows.encode_into, data), data, row, options)


def is_arrow(records: object) -> TypeGuard[Any]:
    """Return whether this is an Arrow table or batch; does not import Arrow."""
    if not type(records).__module__.startswith("pyarrow"):
        return False  # asked first: another thread may be in the middle of importing Arrow
    pyarrow = sys.modules["pyarrow"]
    return isinstance(records, (pyarrow.Table, pyarrow.RecordBatch))


def arrow_parts(
    table: pa.Table | pa.RecordBatch, partition: int | None, count: int, sticky: Callable[[int, int], int]
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    """(partition, rows) in order. A ``partition`` column decides, else the key, else the sticky partition."""
    check_names(table.schema.names)
    if partition is not None or count == 1:
        if table.num_rows:
            yield partition or 0, table
        return
    import pyarrow as pa

    for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
        if not batch.num_rows:
            continue
        if "partition" in batch.schema.names and not batch.column("partition").null_count:
            yield from _split(batch, fitted("partition", batch.column("partition")))
        elif "key" in batch.schema.names:
            yield from _split(batch, _by_key(batch.column("key"), count, sticky))
        else:
            yield sticky(count, batch.nbytes), batch


def _by_key(keys: pa.Array, count: int, sticky: Callable[[int, int], int]) -> pa.Array:
    import pyarrow as pa

    place = kernel.partition_for_key
    numbers = [
        sticky(count, 0) if key is None else place(key, count) for key in fitted("key", keys).to_pylist()
    ]
    return pa.array(numbers, pa.int32())


def _split(batch: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow.compute as pc

    for number in sorted(pc.unique(numbers).to_pylist()):
        yield number, batch.filter(pc.equal(numbers, number))
