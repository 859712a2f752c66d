# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
"""Arrow buffers into one batch.

A column arrives as the buffers Arrow keeps it in, cut so that row 0 is element 0 (validity bitmaps keep a
bit offset). The buffers are not trusted: offsets that do not rise or leave their data are an error, and
nothing is written past the end of the target. One source, compiled by Cython or run as it is.
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.stratalog.kernel._encode import (
        put_header,
        put_varint,
        varint_length,
        whole_crc,
        zigzag_difference,
    )
else:
    from stratalog.kernel._encode import put_header, put_varint, varint_length, whole_crc, zigzag_difference

# Codes: the row's key, value or headers lie outside their buffers; a null header key; a bad timestamp.
BAD_KEY, BAD_VALUE, BAD_HEADERS, NULL_HEADER_KEY, BAD_TIMESTAMP = -1, -2, -3, -4, -5


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_null(valid: cython.pointer[cython.const[cython.uchar]], bit: cython.Py_ssize_t) -> cython.bint:
    """By a validity bitmap, which is there."""
    return not (valid[bit >> 3] >> (bit & 7)) & 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _memory(data: cython.const[cython.uchar][::1]) -> cython.pointer[cython.const[cython.uchar]]:
    """The bytes themselves: a view handed to a function is copied, and costs more than a short record."""
    if cython.compiled:
        return cython.address(data[0]) if len(data) else cython.NULL
    return data


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    dst: cython.pointer[cython.uchar],
    p: cython.Py_ssize_t,
    data: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A length (-1 for null) and the bytes."""
    if n < 0:
        dst[p] = 1
        return p + 1
    if n < 64:
        dst[p] = n << 1
        p += 1
    else:
        p = put_varint(dst, p, cython.cast(cython.ulonglong, n) << 1)
    if n > 0:
        if cython.compiled:
            memcpy(dst + p, data + start, n)
        else:
            dst[p : p + n] = data[start : start + n]
    return p + n


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _field_size(n: cython.Py_ssize_t) -> cython.Py_ssize_t:
    if n < 64:  # nearly every field; the other module's function is a call
        return 1 if n < 0 else n + 1
    return varint_length(cython.cast(cython.ulonglong, n) << 1) + n


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

    An empty ``key_ends``, ``timestamps`` or ``header_ends`` is a column that is not there. ``state`` out: 0
    bytes written, 1 records, 2 least and 3 largest timestamp, 4 the size of a batch of the next record alone,
    5 the CRC-32C of the whole batch.
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
            p = _put(dst, p, key_from, key_at, key_size)
            p = _put(dst, p, value_from, value_at, value_size)
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
                p = _put(dst, p, name_from, start, length)
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
                p = _put(dst, p, content_from, start, length)
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
        put_header(
            dst,
            p,
            base_offset,
            leader_epoch,
            attributes,
            cython.cast(cython.int, i - row),
            base_timestamp,
            largest,
            producer_id,
            producer_epoch,
            base_sequence,
        )
        state[5] = whole_crc(dst, p)
    return 0


@cython.cfunc
def _short(
    valid: cython.const[cython.uchar][::1], bit: cython.Py_ssize_t, rows: cython.Py_ssize_t
) -> cython.bint:
    """Is a bitmap there, but too small?"""
    return len(valid) > 0 and rows > 0 and (bit < 0 or (bit + rows + 7) // 8 > len(valid))
