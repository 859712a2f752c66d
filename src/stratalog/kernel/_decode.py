# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Records of batches taken apart: checked, measured, and turned into tuples or Arrow buffers.

The entry points go over rows of the header table that ``_scan`` made. For uncompressed batches the records
lie in the source at the row's position (``body`` < 0), and one call takes a run of batches; a decompressed
batch is its own source, from byte ``body`` to the end. ``bounds`` are first and last offset, first and last
timestamp, all inclusive.

``read_record`` is the only code that trusts a byte, and it trusts none: varints are at most five or ten
bytes long, every length is compared with the bytes left, a record must end where it says.

    record = length varint, attributes int8, timestampDelta varlong, offsetDelta varint,
             keyLength varint, key, valueLength varint, value, headers varint, header …
    header = keyLength varint, key, valueLength varint, value
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.libc.string import memcpy
from cython.cimports.stratalog.kernel.native import (
    crc_of,
    get16,
    get32,
    get64,
    get_u32,
    native_init,
    stratalog_new_tuple,
    stratalog_set_item,
)

native_init()

# What can be wrong with a record: -1 short, -2 varint, -3 size, -4 key, -5 value, -6 headers, -7 header key,
# -8 header value, -9 leftover, -10 offset, -11 rest, -12 body, -13 attributes, -14 no key, -15 timestamp,
# -16 no room, -17 no room for headers. Slots of `state`: 0 the code, 1 the row, 2 the record's number in it.
M64 = 0xFFFFFFFFFFFFFFFF
HALF = 0x8000000000000000


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    longest: cython.int,
) -> tuple[cython.ulonglong, cython.Py_ssize_t]:
    value: cython.ulonglong = 0
    byte: cython.ulonglong
    i: cython.int
    for i in range(longest):
        if p >= end:
            return 0, -1
        byte = src[p]
        p += 1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if not cython.compiled:
                value &= M64
            if longest == 5:
                value = (value << 32 & M64) >> 32 if not cython.compiled else (value << 32) >> 32
            return value, p
    return 0, -2


@cython.cfunc
@cython.inline  # read_record is as fast as its varints
@cython.nogil
@cython.exceptval(check=False)
def read_varint(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    longest: cython.int,
) -> tuple[cython.ulonglong, cython.Py_ssize_t]:
    """The zigzag number at ``p``, still zigzag, and the position after it (or a negative code)."""
    if p < end and src[p] < 0x80:
        return src[p], p + 1
    return _long_varint(src, p, end, longest)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _plus(base: cython.longlong, zigzag: cython.ulonglong) -> cython.longlong:
    """base + the signed number, in 64 bits as Java does."""
    if cython.compiled:
        return base + (cython.cast(cython.longlong, zigzag >> 1) ^ -cython.cast(cython.longlong, zigzag & 1))
    return ((base + ((zigzag >> 1) ^ -(zigzag & 1)) + HALF) & M64) - HALF


