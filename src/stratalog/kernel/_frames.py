# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Produce requests of one partition, read and answered without tables: what a busy broker gets most.

`parse_produce` knows requests that are as most are, and says of all others that it does not: the tables of
`_wire` read those. The bytes of `produce_answer` are those that the tables would make.

Every read is checked against the end of the frame first, whatever the bytes say.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.stratalog.kernel.native import copy_bytes, get16, get32, native_init, put16, put32, put64

native_init()

# From version 9 on lengths are compact and structs have tagged fields; from 13 on topics have ids.


def parse_produce(frame: cython.const[cython.uchar][::1]):
    """Return (correlation id, acks, topic, partition, start, end) of a whole Produce request.

    ``topic`` is a name's bytes, or the id in versions that have ids; the batches are frame[start:end].
    None if there is more than one partition, a transaction or a control batch, a tagged field, a null where a
    value belongs, a version before 3 or after 13, a name that is not ASCII, or anything wrong: the tables
    tell what.
    """
    f = cython.declare(cython.longlong[1])
    end: cython.Py_ssize_t = len(frame)
    p: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    version: cython.longlong
    acks: cython.longlong
    correlation: cython.longlong
    partition: cython.longlong
    size: cython.longlong
    flexible: cython.bint
    src: cython.pointer[cython.const[cython.uchar]]
    if not cython.compiled:
        f = [0]
    if end < 10:
        return None
    if cython.compiled:
        src = cython.address(frame[0])
    else:
        src = frame
    version = get16(src, 2)
    if get16(src, 0) != 0 or version < 3 or version > 13:
        return None
    flexible = version >= 9
    correlation = get32(src, 4)
    size = get16(src, 8)  # the client's id
    p = 10 + cython.cast(cython.Py_ssize_t, max(0, size))
    if size < -1 or p > end or not _ascii(src, 10, p):
        return None
    if flexible:
        if p >= end or src[p] != 0:  # tagged fields of the header
            return None
        p += 1
    p = _length(src, p, end, flexible, 2, f)
    if p < 0 or f[0] != -1 or end - p < 6:  # a transactional id
        return None
    acks = get16(src, p)
    if acks < -1 or acks > 1:
        return None
    p = _length(src, p + 6, end, flexible, 4, f)
    if p < 0 or f[0] != 1:  # topics
        return None
    start = p
    stop = p + 16
    if version < 13:
        start = _length(src, p, end, flexible, 2, f)
        if start < 0 or f[0] < 0:
            return None
        stop = start + cython.cast(cython.Py_ssize_t, f[0])
    if stop > end or (version < 13 and not _ascii(src, start, stop)):
        return None
    p = _length(src, stop, end, flexible, 4, f)
    if p < 0 or f[0] != 1 or end - p < 4:  # partitions
        return None
    partition = get32(src, p)
    p = _length(src, p + 4, end, flexible, 4, f)
    if p < 0 or f[0] <= 0 or f[0] > end - p:
        return None
    size = f[0]
    if flexible:  # three structs that end
        if end - p - size != 3 or src[end - 3] or src[end - 2] or src[end - 1]:
            return None
    elif end - p != size:
        return None
    if not _plain(src, p, p + cython.cast(cython.Py_ssize_t, size)):
        return None
    if cython.compiled:
        topic = PyBytes_FromStringAndSize(cython.cast(cython.p_char, src + start), stop - start)
    else:
        topic = bytes(frame[start:stop])
    return correlation, acks, topic, partition, p, p + size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _length(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
    width: cython.int,
    f: cython.pointer[cython.longlong],
) -> cython.Py_ssize_t:
    """Read a length or a count of ``width`` bytes, or a compact one, into f[0]; return the place behind it.

    -1 for null; a place of -1 if it does not end.
    """
    value: cython.longlong = 0
    shift: cython.int = 0
    if not flexible:
        if end - p < width:
            return -1
        f[0] = get16(src, p) if width == 2 else get32(src, p)
        return p + width
    while p < end and shift < 35:
        value |= cython.cast(cython.longlong, src[p] & 127) << shift
        p += 1
        if src[p - 1] < 128:
            f[0] = value - 1
            return p if value <= 0x7FFFFFFF else -1
        shift += 7
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ascii(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    while p < end:
        if src[p] > 127:
            return False
        p += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _plain(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return False if a batch belongs to a transaction or is a control batch, by its attributes alone."""
    length: cython.longlong
    while end - p >= 23:
        if src[p + 22] & 0x30:
            return False
        length = get32(src, p + 8)
        p += 12 + cython.cast(cython.Py_ssize_t, max(0, length))
    return True


def produce_answer(
    version: cython.int,
    correlation: cython.longlong,
    topic: bytes,
    partition: cython.longlong,
    base_offset: cython.longlong,
    append_time: cython.longlong,
    log_start_offset: cython.longlong,
):
    """Return the frame that tells of one append without an error, its size in front."""
    flexible: cython.bint = version >= 9
    n: cython.Py_ssize_t = len(topic)
    p: cython.Py_ssize_t = 8
    size: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    dst: cython.p_uchar
    src: cython.pointer[cython.const[cython.uchar]]
    # flexible: the header's tag 1, topics 1, a name's length 1 or 2, partitions 1, then 30, errors 1,
    # message 1, tags 2, throttle 4, tag 1; else topics 4, length 2, partitions 4, 22 or 30, errors 4,
    # message 2, throttle 4
    if flexible:
        size = 8 + 2 + (0 if version >= 13 else 1 if n < 127 else 2) + n + 1 + 30 + 2 + 2 + 4 + 1
    else:
        size = 8 + 4 + 2 + n + 4 + (30 if version >= 5 else 22) + (6 if version >= 8 else 0) + 4
    if n > 16000 or (version >= 13 and n != 16):
        raise ValueError("produce_answer: not a topic")
    if cython.compiled:
        made = PyBytes_FromStringAndSize(cython.NULL, size)
        dst = cython.cast(cython.p_uchar, PyBytes_AS_STRING(made))
        src = cython.cast(cython.p_uchar, PyBytes_AS_STRING(topic))
    else:
        made = dst = bytearray(size)
        src = topic
    put32(dst, 0, size - 4)
    put32(dst, 4, correlation)
    if flexible:
        dst[8] = 0
        dst[9] = 2
        p = 10
        if version < 13:
            if n < 127:
                dst[p] = n + 1
            else:
                dst[p] = (n + 1) & 127 | 128
                dst[p + 1] = (n + 1) >> 7
                p += 1
            p += 1
        p = copy_bytes(dst, p, src, 0, n)
        dst[p] = 2
        p += 1
    else:
        put32(dst, 8, 1)
        put16(dst, 12, n)
        p = copy_bytes(dst, 14, src, 0, n)
        put32(dst, p, 1)
        p += 4
    put32(dst, p, partition)
    put16(dst, p + 4, 0)
    put64(dst, p + 6, base_offset)
    put64(dst, p + 14, append_time)
    p += 22
    if version >= 5:
        put64(dst, p, log_start_offset)
        p += 8
    for rest in range(p, size):  # no errors, no message, no throttling, no tags
        dst[rest] = 0
    if flexible:
        dst[p] = 1  # no record errors; the message after them is null
    elif version >= 8:
        put16(dst, p + 4, -1)
    return made if cython.compiled else bytes(made)
