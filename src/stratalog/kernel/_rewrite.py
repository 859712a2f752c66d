# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
"""The pieces of a batch that was filtered: its header made anew from the table, and the records that stay.

Called by ``_filter``, which has read every record before and knows that there is room. One source, compiled
by Cython (with _rewrite.pxd) or run as it is.
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.stratalog.kernel._encode import put_varint, varint_length, zigzag_difference
    from cython.cimports.stratalog.kernel._record import read_varint
    from cython.cimports.stratalog.kernel.native import (
        stratalog_crc,
        stratalog_native_init,
        stratalog_put32,
        stratalog_put64,
    )

    stratalog_native_init()
else:
    from crc32c import crc32c as _package_crc32c

    from stratalog.kernel._encode import put_varint, varint_length, zigzag_difference
    from stratalog.kernel._record import read_varint


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def copy_bytes(
    dst: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if cython.compiled:
        memcpy(dst + at, src + p, n)
    else:
        dst[at : at + n] = src[p : p + n]
    return at + n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_batch_header(
    dst: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    t: cython.pointer[cython.const[cython.longlong]],
    i: cython.Py_ssize_t,
    attributes: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    count: cython.longlong,
) -> cython.uint:
    """The 61 bytes before records that are already there, from a row of the table; returns the CRC."""
    crc: cython.uint
    if cython.compiled:
        dst += at
        stratalog_put64(dst, t[i + 2])
        stratalog_put32(dst + 8, size - 12)
        stratalog_put32(dst + 12, t[i + 5])
        dst[16] = 2
        dst[21] = (attributes >> 8) & 0xFF
        dst[22] = attributes & 0xFF
        stratalog_put32(dst + 23, t[i + 3] - t[i + 2])
        stratalog_put64(dst + 27, base_timestamp)
        stratalog_put64(dst + 35, max_timestamp)
        stratalog_put64(dst + 43, t[i + 11])
        dst[51] = (t[i + 12] >> 8) & 0xFF
        dst[52] = t[i + 12] & 0xFF
        stratalog_put32(dst + 53, t[i + 13])
        stratalog_put32(dst + 57, count)
        crc = stratalog_crc(0, dst + 21, size - 21)
        stratalog_put32(dst + 17, crc)
    else:
        numbers = (
            (0, 8, t[i + 2]),
            (8, 4, size - 12),
            (12, 4, t[i + 5]),
            (16, 1, 2),
            (21, 2, attributes),
            (23, 4, t[i + 3] - t[i + 2]),
            (27, 8, base_timestamp),
            (35, 8, max_timestamp),
            (43, 8, t[i + 11]),
            (51, 2, t[i + 12]),
            (53, 4, t[i + 13]),
            (57, 4, count),
        )
        for p, width, number in numbers:
            number &= (1 << 8 * width) - 1
            dst[at + p : at + p + width] = number.to_bytes(width, "big")
        crc = _package_crc32c(dst[at + 21 : at + size])
        dst[at + 17 : at + 21] = crc.to_bytes(4, "big")
    return crc


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_kept_records(
    dst: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    src: cython.pointer[cython.const[cython.uchar]],
    starts: cython.pointer[cython.const[cython.longlong]],
    stamps: cython.pointer[cython.const[cython.longlong]],
    marks: cython.pointer[cython.const[cython.uchar]],
    n: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    verbatim: cython.bint,
) -> cython.Py_ssize_t:
    """Write the records n … n + count - 1 that are marked to stay; the position after them.

    ``verbatim``: their timestamp deltas stay right, so whole runs are copied.
    """
    k: cython.Py_ssize_t = n
    p: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    time: cython.ulonglong
    attributes: cython.uchar
    while k < n + count:
        if not marks[k] & 1:
            k += 1
            continue
        p = starts[k]
        k += 1
        if verbatim:
            while k < n + count and marks[k] & 1:
                k += 1
        stop = starts[k] if k < n + count else end
        if verbatim:
            at = copy_bytes(dst, at, src, p, stop - p)
            continue
        _, p = read_varint(src, p, stop, 5)  # read_record has checked every number here
        attributes = src[p]
        _, p = read_varint(src, p + 1, stop, 10)
        time = zigzag_difference(stamps[k - 1], base_timestamp)
        at = put_varint(dst, at, cython.cast(cython.ulonglong, 1 + varint_length(time) + (stop - p)) << 1)
        dst[at] = attributes
        at = put_varint(dst, at + 1, time)
        at = copy_bytes(dst, at, src, p, stop - p)
    return at