def read_record(src, p, end, f, base_timestamp):
    """Take one record apart; the position after it, or a negative code.

    ``f``: 0 attributes, 1 offset delta, 2 key position, 3 key length (-1: null), 4 value position, 5 value
    length, 6 headers, 7 position of the first header, 8 timestamp (``base_timestamp`` and the delta).
    """
    v: cython.ulonglong
    w: cython.ulonglong
    n: cython.ulonglong
    stop: cython.Py_ssize_t
    v, p = read_varint(src, p, end, 5)
    if p < 0:
        return p
    if v & 1 or v < 12:  # a record has at least six bytes
        return -3
    if cython.cast(cython.Py_ssize_t, v >> 1) > end - p:
        return -1
    stop = p + cython.cast(cython.Py_ssize_t, v >> 1)
    f[0] = src[p]
    v, p = read_varint(src, p + 1, stop, 10)
    if p < 0:
        return p
    f[8] = _plus(base_timestamp, v)
    v, p = read_varint(src, p, stop, 5)
    if p < 0:
        return p
    f[1] = -1 if v & 1 else cython.cast(cython.longlong, v >> 1)
    v, p = read_varint(src, p, stop, 5)
    if p < 0:
        return p
    f[2] = p
    if v & 1:
        f[3] = -1
    else:
        if cython.cast(cython.Py_ssize_t, v >> 1) > stop - p:
            return -4
        f[3] = cython.cast(cython.longlong, v >> 1)
        p += cython.cast(cython.Py_ssize_t, v >> 1)
    v, p = read_varint(src, p, stop, 5)
    if p < 0:
        return p
    f[4] = p
    if v & 1:
        f[5] = -1
    else:
        if cython.cast(cython.Py_ssize_t, v >> 1) > stop - p:
            return -5
        f[5] = cython.cast(cython.longlong, v >> 1)
        p += cython.cast(cython.Py_ssize_t, v >> 1)
    n, p = read_varint(src, p, stop, 5)
    if p < 0:
        return p
    if n & 1 or cython.cast(cython.Py_ssize_t, n) > stop - p:  # a header has at least two bytes
        return -6
    n >>= 1
    f[6] = cython.cast(cython.longlong, n)
    f[7] = p
    while n > 0:
        v, p = read_varint(src, p, stop, 5)
        if p < 0:
            return p
        if v & 1 or cython.cast(cython.Py_ssize_t, v >> 1) > stop - p:
            return -7
        p += cython.cast(cython.Py_ssize_t, v >> 1)
        w, p = read_varint(src, p, stop, 5)
        if p < 0:
            return p
        if not w & 1:
            if cython.cast(cython.Py_ssize_t, w >> 1) > stop - p:
                return -8
            p += cython.cast(cython.Py_ssize_t, w >> 1)
        n -= 1
    if p != stop:
        return -9
    return p


def wanted(table, i, bounds):
    """The same test as in ``plan_run``: may the batch at table[i] hold a record within bounds?"""
    if table[i + 6] & 0x20 or table[i + 4] == 0:
        return False
    if table[i + 3] < bounds[0] or table[i + 2] > bounds[1] or table[i + 9] < bounds[2]:
        return False
    return not (table[i + 6] & 8 and table[i + 9] > bounds[3])


def body_end(table, i, body, size):
    """Where the records of the batch at table[i] end in a source of ``size`` bytes; -1: they cannot."""
    if body >= 0:
        return size if body <= size else -1
    if table[i] < 0 or table[i + 1] < 61 or table[i + 1] > size - table[i] or table[i + 6] & 7:
        return -1
    return cython.cast(cython.Py_ssize_t, table[i] + table[i + 1])


def walk_records(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    state: cython.longlong[::1],
) -> cython.int:
    """Check every record of the rows and fill in their least timestamps.

    LogAppendTime batches and those of one record are not walked, and the walk ends at a compressed batch
    whose records were not given. ``state`` 3: the row after the last one done.
    """
    src: cython.pointer[cython.const[cython.uchar]]
    t: cython.pointer[cython.longlong]
    f = cython.declare(cython.longlong[9])
    size: cython.Py_ssize_t = len(source)
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    n: cython.longlong
    previous: cython.longlong
    timestamp: cython.longlong
    least: cython.longlong
    largest: cython.longlong
    code: cython.int = 0
    if row < 0 or end_row * 14 > len(table) or len(state) < 8 or (body >= 0 and end_row - row > 1):
        raise ValueError("walk_records: rows outside the table")
    state[3] = row
    if row >= end_row:
        return 0
    if size == 0:
        state[0], state[1], state[2] = -12, row, 0
        return -12
    if cython.compiled:
        src = cython.address(source[0])
        t = cython.address(table[0])
    else:
        src, t, f = source, table, [0] * 9
    n = 0
    r = row
    with cython.nogil:
        while r < end_row:
            i = r * 14
            n = 0
            if t[i + 6] & 8 or t[i + 4] <= 1:
                t[i + 10] = t[i + 9]
                r += 1
                continue
            if body < 0 and t[i + 6] & 7:
                break
            end = body_end(t, i, body, size)
            if end < 0 or t[i + 4] > (end - (body if body >= 0 else t[i] + 61)) // 7:
                code = -12
                break
            p = body if body >= 0 else cython.cast(cython.Py_ssize_t, t[i] + 61)
            previous = -1
            least = t[i + 9]
            largest = t[i + 9]
            while n < t[i + 4]:
                p = read_record(src, p, end, f, t[i + 8])
                if p < 0:
                    code = cython.cast(cython.int, p)
                    break
                if f[1] <= previous or f[1] > t[i + 3] - t[i + 2]:
                    code = -10
                    break
                previous = f[1]
                timestamp = f[8]
                if n == 0:
                    least = timestamp
                    largest = timestamp
                elif timestamp < least:
                    least = timestamp
                elif timestamp > largest:
                    largest = timestamp
                n += 1
            if code:
                break
            if p != end:
                code = -11
                break
            if largest > t[i + 9]:
                code = -15
                break
            t[i + 10] = least
            r += 1
    state[3] = r
    if code:
        state[0], state[1], state[2] = code, r, n
    return code


