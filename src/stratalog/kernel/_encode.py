# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Records into batches: from Python tuples, one at a time, or from Arrow buffers.

Each entry point makes one whole uncompressed batch, header and CRC included. Nothing is written past the
end of the block that was sized for it, even when another thread changes a list or a buffer meanwhile.
A record of the wrong shape raises the error class given to ``use_error``.
"""

import datetime as dt

import cython
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy
from cython.cimports.stratalog.kernel._hash import join
from cython.cimports.stratalog.kernel.native import (
    copy_bytes,
    copy_short,
    crc_of,
    native_init,
    put16,
    put32,
    put64,
)

native_init()

M64 = 0xFFFFFFFFFFFFFFFF
HALF = 0x8000000000000000
NO_HEADERS: bytes = b"\x00"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)

_error: type = ValueError


def use_error(error: type):
    """The class raised for a record that cannot be encoded; it takes one message."""
    global _error
    _error = error


def varint_length(v):
    """Bytes of a varint."""
    n: cython.Py_ssize_t = 1
    while v >= 0x80:
        v >>= 7
        n += 1
    return n


def put_varint(dst, p, v):
    while v >= 0x80:
        dst[p] = (v & 0x7F) | 0x80
        p += 1
        v >>= 7
    dst[p] = v
    return p + 1


def zigzag_difference(a, b):
    """a - b in 64 bits, zigzag."""
    d: cython.longlong
    if cython.compiled:
        d = a - b
        return cython.cast(cython.ulonglong, (d << 1) ^ (d >> 63))
    d = ((a - b + HALF) & M64) - HALF
    return ((d << 1) ^ (d >> 63)) & M64


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(dst: cython.pointer[cython.uchar], p: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    n: cython.Py_ssize_t = len(data)
    if cython.compiled:
        memcpy(dst + p, PyBytes_AS_STRING(data), n)
    else:
        dst[p : p + n] = data
    return p + n


def put_header(
    dst,
    at,
    size,
    base_offset,
    leader_epoch,
    attributes,
    last_delta,
    base_timestamp,
    max_timestamp,
    producer_id,
    producer_epoch,
    base_sequence,
    count,
):
    """Write the 61 bytes before records that are already there; return the CRC in them."""
    crc: cython.uint
    put64(dst, at, base_offset)
    put32(dst, at + 8, size - 12)
    put32(dst, at + 12, leader_epoch)
    dst[at + 16] = 2
    put16(dst, at + 21, attributes)
    put32(dst, at + 23, last_delta)
    put64(dst, at + 27, base_timestamp)
    put64(dst, at + 35, max_timestamp)
    put64(dst, at + 43, producer_id)
    put16(dst, at + 51, producer_epoch)
    put32(dst, at + 53, base_sequence)
    put32(dst, at + 57, count)
    crc = crc_of(dst, at + 21, at + size)
    put32(dst, at + 17, crc)
    return crc


def _whole_crc(dst, size, crc):
    """Return the CRC-32C of a whole batch from the one in its header."""
    return join(crc_of(dst, 0, 21), crc, size - 21)


def _wrong(index, field, value, wanted):
    return _error(f"record {index}: {field} must be {wanted}, not {type(value).__name__}")


def _header_bytes(headers, index):
    """The headers of one record, as they are written: their number, then each key and value."""
    dst: cython.pointer[cython.uchar]
    size: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t
    key: bytes
    value: object
    parts: list = []
    if isinstance(headers, (str, bytes, dict)):
        raise _wrong(index, "headers", headers, "a sequence of (str, bytes) pairs")
    try:
        pairs = list(headers)
    except TypeError:
        raise _wrong(index, "headers", headers, "a sequence of (str, bytes) pairs") from None
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _wrong(index, "header", pair, "a (str, bytes) pair")
        name, value = pair
        if not isinstance(name, str):
            raise _wrong(index, "header key", name, "str")
        if value is not None and not isinstance(value, bytes):
            raise _wrong(index, "header value", value, "bytes or None")
        try:
            key = name.encode("utf-8")
        except UnicodeEncodeError:
            raise _error(f"record {index}: header key {name!r} is not valid text") from None
        parts.append((key, value))
        size += varint_length(cython.cast(cython.ulonglong, len(key)) << 1) + len(key)
        if value is None:
            size += 1
        else:
            size += varint_length(cython.cast(cython.ulonglong, len(cython.cast(bytes, value))) << 1)
            size += len(cython.cast(bytes, value))
    size += varint_length(cython.cast(cython.ulonglong, len(parts)) << 1)
    if cython.compiled:
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        dst = cython.cast(cython.pointer[cython.uchar], PyBytes_AS_STRING(made))
    else:
        made = dst = bytearray(size)
    p = put_varint(dst, 0, cython.cast(cython.ulonglong, len(parts)) << 1)
    for pair in parts:
        key, value = pair
        p = put_varint(dst, p, cython.cast(cython.ulonglong, len(key)) << 1)
        p = _put_bytes(dst, p, key)
        if value is None:
            dst[p] = 1
            p += 1
        else:
            p = put_varint(dst, p, cython.cast(cython.ulonglong, len(cython.cast(bytes, value))) << 1)
            p = _put_bytes(dst, p, cython.cast(bytes, value))
    return made if cython.compiled else bytes(made)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _body_size(
    zigzag_time: cython.ulonglong,
    number: cython.ulonglong,
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
) -> cython.Py_ssize_t:
    """Bytes of a record after its length."""
    size: cython.Py_ssize_t = 1 + varint_length(zigzag_time) + varint_length(number << 1) + len(headers)
    if key is None:
        size += 1
    else:
        size += varint_length(cython.cast(cython.ulonglong, len(key)) << 1) + len(key)
    if value is None:
        size += 1
    else:
        size += varint_length(cython.cast(cython.ulonglong, len(value)) << 1) + len(value)
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_record(
    dst: cython.pointer[cython.uchar],
    p: cython.Py_ssize_t,
    body: cython.ulonglong,
    zigzag_time: cython.ulonglong,
    number: cython.ulonglong,
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
) -> cython.Py_ssize_t:
    p = put_varint(dst, p, body << 1)
    dst[p] = 0
    p = put_varint(dst, p + 1, zigzag_time)
    p = put_varint(dst, p, number << 1)
    if key is None:
        dst[p] = 1
        p += 1
    else:
        p = put_varint(dst, p, cython.cast(cython.ulonglong, len(key)) << 1)
        p = _put_bytes(dst, p, key)
    if value is None:
        dst[p] = 1
        p += 1
    else:
        p = put_varint(dst, p, cython.cast(cython.ulonglong, len(value)) << 1)
        p = _put_bytes(dst, p, value)
    return _put_bytes(dst, p, headers)


def encode_one(
    value: object,
    key: object,
    headers: object,
    timestamp: cython.longlong,
    base_offset: cython.longlong,
    leader_epoch: cython.int,
    timestamp_type: cython.int,
):
    """A batch of one record."""
    return one_record(value, key, headers, timestamp, base_offset, leader_epoch, timestamp_type)


def one_record(value, key, headers, timestamp, base_offset, leader_epoch, timestamp_type):
    """`encode_one` for the kernel's other modules."""
    dst: cython.pointer[cython.uchar]
    written: bytes = NO_HEADERS
    body: cython.Py_ssize_t
    size: cython.Py_ssize_t
    if value is not None and not isinstance(value, bytes):
        raise _wrong(0, "value", value, "bytes or None")
    if key is not None and not isinstance(key, bytes):
        raise _wrong(0, "key", key, "bytes or None")
    if timestamp < -1:
        raise _error(f"record 0: timestamp {timestamp} is negative")
    if headers:
        written = _header_bytes(headers, 0)
    body = _body_size(0, 0, cython.cast(bytes, key), cython.cast(bytes, value), written)
    size = 61 + varint_length(cython.cast(cython.ulonglong, body) << 1) + body
    if size > 0x7FFFFFFF:
        raise _error(f"record 0: {size} bytes do not fit in a batch")
    if cython.compiled:
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        dst = cython.cast(cython.pointer[cython.uchar], PyBytes_AS_STRING(made))
    else:
        made = dst = bytearray(size)
    _put_record(dst, 61, body, 0, 0, cython.cast(bytes, key), cython.cast(bytes, value), written)
    attributes: cython.int = 8 if timestamp_type else 0
    put_header(dst, 0, size, base_offset, leader_epoch, attributes, 0, timestamp, timestamp, -1, -1, -1, 1)
    return made if cython.compiled else bytes(made)


