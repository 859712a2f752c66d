# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
"""Records into batches: from Python tuples, one at a time, or from Arrow buffers.

Each entry point makes one whole uncompressed batch, header and CRC included. Nothing is written past the
end of the block that was sized for it, even when another thread changes a list or a buffer meanwhile.
A record of the wrong shape raises the error class given to ``use_error``. One source, compiled by Cython
or run as it is.
"""

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.stratalog.kernel._hash import join
    from cython.cimports.stratalog.kernel.native import (
        stratalog_be32,
        stratalog_crc,
        stratalog_native_init,
        stratalog_put32,
        stratalog_put64,
    )

    stratalog_native_init()
else:
    from crc32c import crc32c as _package_crc32c

    from stratalog.kernel._hash import join

M64 = 0xFFFFFFFFFFFFFFFF
HALF = 0x8000000000000000
NO_HEADERS: bytes = b"\x00"

_error: type = ValueError


def use_error(error: type):
    """The class raised for a record that cannot be encoded; it takes one message."""
    global _error
    _error = error


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def varint_length(v: cython.ulonglong) -> cython.Py_ssize_t:
    """Bytes of a varint."""
    n: cython.Py_ssize_t = 1
    while v >= 0x80:
        v >>= 7
        n += 1
    return n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_varint(
    dst: cython.pointer[cython.uchar], p: cython.Py_ssize_t, v: cython.ulonglong
) -> cython.Py_ssize_t:
    while v >= 0x80:
        dst[p] = (v & 0x7F) | 0x80
        p += 1
        v >>= 7
    dst[p] = v
    return p + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def zigzag_difference(a: cython.longlong, b: cython.longlong) -> cython.ulonglong:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_header(
    dst: cython.pointer[cython.uchar],
    size: cython.Py_ssize_t,
    base_offset: cython.longlong,
    leader_epoch: cython.int,
    attributes: cython.int,
    count: cython.int,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    producer_id: cython.longlong,
    producer_epoch: cython.int,
    base_sequence: cython.int,
) -> cython.int:
    """The 61 bytes before the records, which are already there."""
    if cython.compiled:
        stratalog_put64(dst, base_offset)
        stratalog_put32(dst + 8, size - 12)
        stratalog_put32(dst + 12, leader_epoch)
        dst[16] = 2
        dst[21] = (attributes >> 8) & 0xFF
        dst[22] = attributes & 0xFF
        stratalog_put32(dst + 23, count - 1)
        stratalog_put64(dst + 27, base_timestamp)
        stratalog_put64(dst + 35, max_timestamp)
        stratalog_put64(dst + 43, producer_id)
        dst[51] = (producer_epoch >> 8) & 0xFF
        dst[52] = producer_epoch & 0xFF
        stratalog_put32(dst + 53, base_sequence)
        stratalog_put32(dst + 57, count)
        stratalog_put32(dst + 17, stratalog_crc(0, dst + 21, size - 21))
    else:
        dst[0:8] = base_offset.to_bytes(8, "big", signed=True)
        dst[8:12] = (size - 12).to_bytes(4, "big")
        dst[12:16] = leader_epoch.to_bytes(4, "big", signed=True)
        dst[16] = 2
        dst[21:23] = attributes.to_bytes(2, "big", signed=True)
        dst[23:27] = (count - 1).to_bytes(4, "big")
        dst[27:35] = base_timestamp.to_bytes(8, "big", signed=True)
        dst[35:43] = max_timestamp.to_bytes(8, "big", signed=True)
        dst[43:51] = producer_id.to_bytes(8, "big", signed=True)
        dst[51:53] = producer_epoch.to_bytes(2, "big", signed=True)
        dst[53:57] = base_sequence.to_bytes(4, "big", signed=True)
        dst[57:61] = count.to_bytes(4, "big")
        dst[17:21] = _package_crc32c(dst[21:size]).to_bytes(4, "big")
    return 0


@cython.cfunc
def _wrong(index: cython.Py_ssize_t, field: str, value: object, wanted: str) -> object:
    return _error(f"record {index}: {field} must be {wanted}, not {type(value).__name__}")


@cython.cfunc
def _header_bytes(headers: object, index: cython.Py_ssize_t) -> bytes:
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


@cython.cfunc
def one_record(
    value: object,
    key: object,
    headers: object,
    timestamp: cython.longlong,
    base_offset: cython.longlong,
    leader_epoch: cython.int,
    timestamp_type: cython.int,
) -> bytes:
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
    put_header(
        dst, size, base_offset, leader_epoch, 8 if timestamp_type else 0, 1, timestamp, timestamp, -1, -1, -1
    )
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
    put_header(
        dst,
        p,
        base_offset,
        leader_epoch,
        attributes,
        cython.cast(cython.int, count),
        base_timestamp,
        largest,
        producer_id,
        producer_epoch,
        base_sequence,
    )
    return p, count, least, largest, whole_crc(dst, p)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def whole_crc(dst: cython.pointer[cython.uchar], size: cython.Py_ssize_t) -> cython.uint:
    """The CRC-32C of a whole batch, from the one its header carries."""
    if cython.compiled:
        return join(stratalog_crc(0, dst, 21), stratalog_be32(dst + 17), size - 21)
    return join(_package_crc32c(dst[:21]), int.from_bytes(dst[17:21], "big"), size - 21)


@cython.cfunc
def _grow(target: bytearray, size: cython.Py_ssize_t) -> object:
    if cython.compiled:
        PyByteArray_Resize(target, size)
    else:
        target.extend(bytes(size - len(target)))
    return None


@cython.cfunc
@cython.exceptval(-2, check=True)
def _timestamp(stamp: object, index: cython.Py_ssize_t) -> cython.longlong:
    if not isinstance(stamp, int):
        raise _wrong(index, "timestamp", stamp, "an int of milliseconds or None")
    if stamp < -1 or stamp > 0x7FFFFFFFFFFFFFFF:
        raise _error(f"record {index}: timestamp {stamp} is outside 0 … 2**63 - 1")
    return stamp