# Columns in `want`: 1 key, 2 value, 4 offset, 8 timestamp, 16 timestamp type, 32 headers. Slots of `state`
# that decode_columns carries on: 8 rows, 9 key bytes, 10 value bytes, 11 null keys, 12 null values,
# 13 headers, 14 header key bytes, 15 header value bytes, 16 null header values, 17 set when a header key is
# not ASCII.


def decode_tuples(
    source: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    bounds: cython.const[cython.longlong][::1],
    skip: cython.const[cython.uchar][::1],
    cls: type,
    topic: str,
    partition: int,
    out: list,
    state: cython.longlong[::1],
) -> cython.int:
    """Append ``cls(value, key, headers, timestamp, offset, partition, timestamp_type, topic)`` per record."""
    src: cython.pointer[cython.const[cython.uchar]]
    t: cython.pointer[cython.const[cython.longlong]]
    b: cython.pointer[cython.const[cython.longlong]]
    f = cython.declare(cython.longlong[9])
    size: cython.Py_ssize_t = len(source)
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    n: cython.longlong = 0
    previous: cython.longlong
    timestamp: cython.longlong
    code: cython.int = 0
    masked: cython.bint = len(skip) > 0
    if row < 0 or end_row * 14 > len(table) or (masked and len(skip) < end_row) or len(bounds) < 4:
        raise ValueError("decode_tuples: rows outside the table")
    if len(state) < 8 or (body >= 0 and end_row - row > 1):
        raise ValueError("decode_tuples: rows outside the table")
    if row >= end_row:
        return 0
    if size == 0:
        state[0], state[1], state[2] = -12, row, 0
        return -12
    if cython.compiled:
        src = cython.address(source[0])
        t = cython.address(table[0])
        b = cython.address(bounds[0])
    else:
        src, t, b, f = source, table, bounds, [0] * 9
    create_time = 0
    append_time = 1
    r = row
    while r < end_row:
        i = r * 14
        if not wanted(t, i, b) or (masked and skip[r]):
            r += 1
            continue
        n = 0
        end = body_end(t, i, body, size)
        if end < 0:
            code = -12
            break
        p = body if body >= 0 else cython.cast(cython.Py_ssize_t, t[i] + 61)
        previous = -1
        kind = append_time if t[i + 6] & 8 else create_time
        while n < t[i + 4]:
            p = read_record(src, p, end, f, t[i + 8])
            if p < 0:
                code = cython.cast(cython.int, p)
                break
            if f[1] <= previous or f[1] > t[i + 3] - t[i + 2]:
                code = -10
                break
            previous = f[1]
            n += 1
            timestamp = t[i + 9] if t[i + 6] & 8 else f[8]
            if t[i + 2] + f[1] < b[0] or t[i + 2] + f[1] > b[1] or timestamp < b[2] or timestamp > b[3]:
                continue
            out.append(_record(src, f, p, cls, timestamp, t[i + 2] + f[1], partition, kind, topic))
        if code:
            break
        if p != end:
            code = -11
            break
        r += 1
    if code:
        state[0], state[1], state[2] = code, r, n
    return code