def encode_tuples(
    target: bytearray,
    records: list,
    start: cython.Py_ssize_t,
    now_ms: cython.longlong,
    max_bytes: cython.Py_ssize_t,
    base_offset: cython.longlong,
    leader_epoch: cython.int,
    attributes: cython.int,
    producer_id: cython.longlong,
    producer_epoch: cython.int,
    base_sequence: cython.int,
):
    """A batch of records[start:], as many as fit in ``max_bytes``, at the beginning of ``target``.

    The target grows as needed and is never cut, so that one buffer serves many calls. A record is a tuple
    (value, key, headers, timestamp, …); what is missing at its end is as if None. Returns (size of the batch,
    records in it, least timestamp, largest timestamp, CRC-32C of the whole batch). With 0 records not even
    the first fits, and the size is what it would take.
    """
    dst: cython.pointer[cython.uchar]
    i: cython.Py_ssize_t = start
    p: cython.Py_ssize_t = 61
    end: cython.Py_ssize_t
    body: cython.Py_ssize_t
    count: cython.ulonglong = 0
    width: cython.Py_ssize_t
    room: cython.Py_ssize_t
    timestamp: cython.longlong
    base_timestamp: cython.longlong = 0
    least: cython.longlong = 0
    largest: cython.longlong = 0
    time: cython.ulonglong
    total: cython.Py_ssize_t = len(records)
    record: tuple
    key: object
    value: object
    headers: object
    stamp: object
    written: bytes
    empty: tuple = ()  # there is one empty tuple: comparing by identity spares a call for each record
    if start < 0 or start >= total:
        raise ValueError("encode_tuples: no records")
    if max_bytes > 0x7FFFFFFF:
        max_bytes = 0x7FFFFFFF
    while i < len(records):
        item = records[i]
        if not isinstance(item, tuple):
            raise _wrong(i, "it", item, "a Record")
        record = cython.cast(tuple, item)
        width = len(record)
        if width == 0:
            raise _error(f"record {i}: an empty tuple has no value")
        value = record[0]
        key = record[1] if width > 1 else None
        headers = record[2] if width > 2 else None
        stamp = record[3] if width > 3 else None
        if value is not None and not isinstance(value, bytes):
            raise _wrong(i, "value", value, "bytes or None")
        if key is not None and not isinstance(key, bytes):
            raise _wrong(i, "key", key, "bytes or None")
        if stamp is None:
            timestamp = now_ms
        else:
            timestamp = _timestamp(stamp, i)
        written = NO_HEADERS
        if headers is not None and headers is not empty and headers != ():
            written = _header_bytes(headers, i)
        if count == 0:
            base_timestamp = least = largest = timestamp
        time = zigzag_difference(timestamp, base_timestamp)
        body = _body_size(time, count, cython.cast(bytes, key), cython.cast(bytes, value), written)
        end = p + varint_length(cython.cast(cython.ulonglong, body) << 1) + body
        if end > max_bytes:
            if count == 0:
                return end, 0, timestamp, timestamp, 0
            break
        # Headers and timestamps may run any code: how large the target is, and where, is asked each time.
        room = len(target)
        if count and room < p:
            raise RuntimeError("the target changed while records were encoded")
        if end > room:
            _grow(target, max(end, min(2 * room, max_bytes)))
        if cython.compiled:
            dst = cython.cast(cython.pointer[cython.uchar], PyByteArray_AS_STRING(target))
        else:
            dst = target
        p = _put_record(
            dst, p, body, time, count, cython.cast(bytes, key), cython.cast(bytes, value), written
        )
        if timestamp < least:
            least = timestamp
        if timestamp > largest:
            largest = timestamp
        count += 1
        i += 1
    if len(records) != total or len(target) < p:
        raise RuntimeError("records changed while they were encoded")
    if attributes & 8:
        least = largest = now_ms
    if cython.compiled:
        dst = cython.cast(cython.pointer[cython.uchar], PyByteArray_AS_STRING(target))
    else:
        dst = target
    crc: cython.uint = put_header(
        dst,
        0,
        p,
        base_offset,
        leader_epoch,
        attributes,
        count - 1,
        base_timestamp,
        largest,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return p, count, least, largest, _whole_crc(dst, p, crc)


def _grow(target, size):
    if cython.compiled:
        PyByteArray_Resize(target, size)
    else:
        target.extend(bytes(size - len(target)))
    return


def _timestamp(stamp, index):
    if isinstance(stamp, dt.datetime):
        if stamp.tzinfo is None:
            raise _error(f"record {index}: timestamp is a datetime without a time zone ({stamp})")
        stamp = (stamp - EPOCH) // MILLISECOND
    if not isinstance(stamp, int):
        raise _wrong(index, "timestamp", stamp, "an int of milliseconds, a datetime or None")
    if stamp < -1 or stamp > 0x7FFFFFFFFFFFFFFF:
        raise _error(f"record {index}: timestamp {stamp} is outside 0 … 2**63 - 1")
    return stamp


# -- from Arrow buffers


def _is_null(valid, bit):
    """By a validity bitmap, which is there."""
    return not (valid[bit >> 3] >> (bit & 7)) & 1


def _memory(data):
    """The bytes themselves: a view handed to a function is copied, and costs more than a short record."""
    if cython.compiled:
        return cython.address(data[0]) if len(data) else cython.NULL
    return data


def _put_field(dst, p, data, start, n):
    """A length (-1 for null) and the bytes."""
    if n < 0:
        dst[p] = 1
        return p + 1
    if n < 64:
        dst[p] = n << 1
        p += 1
    else:
        p = put_varint(dst, p, cython.cast(cython.ulonglong, n) << 1)
    return copy_bytes(dst, p, data, start, n) if n > 0 else p


def _field_size(n):
    if n < 64:  # nearly every field
        return 1 if n < 0 else n + 1
    return varint_length(cython.cast(cython.ulonglong, n) << 1) + n


def _plain_rows(
    dst, limit, row, rows, value_ends, value_from, value_bytes, key_ends, key_from, key_bytes, timestamps
):
    """Encode rows without nulls and headers, as far as they are sound and fit with room to spare.

    Returns the row after the last, and where that one ends. The next is for `encode_columns`, which knows
    every kind of row and every error. A missing column of keys or timestamps is NULL. The interpreter does
    without: the results are equal.
    """
    i: cython.Py_ssize_t = row
    p: cython.Py_ssize_t = 61
    body: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    key_at: cython.Py_ssize_t = 0
    key_size: cython.Py_ssize_t = -1
    time: cython.ulonglong = 0
    number: cython.ulonglong
    while i < rows:
        number = cython.cast(cython.ulonglong, i - row) << 1
        value_at = value_ends[i]
        value_size = value_ends[i + 1] - value_at
        if value_at < 0 or value_size < 0 or value_size > value_bytes - value_at:
            break
        if key_ends:
            key_at = key_ends[i]
            key_size = key_ends[i + 1] - key_at
            if key_at < 0 or key_size < 0 or key_size > key_bytes - key_at:
                break
        if timestamps:
            if timestamps[i] < -1:
                break
            time = zigzag_difference(timestamps[i], timestamps[row])
        body = 2 + varint_length(time) + varint_length(number) + _field_size(key_size)
        body += _field_size(value_size)
        if body + 5 > limit - p:
            break
        p = put_varint(dst, p, cython.cast(cython.ulonglong, body) << 1)
        dst[p] = 0
        p = put_varint(dst, p + 1, time)
        p = put_varint(dst, p, number)
        if key_size < 0:
            dst[p] = 1
            p += 1
        else:
            p = put_varint(dst, p, cython.cast(cython.ulonglong, key_size) << 1)
            p = copy_short(dst, p, key_from, key_at, key_size, min(limit - p, key_bytes - key_at))
        p = put_varint(dst, p, cython.cast(cython.ulonglong, value_size) << 1)
        p = copy_short(dst, p, value_from, value_at, value_size, min(limit - p, value_bytes - value_at))
        dst[p] = 0
        p += 1
        i += 1
    return i, p


def encode_columns(
    target: cython.uchar[::1],
    row: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    max_bytes: cython.Py_ssize_t,
    now_ms: cython.longlong,
    value_ends: cython.const[cython.int][::1],
    value_data: cython.const[cython.uchar][::1],
    value_valid: cython.const[cython.uchar][::1],
    value_bit: cython.Py_ssize_t,
    key_ends: cython.const[cython.int][::1],
    key_data: cython.const[cython.uchar][::1],
    key_valid: cython.const[cython.uchar][::1],
    key_bit: cython.Py_ssize_t,
    timestamps: cython.const[cython.longlong][::1],
    time_valid: cython.const[cython.uchar][::1],
    time_bit: cython.Py_ssize_t,
    header_ends: cython.const[cython.int][::1],
    header_valid: cython.const[cython.uchar][::1],
    header_bit: cython.Py_ssize_t,
    name_ends: cython.const[cython.int][::1],
    name_data: cython.const[cython.uchar][::1],
    name_valid: cython.const[cython.uchar][::1],
    name_bit: cython.Py_ssize_t,
    content_ends: cython.const[cython.int][::1],
    content_data: cython.const[cython.uchar][::1],
    content_valid: cython.const[cython.uchar][::1],
    content_bit: cython.Py_ssize_t,
    base_offset: cython.longlong,
    leader_epoch: cython.int,
    attributes: cython.int,
    producer_id: cython.longlong,
    producer_epoch: cython.int,
    base_sequence: cython.int,
    state: cython.longlong[::1],
) -> cython.int:
    """Encode rows row … rows - 1 into ``target`` until the next would pass ``max_bytes`` or the target's end.

    A column arrives as the buffers Arrow keeps it in, cut so that row 0 is element 0 (validity bitmaps keep a
    bit offset). They are not trusted: offsets that do not rise or leave their data are an error, and nothing
    is written past the end of the target. An empty ``key_ends``, ``timestamps`` or ``header_ends`` is a
    missing column. ``state`` out: 0 bytes written, 1 records, 2 least and 3 largest timestamp, 4 the size of
    a batch of the next record alone, 5 the CRC-32C of the whole batch. Codes: -1 the row's key, -2 value,
    -3 headers lie outside their buffers, -4 a null header key, -5 a bad timestamp.
    """
    dst: cython.pointer[cython.uchar]
    i: cython.Py_ssize_t = row
    p: cython.Py_ssize_t = 61
    body: cython.Py_ssize_t
    h: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t = 0
    headers: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    key_size: cython.Py_ssize_t
    time: cython.ulonglong
    number: cython.ulonglong
    timestamp: cython.longlong
    base_timestamp: cython.longlong = 0
    least: cython.longlong = 0
    largest: cython.longlong = 0
    code: cython.int = 0
    has_key: cython.bint = len(key_ends) > 0
    has_time: cython.bint = len(timestamps) > 0
    has_headers: cython.bint = len(header_ends) > 0
    value_nulls: cython.bint = len(value_valid) > 0
    key_nulls: cython.bint = len(key_valid) > 0
    time_nulls: cython.bint = len(time_valid) > 0
    header_nulls: cython.bint = len(header_valid) > 0
    name_nulls: cython.bint = len(name_valid) > 0
    content_nulls: cython.bint = len(content_valid) > 0
    value_bits: cython.pointer[cython.const[cython.uchar]] = _memory(value_valid)
    key_bits: cython.pointer[cython.const[cython.uchar]] = _memory(key_valid)
    time_bits: cython.pointer[cython.const[cython.uchar]] = _memory(time_valid)
    header_bits: cython.pointer[cython.const[cython.uchar]] = _memory(header_valid)
    name_bits: cython.pointer[cython.const[cython.uchar]] = _memory(name_valid)
    content_bits: cython.pointer[cython.const[cython.uchar]] = _memory(content_valid)
    value_from: cython.pointer[cython.const[cython.uchar]] = _memory(value_data)
    key_from: cython.pointer[cython.const[cython.uchar]] = _memory(key_data)
    name_from: cython.pointer[cython.const[cython.uchar]] = _memory(name_data)
    content_from: cython.pointer[cython.const[cython.uchar]] = _memory(content_data)
    limit: cython.Py_ssize_t = min(max_bytes, len(target), 0x7FFFFFFF)
    if row < 0 or rows <= row or len(value_ends) <= rows or len(state) < 6 or len(target) < 61:
        raise ValueError("encode_columns: rows outside the columns")
    if (has_key and len(key_ends) <= rows) or (has_time and len(timestamps) < rows):
        raise ValueError("encode_columns: rows outside the columns")
    if (has_headers and len(header_ends) <= rows) or _short(value_valid, value_bit, rows):
        raise ValueError("encode_columns: rows outside the columns")
    if (
        _short(key_valid, key_bit, rows)
        or _short(time_valid, time_bit, rows)
        or _short(header_valid, header_bit, rows)
    ):
        raise ValueError("encode_columns: rows outside the columns")
    if _short(name_valid, name_bit, len(name_ends) - 1) or _short(
        content_valid, content_bit, len(content_ends) - 1
    ):
        raise ValueError("encode_columns: rows outside the columns")
    if cython.compiled:
        dst = cython.address(target[0])
    else:
        dst = target
    state[4] = 0
    if not (has_headers or value_nulls or key_nulls or time_nulls):
        if cython.compiled:
            with cython.nogil:
                i, p = _plain_rows(
                    dst,
                    limit,
                    row,
                    rows,
                    cython.address(value_ends[0]),
                    value_from,
                    len(value_data),
                    cython.address(key_ends[0]) if has_key else cython.NULL,
                    key_from,
                    len(key_data),
                    cython.address(timestamps[0]) if has_time else cython.NULL,
                )
        base_timestamp = least = largest = now_ms
        if has_time:
            base_timestamp = least = largest = timestamps[row]
            for h in range(row, i):
                if timestamps[h] < least:
                    least = timestamps[h]
                if timestamps[h] > largest:
                    largest = timestamps[h]
    with cython.nogil:
        while i < rows:
            number = cython.cast(cython.ulonglong, i - row)
            value_at = value_ends[i]
            value_size = value_ends[i + 1] - value_at
            if value_at < 0 or value_size < 0 or value_size > len(value_data) - value_at:
                code = -2
                break
            if value_nulls and _is_null(value_bits, value_bit + i):
                value_size = -1
            key_at = 0
            key_size = -1
            if has_key:
                key_at = key_ends[i]
                key_size = key_ends[i + 1] - key_at
                if key_at < 0 or key_size < 0 or key_size > len(key_data) - key_at:
                    code = -1
                    break
                if key_nulls and _is_null(key_bits, key_bit + i):
                    key_size = -1
            timestamp = now_ms
            if has_time and not (time_nulls and _is_null(time_bits, time_bit + i)):
                timestamp = timestamps[i]
                if timestamp < -1:
                    code = -5
                    break
            if number == 0:
                base_timestamp = timestamp
                least = timestamp
                largest = timestamp
            time = zigzag_difference(timestamp, base_timestamp)
            body = 1 + varint_length(time) + varint_length(number << 1) + _field_size(key_size)
            body += _field_size(value_size)
            headers = 0
            if has_headers and not (header_nulls and _is_null(header_bits, header_bit + i)):
                first = header_ends[i]
                last = header_ends[i + 1]
                if first < 0 or last < first or last >= len(name_ends) or last >= len(content_ends):
                    code = -3
                    break
                headers = last - first
                for h in range(first, last):
                    if name_nulls and _is_null(name_bits, name_bit + h):
                        code = -4
                        break
                    start = name_ends[h]
                    length = name_ends[h + 1] - start
                    if start < 0 or length < 0 or length > len(name_data) - start:
                        code = -3
                        break
                    body += _field_size(length)
                    start = content_ends[h]
                    length = content_ends[h + 1] - start
                    if start < 0 or length < 0 or length > len(content_data) - start:
                        code = -3
                        break
                    body += _field_size(
                        -1 if content_nulls and _is_null(content_bits, content_bit + h) else length
                    )
                if code:
                    break
            body += varint_length(cython.cast(cython.ulonglong, headers) << 1)
            if p + varint_length(cython.cast(cython.ulonglong, body) << 1) + body > limit:
                state[4] = 61 + varint_length(cython.cast(cython.ulonglong, body) << 1) + body
                break
            p = put_varint(dst, p, cython.cast(cython.ulonglong, body) << 1)
            body += p
            dst[p] = 0
            p = put_varint(dst, p + 1, time)
            p = put_varint(dst, p, number << 1)
            p = _put_field(dst, p, key_from, key_at, key_size)
            p = _put_field(dst, p, value_from, value_at, value_size)
            p = put_varint(dst, p, cython.cast(cython.ulonglong, headers) << 1)
            for h in range(first, first + headers):
                # read again, so checked again: the buffer may be somebody's writable memory
                start = name_ends[h]
                length = name_ends[h + 1] - start
                if start < 0 or length < 0 or length > len(name_data) - start:
                    code = -3
                    break
                if _field_size(length) > limit - p:
                    code = -3
                    break
                p = _put_field(dst, p, name_from, start, length)
                start = content_ends[h]
                length = content_ends[h + 1] - start
                if start < 0 or length < 0 or length > len(content_data) - start:
                    code = -3
                    break
                if content_nulls and _is_null(content_bits, content_bit + h):
                    length = -1
                if _field_size(length) > limit - p:
                    code = -3
                    break
                p = _put_field(dst, p, content_from, start, length)
            if code:
                break
            if p != body:
                code = -3
                break
            if timestamp < least:
                least = timestamp
            if timestamp > largest:
                largest = timestamp
            i += 1
        if attributes & 8:
            least = now_ms
            largest = now_ms
    state[0] = p
    state[1] = i - row
    state[2] = least
    state[3] = largest
    if code:
        return code
    if i > row:
        crc: cython.uint
        with cython.nogil:
            crc = put_header(
                dst,
                0,
                p,
                base_offset,
                leader_epoch,
                attributes,
                i - row - 1,
                base_timestamp,
                largest,
                producer_id,
                producer_epoch,
                base_sequence,
                i - row,
            )
            crc = _whole_crc(dst, p, crc)
        state[5] = crc
    return 0


def _short(valid, bit, rows):
    """Is a bitmap there, but too small?"""
    return len(valid) > 0 and rows > 0 and (bit < 0 or (bit + rows + 7) // 8 > len(valid))
