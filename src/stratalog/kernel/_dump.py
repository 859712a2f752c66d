# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""The dump printer's inner loops: batches and records to the text Kafka's dump tool prints.

Touches nothing but the buffers it is given. One source: compiled by Cython, or run as it is with equal
results. The bytes it reads may be hostile: every read is bounded by the end of the batch, every length
is checked against the bytes left before it is used, and the room in the output is checked before a line
is begun. There is nothing here to lose in a crash.

A caller owns three things and keeps them over the calls that dump one file:

    view    the bytes read so far, from some position of the file on
    out     a writable block; a call fills it and returns FULL when a line might not fit any more
    state   an int64 array of STATE_SIZE slots, named in dump_slots: where the walk stands. A call can
            stop between two records of a batch and the next one goes on there.

The lock of the interpreter is held throughout: the table of gaps is a Python object, and the one command
that comes here has one thread.
"""

import cython

if cython.compiled:
    import cython.cimports.stratalog.kernel.dump_slots as at
    from cython.cimports.libc.string import memcpy, strlen
    from cython.cimports.stratalog.kernel._dump_read import (
        add64,
        big_endian,
        character_length,
        int32,
        next_header,
        next_record,
        sequence,
        varint,
    )
    from cython.cimports.stratalog.kernel.native import stratalog_crc, stratalog_native_init

    stratalog_native_init()
else:
    from crc32c import crc32c as stratalog_crc

    from stratalog.kernel import dump_slots as at
    from stratalog.kernel._dump_read import (
        add64,
        big_endian,
        character_length,
        int32,
        next_header,
        next_record,
        sequence,
        varint,
    )

COMPILED = cython.compiled


# -- text out --------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _text(
    dst: cython.pointer[cython.uchar], o: cython.Py_ssize_t, s: cython.pointer[cython.const[cython.char]]
) -> cython.Py_ssize_t:
    """Copy a literal; the C compiler knows its length."""
    n: cython.Py_ssize_t
    if cython.compiled:
        n = strlen(s)
        memcpy(dst + o, s, n)
    else:
        n = len(s)
        dst[o : o + n] = s
    return o + n


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number(dst: cython.pointer[cython.uchar], o: cython.Py_ssize_t, v: cython.longlong) -> cython.Py_ssize_t:
    """A decimal number, at most 20 characters."""
    u: cython.ulonglong
    t: cython.ulonglong
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if not cython.compiled:
        s = b"%d" % v
        dst[o : o + len(s)] = s
        return o + len(s)
    pairs: cython.pointer[cython.const[cython.char]] = (
        b"00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
        b"49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
        b"9899"
    )
    u = cython.cast(cython.ulonglong, v)
    if v < 0:
        dst[o] = 45
        o += 1
        u = 0 - u
    n = 1
    t = 10
    while n < 19 and u >= t:
        t *= 10
        n += 1
    i = o + n
    while u >= 100:
        t = u // 100
        i -= 2
        memcpy(dst + i, pairs + 2 * (u - t * 100), 2)
        u = t
    if u >= 10:
        memcpy(dst + i - 2, pairs + 2 * u, 2)
    else:
        dst[i - 1] = cython.cast(cython.uchar, 48 + u)
    return o + n


@cython.cfunc
@cython.exceptval(check=False)
def _valid_utf8(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Whether src[p:end] is well-formed UTF-8, so that Java prints the very same bytes."""
    b: cython.uchar
    c: cython.uchar
    w: cython.ulonglong = 0
    high: cython.ulonglong = 0x80808080
    if cython.compiled:
        high |= high << 32  # one literal of 64 bits would be a Python object
        while p < end:
            while end - p >= 8:
                memcpy(cython.address(w), src + p, 8)
                if w & high:
                    break
                p += 8
            if p >= end:
                return True
            b = src[p]
            if b < 0x80:
                p += 1
            elif b < 0xE0:
                if b < 0xC2 or end - p < 2 or (src[p + 1] & 0xC0) != 0x80:
                    return False
                p += 2
            elif b < 0xF0:
                if end - p < 3:
                    return False
                c = src[p + 1]
                if (c & 0xC0) != 0x80 or (src[p + 2] & 0xC0) != 0x80:
                    return False
                if (b == 0xE0 and c < 0xA0) or (b == 0xED and c > 0x9F):
                    return False
                p += 3
            else:
                if b > 0xF4 or end - p < 4:
                    return False
                c = src[p + 1]
                if (c & 0xC0) != 0x80 or (src[p + 2] & 0xC0) != 0x80 or (src[p + 3] & 0xC0) != 0x80:
                    return False
                if (b == 0xF0 and c < 0x90) or (b == 0xF4 and c > 0x8F):
                    return False
                p += 4
        return True
    try:
        str(src[p:end], "utf-8")
    except UnicodeDecodeError:
        return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _string(
    dst: cython.pointer[cython.uchar],
    o: cython.Py_ssize_t,
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Bytes as Java prints the string it makes of them. At most 3 bytes out for each one in."""
    end: cython.Py_ssize_t = p + n
    k: cython.int
    i: cython.int
    if _valid_utf8(src, p, end):
        if cython.compiled:
            memcpy(dst + o, src + p, n)
        else:
            dst[o : o + n] = src[p:end]
        return o + n
    while p < end:
        if src[p] < 0x80:
            dst[o] = src[p]
            o += 1
            p += 1
            continue
        k = character_length(src, p, end)
        if k < 0:
            dst[o] = 0xEF
            dst[o + 1] = 0xBF
            dst[o + 2] = 0xBD
            o += 3
            p -= k
        else:
            for i in range(k):
                dst[o + i] = src[p + i]
            o += k
            p += k
    return o


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _truth(dst: cython.pointer[cython.uchar], o: cython.Py_ssize_t, v: cython.bint) -> cython.Py_ssize_t:
    return _text(dst, o, b"true") if v else _text(dst, o, b"false")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _time_name(
    dst: cython.pointer[cython.uchar], o: cython.Py_ssize_t, attributes: cython.longlong
) -> cython.Py_ssize_t:
    return _text(dst, o, b" LogAppendTime: ") if attributes & 8 else _text(dst, o, b" CreateTime: ")


@cython.cfunc
@cython.exceptval(check=False)
def _print_header(
    dst: cython.pointer[cython.uchar],
    o: cython.Py_ssize_t,
    src: cython.pointer[cython.const[cython.uchar]],
    st: cython.pointer[cython.longlong],
    valid: cython.bint,
) -> cython.Py_ssize_t:
    """The line of a batch; the caller has seen to HEADER_ROOM."""
    p: cython.Py_ssize_t = st[at.POS]
    attributes: cython.longlong = st[at.ATTRIBUTES]
    delta: cython.longlong = int32(big_endian(src, p + 23, 4))
    codec: cython.longlong = attributes & 7
    o = _text(dst, o, b"baseOffset: ")
    o = _number(dst, o, st[at.BASE_OFFSET])
    o = _text(dst, o, b" lastOffset: ")
    o = _number(dst, o, add64(st[at.BASE_OFFSET], delta))
    o = _text(dst, o, b" count: ")
    o = _number(dst, o, st[at.COUNT])
    o = _text(dst, o, b" baseSequence: ")
    o = _number(dst, o, st[at.BASE_SEQUENCE])
    o = _text(dst, o, b" lastSequence: ")
    o = _number(dst, o, -1 if st[at.BASE_SEQUENCE] == -1 else sequence(st[at.BASE_SEQUENCE], delta))
    o = _text(dst, o, b" producerId: ")
    o = _number(dst, o, big_endian(src, p + 43, 8))
    o = _text(dst, o, b" producerEpoch: ")
    o = _number(dst, o, (big_endian(src, p + 51, 2) ^ 0x8000) - 0x8000)
    o = _text(dst, o, b" partitionLeaderEpoch: ")
    o = _number(dst, o, int32(big_endian(src, p + 12, 4)))
    o = _text(dst, o, b" isTransactional: ")
    o = _truth(dst, o, (attributes & 0x10) != 0)
    o = _text(dst, o, b" isControl: ")
    o = _truth(dst, o, (attributes & 0x20) != 0)
    if attributes & 0x40:
        o = _text(dst, o, b" deleteHorizonMs: OptionalLong[")
        o = _number(dst, o, st[at.BASE_TIMESTAMP])
        o = _text(dst, o, b"] position: ")
    else:
        o = _text(dst, o, b" deleteHorizonMs: OptionalLong.empty position: ")
    o = _number(dst, o, st[at.BASE] + p)
    o = _time_name(dst, o, attributes)
    o = _number(dst, o, st[at.MAX_TIMESTAMP])
    o = _text(dst, o, b" size: ")
    o = _number(dst, o, st[at.SIZE])
    o = _text(dst, o, b" magic: ")
    o = _number(dst, o, st[at.MAGIC])
    o = _text(dst, o, b" compresscodec: ")
    if codec == 0:
        o = _text(dst, o, b"none")
    elif codec == 1:
        o = _text(dst, o, b"gzip")
    elif codec == 2:
        o = _text(dst, o, b"snappy")
    elif codec == 3:
        o = _text(dst, o, b"lz4")
    else:
        o = _text(dst, o, b"zstd")
    o = _text(dst, o, b" crc: ")
    o = _number(dst, o, big_endian(src, p + 17, 4))
    o = _text(dst, o, b" isvalid: ")
    o = _truth(dst, o, valid)
    return _text(dst, o, b"\n")


@cython.cfunc
@cython.exceptval(check=False)
def _print_record(
    dst: cython.pointer[cython.uchar],
    o: cython.Py_ssize_t,
    src: cython.pointer[cython.const[cython.uchar]],
    st: cython.pointer[cython.longlong],
) -> cython.Py_ssize_t:
    """The line of the record in the R_ slots, without its end; the caller has seen to the room."""
    i: cython.longlong
    p: cython.Py_ssize_t
    n: cython.longlong
    flags: cython.longlong = st[at.FLAGS]
    if not flags & at.SKIP_METADATA:
        o = _text(dst, o, b"| offset: ")
        o = _number(dst, o, st[at.R_OFFSET])
        o = _time_name(dst, o, st[at.ATTRIBUTES])
        o = _number(dst, o, st[at.R_TIMESTAMP])
        o = _text(dst, o, b" keySize: ")
        o = _number(dst, o, st[at.R_KEY_SIZE])
        o = _text(dst, o, b" valueSize: ")
        o = _number(dst, o, st[at.R_VALUE_SIZE])
        o = _text(dst, o, b" sequence: ")
        o = _number(dst, o, st[at.R_SEQUENCE])
        if st[at.R_HEADER_COUNT] == 0:
            o = _text(dst, o, b" headerKeys: []")
        else:
            o = _text(dst, o, b" headerKeys: [")
            p = st[at.R_HEADERS]
            i = st[at.R_HEADER_COUNT]
            while i > 0:
                n = varint(src, p, st[at.R_NEXT], st)
                p = st[at.V_NEXT]
                o = _string(dst, o, src, p, n)
                p += n
                n = varint(src, p, st[at.R_NEXT], st)
                p = st[at.V_NEXT]
                if n > 0:
                    p += n
                i -= 1
                if i > 0:
                    o = _text(dst, o, b",")
            o = _text(dst, o, b"]")
    if flags & at.CONTENTS:
        if st[at.R_KEY_SIZE] >= 0:
            o = _text(dst, o, b"| key: ") if flags & at.SKIP_METADATA else _text(dst, o, b" key: ")
            o = _string(dst, o, src, st[at.R_KEY], st[at.R_KEY_SIZE])
        if st[at.R_VALUE_SIZE] >= 0:
            if flags & at.SKIP_METADATA and st[at.R_KEY_SIZE] < 0:
                o = _text(dst, o, b"| payload: ")
            else:
                o = _text(dst, o, b" payload: ")
            o = _string(dst, o, src, st[at.R_VALUE], st[at.R_VALUE_SIZE])
    return o


@cython.cfunc
@cython.exceptval(-1)
def _print_records(
    src: cython.pointer[cython.const[cython.uchar]],
    dst: cython.pointer[cython.uchar],
    room: cython.Py_ssize_t,
    st: cython.pointer[cython.longlong],
    gaps: dict,
) -> cython.int:
    """Print what is left of a batch's records: DONE, FULL, GROW or BAD_RECORD."""
    o: cython.Py_ssize_t = st[at.OUT]
    why: cython.int
    need: cython.longlong
    if st[at.COUNT] < 0:
        st[at.DETAIL] = at.NEGATIVE_COUNT
        return at.BAD_RECORD
    while st[at.READ] < st[at.COUNT]:
        why = next_record(src, st)
        if why != at.R_OK:
            st[at.OUT] = o
            st[at.DETAIL] = why
            return at.BAD_RECORD
        need = at.RECORD_ROOM + 3 * (st[at.R_NEXT] - st[at.BODY])
        if need > room - o:
            st[at.OUT] = o
            st[at.NEED] = need
            return at.GROW if o == 0 else at.FULL
        if st[at.R_OFFSET] != add64(st[at.LAST_OFFSET], 1):
            gaps[st[at.LAST_OFFSET]] = st[at.R_OFFSET]
        st[at.LAST_OFFSET] = st[at.R_OFFSET]
        o = _print_record(dst, o, src, st)
        o = _text(dst, o, b"\n")
        st[at.READ] += 1
        st[at.BODY] = st[at.R_NEXT]
    st[at.OUT] = o
    return at.DONE


# -- what the dump room calls ----------------------------------------------------------------------------


def java_string(data) -> bytes:
    """Bytes as UTF-8 text the way Java decodes them, mistakes replaced by U+FFFD."""
    size: cython.Py_ssize_t = len(data)
    if size == 0:
        return b""
    out = bytearray(3 * size)
    src: cython.const[cython.uchar][::1] = memoryview(data)
    dst: cython.uchar[::1] = memoryview(out)
    if cython.compiled:
        n = _string(cython.address(dst[0]), 0, cython.address(src[0]), 0, size)
    else:
        n = _string(dst, 0, src, 0, size)
    return bytes(memoryview(out)[:n])


def print_log(view, out, state, gaps: dict) -> int:
    """Print batches from `view` on, and their records where the flags ask, until something stops it.

    `gaps` gets, for every record whose offset is not the one after the record
    before it, {offset before: offset}.
    """
    src: cython.const[cython.uchar][::1] = view
    dst: cython.uchar[::1] = out
    slots: cython.longlong[::1] = state
    room: cython.Py_ssize_t = len(out)
    code: cython.int
    checksum: cython.longlong
    if len(state) < at.STATE_SIZE or not 0 <= state[at.POS] <= state[at.END] <= len(view):
        raise ValueError("dump state does not fit its buffers")
    if not 0 <= state[at.OUT] <= room:
        raise ValueError("dump state does not fit its buffers")
    if state[at.IN_BATCH] and not state[at.POS] <= state[at.BODY] <= state[at.BODY_END] <= state[at.END]:
        raise ValueError("dump state does not fit its batch")
    if len(view) == 0:
        return at.DONE if state[at.FLAGS] & at.FINAL else at.MORE
    if room < at.HEADER_ROOM:
        state[at.NEED] = at.HEADER_ROOM
        return at.GROW
    if cython.compiled:
        sp: cython.pointer[cython.const[cython.uchar]] = cython.address(src[0])
        dp: cython.pointer[cython.uchar] = cython.address(dst[0])
        st: cython.pointer[cython.longlong] = cython.address(slots[0])
    else:
        sp, dp, st = view, out, state
    while True:
        if not st[at.IN_BATCH]:
            code = next_header(sp, st)
            if code != at.OPAQUE:
                return code
            if room - st[at.OUT] < at.HEADER_ROOM:
                return at.FULL
            if cython.compiled:
                checksum = stratalog_crc(0, sp + st[at.POS] + 21, st[at.SIZE] - 21)
            else:
                checksum = stratalog_crc(sp[st[at.POS] + 21 : st[at.POS] + st[at.SIZE]])
            st[at.OUT] = _print_header(dp, st[at.OUT], sp, st, checksum == big_endian(sp, st[at.POS] + 17, 4))
            if st[at.FLAGS] & at.DEEP and st[at.COUNT] != 0:
                if st[at.FLAGS] & at.OPAQUE_ALL or st[at.ATTRIBUTES] & 0x27:
                    return at.OPAQUE
                st[at.IN_BATCH] = 1
            else:
                st[at.POS] += st[at.SIZE]
                continue
        code = _print_records(sp, dp, room, st, gaps)
        if code != at.DONE:
            return code
        st[at.IN_BATCH] = 0
        st[at.POS] += st[at.SIZE]


def print_body(view, out, state, gaps: dict) -> int:
    """Print the records of a decompressed batch, `view` holding nothing else; BODY, BODY_END in it."""
    src: cython.const[cython.uchar][::1] = view
    dst: cython.uchar[::1] = out
    slots: cython.longlong[::1] = state
    room: cython.Py_ssize_t = len(out)
    if len(state) < at.STATE_SIZE or not 0 <= state[at.BODY] <= state[at.BODY_END] <= len(view):
        raise ValueError("dump state does not fit its buffers")
    if not 0 <= state[at.OUT] <= room or room == 0:
        raise ValueError("dump state does not fit its buffers")
    if len(view) == 0:
        state[at.DETAIL] = at.RECORD_STRUCTURE
        return at.BAD_RECORD if state[at.COUNT] != 0 else at.DONE
    if cython.compiled:
        return _print_records(
            cython.address(src[0]), cython.address(dst[0]), room, cython.address(slots[0]), gaps
        )
    return _print_records(view, out, room, state, gaps)