def find_tuple(
    source: cython.const[cython.uchar][::1],
    offset: cython.longlong,
    expect: cython.longlong,
    first_last: cython.longlong,
    ceiling: cython.longlong,
    cls: type,
    topic: str,
    partition: int,
):
    """Return the record at ``offset`` as `decode_tuples` makes it; None if only a closer look can tell.

    The source begins with a batch. Its base offset is ``expect``, its last offset ``first_last``, unless that
    is -1. Each next batch follows without a gap, and the one with the record ends before ``ceiling``. Its CRC
    is checked, those of the batches before it are not: base offsets and deltas of two headers agree. None
    for a batch that is compressed, cleaned, a control batch or not whole, and for anything damaged.
    """
    src: cython.pointer[cython.const[cython.uchar]]
    f = cython.declare(cython.longlong[9])
    size: cython.Py_ssize_t = len(source)
    p: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    base: cython.longlong
    delta: cython.longlong
    length: cython.longlong
    attributes: cython.longlong
    left: cython.longlong
    v: cython.ulonglong
    if size < 61:
        return None
    if cython.compiled:
        src = cython.address(source[0])
    else:
        src, f = source, [0] * 9
    while True:
        if size - p < 61:
            return None
        base = get64(src, p)
        length = get32(src, p + 8)
        delta = get32(src, p + 23)
        if src[p + 16] != 2 or length < 49 or delta < 0 or (expect >= 0 and base != expect):
            return None
        if base < 0 or base > 0x7FFFFFFF00000000:  # so that no last offset leaves 63 bits
            return None
        if p == 0 and first_last >= 0 and base + delta != first_last:
            return None
        if base + delta >= offset:
            break
        if length + 12 > size - p:
            return None
        p += cython.cast(cython.Py_ssize_t, length) + 12
        expect = base + delta + 1
    attributes = get16(src, p + 21)
    left = offset - base
    if length + 12 > size - p or left < 0 or base + delta >= ceiling:
        return None
    if attributes & 0x67 or get32(src, p + 57) != delta + 1:
        return None
    end = p + cython.cast(cython.Py_ssize_t, length) + 12
    if crc_of(src, p + 21, end) != get_u32(src, p + 17):
        return None
    base_timestamp: cython.longlong = get64(src, p + 27)
    largest: cython.longlong = get64(src, p + 35)
    p += 61
    while left > 0:  # as long as records are skipped, only their lengths are read
        v, p = read_varint(src, p, end, 5)
        if p < 0 or v & 1 or cython.cast(cython.Py_ssize_t, v >> 1) > end - p:
            return None
        p += cython.cast(cython.Py_ssize_t, v >> 1)
        left -= 1
    p = read_record(src, p, end, f, base_timestamp)
    if p < 0 or base + f[1] != offset:
        return None
    stamped: cython.bint = attributes & 8 != 0
    timestamp = largest if stamped else f[8]
    return _record(src, f, p, cls, timestamp, offset, partition, 1 if stamped else 0, topic)


def _record(src, f, end, cls, timestamp, offset, partition, kind, topic):
    """Make the tuple of a record that ``read_record`` took apart and that ends at ``end``."""
    value = None
    key = None
    if f[5] >= 0:
        value = _bytes(src, f[4], f[5])
    if f[3] >= 0:
        key = _bytes(src, f[2], f[3])
    headers = _headers(src, f[7], end, f[6]) if f[6] else ()
    if cython.compiled:
        made = stratalog_new_tuple(cls, 8)
        stratalog_set_item(made, 0, value)
        stratalog_set_item(made, 1, key)
        stratalog_set_item(made, 2, headers)
        stratalog_set_item(made, 3, timestamp)
        stratalog_set_item(made, 4, offset)
        stratalog_set_item(made, 5, partition)
        stratalog_set_item(made, 6, kind)
        stratalog_set_item(made, 7, topic)
        return made
    return cls(value, key, headers, timestamp, offset, partition, kind, topic)


@cython.cfunc
@cython.inline
def _bytes(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> bytes:
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, src + p), n)
    return bytes(src[p : p + n])


