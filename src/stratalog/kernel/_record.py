# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
"""One record taken apart, and the walk over batches that checks and measures every record.

``walk_records`` goes over rows of the header table that ``_scan`` made. For uncompressed batches the
records lie in the source at the row's position (``body`` < 0), and one call takes a run of batches; a
decompressed batch is its own source, from byte ``body`` to the end. One source, compiled by Cython (with
_record.pxd, by which the other modules call in) or run as it is.

``read_record`` is the only code that trusts a byte, and it trusts none: varints are at most five or ten
bytes long, every length is compared with the bytes left, a record must end where it says.

    record = length varint, attributes int8, timestampDelta varlong, offsetDelta varint,
             keyLength varint, key, valueLength varint, value, headers varint, header …
    header = keyLength varint, key, valueLength varint, value
"""

import cython

# What can be wrong with a record. Slots of `state`: 0 the code, 1 the row, 2 the record's number in it.
SHORT, VARINT, SIZE, KEY, VALUE, HEADERS, HEADER_KEY, HEADER_VALUE, LEFTOVER = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
    -7,
    -8,
    -9,
)
OFFSET, REST, BODY, ATTRIBUTES, KEYLESS, TIMESTAMP, ROOM, HEADER_ROOM = -10, -11, -12, -13, -14, -15, -16, -17

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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_record(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    f: cython.pointer[cython.longlong],
    base_timestamp: cython.longlong,
) -> cython.Py_ssize_t:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def wanted(
    table: cython.pointer[cython.const[cython.longlong]],
    i: cython.Py_ssize_t,
    bounds: cython.pointer[cython.const[cython.longlong]],
) -> cython.bint:
    """The same test as in ``plan_run``: may the batch at table[i] hold a record within bounds?"""
    if table[i + 6] & 0x20 or table[i + 4] == 0:
        return False
    if table[i + 3] < bounds[0] or table[i + 2] > bounds[1] or table[i + 9] < bounds[2]:
        return False
    return not (table[i + 6] & 8 and table[i + 9] > bounds[3])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def body_end(
    table: cython.pointer[cython.const[cython.longlong]],
    i: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
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