def _headers(src, p, stop, count):
    """Headers that ``read_record`` has checked, as (key, value) pairs; a key that is no UTF-8 is repaired."""
    v: cython.ulonglong
    n: cython.Py_ssize_t
    made: list = []
    for _ in range(count):
        v, p = read_varint(src, p, stop, 5)
        n = cython.cast(cython.Py_ssize_t, v >> 1)
        if cython.compiled:
            key = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, src + p), n, "replace")
        else:
            key = bytes(src[p : p + n]).decode("utf-8", "replace")
        p += n
        v, p = read_varint(src, p, stop, 5)
        value = None
        if not v & 1:
            n = cython.cast(cython.Py_ssize_t, v >> 1)
            value = _bytes(src, p, n)
            p += n
        made.append((key, value))
    return tuple(made)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    target: cython.uchar[::1],
    at: cython.Py_ssize_t,
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.int:
    if cython.compiled:
        memcpy(cython.address(target[at]), src + p, n)
    else:
        target[at : at + n] = src[p : p + n]
    return 0


def decode_columns(
    source: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    bounds: cython.const[cython.longlong][::1],
    skip: cython.const[cython.uchar][::1],
    want: cython.int,
    offsets: cython.longlong[::1],
    timestamps: cython.longlong[::1],
    types: cython.int[::1],
    key_ends: cython.int[::1],
    key_data: cython.uchar[::1],
    key_valid: cython.uchar[::1],
    value_ends: cython.int[::1],
    value_data: cython.uchar[::1],
    value_valid: cython.uchar[::1],
    header_ends: cython.int[::1],
    header_key_ends: cython.int[::1],
    header_key_data: cython.uchar[::1],
    header_value_ends: cython.int[::1],
    header_value_data: cython.uchar[::1],
    header_value_valid: cython.uchar[::1],
    state: cython.longlong[::1],
) -> cython.int:
    """Go on filling Arrow buffers with the columns in ``want``; buffers of other columns may be empty.

    ``…_ends`` are Arrow offsets whose first element, 0, is already there; ``…_valid`` are validity bitmaps,
    all ones, in which nulls are cleared. ``state`` carries on from call to call. Returns 0 or a code; ROOM
    and HEADER_ROOM mean that a buffer was too small (nothing is written past an end).
    """
    src: cython.pointer[cython.const[cython.uchar]]
    t: cython.pointer[cython.const[cython.longlong]]
    b: cython.pointer[cython.const[cython.longlong]]
    f = cython.declare(cython.longlong[9])
    size: cython.Py_ssize_t = len(source)
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t
    end: cython.Py_ssize_t
    length: cython.Py_ssize_t
    v: cython.ulonglong
    n: cython.longlong = 0
    h: cython.longlong
    previous: cython.longlong
    timestamp: cython.longlong
    code: cython.int = 0
    masked: cython.bint = len(skip) > 0
    room: cython.Py_ssize_t = 0x7FFFFFFE
    header_room: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = state[8]
    key_at: cython.Py_ssize_t = state[9]
    value_at: cython.Py_ssize_t = state[10]
    header_at: cython.Py_ssize_t = state[13]
    header_key_at: cython.Py_ssize_t = state[14]
    header_value_at: cython.Py_ssize_t = state[15]
    nulls: cython.longlong = state[11]
    value_nulls: cython.longlong = state[12]
    high: cython.int = 0
    if row < 0 or end_row * 14 > len(table) or (masked and len(skip) < end_row) or len(bounds) < 4:
        raise ValueError("decode_columns: rows outside the table")
    if len(state) < 24 or (body >= 0 and end_row - row > 1):
        raise ValueError("decode_columns: rows outside the table")
    if row >= end_row:
        return 0
    if size == 0:
        state[0], state[1], state[2] = -12, row, 0
        return -12
    if want & 4:
        room = min(room, len(offsets))
    if want & 8:
        room = min(room, len(timestamps))
    if want & 16:
        room = min(room, len(types))
    if want & 1:
        room = min(room, len(key_ends) - 1, len(key_valid) * 8)
    if want & 2:
        room = min(room, len(value_ends) - 1, len(value_valid) * 8)
    if want & 32:
        room = min(room, len(header_ends) - 1)
        header_room = min(len(header_key_ends) - 1, len(header_value_ends) - 1, len(header_value_valid) * 8)
    if cython.compiled:
        src = cython.address(source[0])
        t = cython.address(table[0])
        b = cython.address(bounds[0])
    else:
        src, t, b, f = source, table, bounds, [0] * 9
    r = row
    with cython.nogil:
        while r < end_row:
            i = r * 14
            if not wanted(t, i, b) or (masked and skip[r]):
                r += 1
                continue
            n = 0
            end = body_end(t, i, body, size)
            if end < 0:
                code = -12
                break
            p = body if body >= 0 else cython.cast(cython.Py_ssize_t, t[i] + 61)
            previous = -1
            while n < t[i + 4]:
                p = read_record(src, p, end, f, t[i + 8])
                if p < 0:
                    code = cython.cast(cython.int, p)
                    break
                if f[1] <= previous or f[1] > t[i + 3] - t[i + 2]:
                    code = -10
                    break
                previous = f[1]
                n += 1
                timestamp = t[i + 9] if t[i + 6] & 8 else f[8]
                if t[i + 2] + f[1] < b[0] or t[i + 2] + f[1] > b[1] or timestamp < b[2] or timestamp > b[3]:
                    continue
                if at >= room:
                    code = -16
                    break
                if want & 4:
                    offsets[at] = t[i + 2] + f[1]
                if want & 8:
                    timestamps[at] = timestamp
                if want & 16:
                    types[at] = 1 if t[i + 6] & 8 else 0
                if want & 1:
                    if f[3] < 0:
                        key_valid[at >> 3] &= 0xFF ^ (1 << (at & 7))
                        nulls += 1
                    elif f[3] > 0:
                        if f[3] > len(key_data) - key_at:
                            code = -16
                            break
                        _copy(key_data, key_at, src, f[2], f[3])
                        key_at += f[3]
                    key_ends[at + 1] = cython.cast(cython.int, key_at)
                if want & 2:
                    if f[5] < 0:
                        value_valid[at >> 3] &= 0xFF ^ (1 << (at & 7))
                        value_nulls += 1
                    elif f[5] > 0:
                        if f[5] > len(value_data) - value_at:
                            code = -16
                            break
                        _copy(value_data, value_at, src, f[4], f[5])
                        value_at += f[5]
                    value_ends[at + 1] = cython.cast(cython.int, value_at)
                if want & 32:
                    q = f[7]
                    h = f[6]
                    if h > header_room - header_at:
                        code = -17
                        break
                    while h > 0:  # read_record has checked every number here
                        h -= 1
                        v, q = read_varint(src, q, p, 5)
                        length = cython.cast(cython.Py_ssize_t, v >> 1)
                        if length > len(header_key_data) - header_key_at:
                            code = -17
                            break
                        if length > 0:
                            _copy(header_key_data, header_key_at, src, q, length)
                            for j in range(length):
                                high |= src[q + j]
                            header_key_at += length
                            q += length
                        header_key_ends[header_at + 1] = cython.cast(cython.int, header_key_at)
                        v, q = read_varint(src, q, p, 5)
                        if v & 1:
                            header_value_valid[header_at >> 3] &= 0xFF ^ (1 << (header_at & 7))
                            state[16] += 1
                        elif v > 0:
                            length = cython.cast(cython.Py_ssize_t, v >> 1)
                            if length > len(header_value_data) - header_value_at:
                                code = -17
                                break
                            _copy(header_value_data, header_value_at, src, q, length)
                            header_value_at += length
                            q += length
                        header_value_ends[header_at + 1] = cython.cast(cython.int, header_value_at)
                        header_at += 1
                    if code:
                        break
                    header_ends[at + 1] = cython.cast(cython.int, header_at)
                at += 1
            if code:
                break
            if p != end:
                code = -11
                break
            r += 1
    state[8] = at
    state[9] = key_at
    state[10] = value_at
    state[11] = nulls
    state[12] = value_nulls
    state[13] = header_at
    state[14] = header_key_at
    state[15] = header_value_at
    if high & 0x80:
        state[17] = 1
    if code:
        state[0], state[1], state[2] = code, r, n
    return code
