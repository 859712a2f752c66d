# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""The dump printer's inner loops: batches and records to the text Kafka's dump tool prints.

The bytes it reads may be hostile: every read is bounded by the end of the batch, every length is checked
against the bytes left before it is used, and the room in the output is checked before a line is begun.
Numbers wrap where Java's would: the dump shows what Kafka's tool would show, even of nonsense.

A caller owns three things and keeps them over the calls that dump one file:

    view    the bytes read so far, from some position of the file on
    out     a writable block; a call fills it and returns FULL when a line might not fit any more
    state   an int64 array of STATE_SIZE slots, named in dump_slots: where the walk stands. A call can
            stop between two records of a batch and the next one goes on there.

The lock of the interpreter is held throughout: the table of gaps is a Python object, and the one command
that comes here has one thread.
"""

import cython
from cython.cimports.libc.string import memcpy, strlen
from cython.cimports.stratalog.kernel import dump_slots as at
from cython.cimports.stratalog.kernel._decode import read_varint
from cython.cimports.stratalog.kernel.native import (
    copy_bytes,
    crc_of,
    get16,
    get32,
    get64,
    get_u32,
    native_init,
)

native_init()

# -- bytes in --------------------------------------------------------------------------------------------


def _int32(v):
    """The low 32 bits as a signed number: what Java's int arithmetic keeps."""
    if cython.compiled:
        return cython.cast(cython.int, v)
    return ((v & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _add64(a, b):
    """a + b as Java's long wraps it."""
    if cython.compiled:
        total: cython.ulonglong = cython.cast(cython.ulonglong, a) + cython.cast(cython.ulonglong, b)
        return cython.cast(cython.longlong, total)
    return ((a + b + (1 << 63)) & 0xFFFFFFFFFFFFFFFF) - (1 << 63)


def _sequence(base, delta):
    """Sequence numbers wrap from 2**31-1 to 0."""
    if base > _int32(0x7FFFFFFF - delta):
        return _int32(delta - (0x7FFFFFFF - base) - 1)
    return _int32(base + delta)


def _varint(src, p, end, longest, st):
    """Return the signed number at ``p``; V_NEXT is the position after it, negative when there is none."""
    v: cython.ulonglong
    v, p = read_varint(src, p, end, longest)
    st[at.V_NEXT] = p
    return cython.cast(cython.longlong, v >> 1) ^ -cython.cast(cython.longlong, v & 1)


def _next_record(src, st):
    """Read the record at BODY into the R_ slots; a reason when it is none. Moves nothing but those."""
    p: cython.Py_ssize_t = st[at.BODY]
    end: cython.Py_ssize_t = st[at.BODY_END]
    n: cython.longlong
    i: cython.longlong
    delta: cython.longlong
    n = _varint(src, p, end, 5, st)
    p = st[at.V_NEXT]
    if p < 0:
        return at.RECORD_STRUCTURE
    if n < 0 or n > end - p:
        return at.RECORD_SIZE
    end = p + n
    st[at.R_NEXT] = end
    if p >= end:
        return at.RECORD_STRUCTURE
    p += 1  # attributes: nothing in them yet
    delta = _varint(src, p, end, 10, st)
    p = st[at.V_NEXT]
    if p < 0:
        return at.RECORD_STRUCTURE
    if st[at.ATTRIBUTES] & 8:
        st[at.R_TIMESTAMP] = st[at.MAX_TIMESTAMP]
    else:
        st[at.R_TIMESTAMP] = _add64(st[at.BASE_TIMESTAMP], delta)
    delta = _varint(src, p, end, 5, st)
    p = st[at.V_NEXT]
    if p < 0:
        return at.RECORD_STRUCTURE
    st[at.R_OFFSET] = _add64(st[at.BASE_OFFSET], delta)
    st[at.R_SEQUENCE] = _sequence(st[at.BASE_SEQUENCE], delta) if st[at.BASE_SEQUENCE] >= 0 else -1
    n = _varint(src, p, end, 5, st)
    p = st[at.V_NEXT]
    if p < 0 or n > end - p:
        return at.RECORD_STRUCTURE
    st[at.R_KEY] = p
    st[at.R_KEY_SIZE] = n if n >= 0 else -1
    if n > 0:
        p += n
    n = _varint(src, p, end, 5, st)
    p = st[at.V_NEXT]
    if p < 0 or n > end - p:
        return at.RECORD_STRUCTURE
    st[at.R_VALUE] = p
    st[at.R_VALUE_SIZE] = n if n >= 0 else -1
    if n > 0:
        p += n
    n = _varint(src, p, end, 5, st)
    p = st[at.V_NEXT]
    if p < 0:
        return at.RECORD_STRUCTURE
    if n < 0 or n > end - p:
        return at.HEADER_COUNT
    st[at.R_HEADERS] = p
    st[at.R_HEADER_COUNT] = n
    i = n
    while i > 0:
        i -= 1
        n = _varint(src, p, end, 5, st)
        p = st[at.V_NEXT]
        if p < 0 or n > end - p:
            return at.RECORD_STRUCTURE
        if n < 0:
            return at.HEADER_KEY_SIZE
        p += n
        n = _varint(src, p, end, 5, st)
        p = st[at.V_NEXT]
        if p < 0 or n > end - p:
            return at.RECORD_STRUCTURE
        if n > 0:
            p += n
    if p != end:
        return at.RECORD_SIZE_MISMATCH
    # The last record must end where the batch does.
    if st[at.READ] + 1 == st[at.COUNT] and end != st[at.BODY_END]:
        return at.TRAILING_BYTES
    return at.R_OK


def _next_header(src, st):
    """Look at the batch at POS: OPAQUE when its facts are in the slots, else why not."""
    p: cython.Py_ssize_t = st[at.POS]
    left: cython.longlong = st[at.END] - st[at.POS]
    size: cython.longlong
    if left <= 17:
        st[at.NEED] = 61
        return at.DONE if st[at.FLAGS] & at.FINAL else at.MORE
    size = get32(src, p + 8)
    if size < 14:
        st[at.DETAIL] = size
        return at.BAD_LENGTH
    size += 12
    st[at.SIZE] = size
    if size > left:
        st[at.NEED] = size
        return at.DONE if st[at.FLAGS] & at.FINAL else at.MORE
    st[at.MAGIC] = src[p + 16]
    if st[at.MAGIC] < 2 or st[at.MAGIC] > 127:
        return at.LEGACY
    if size < 61:
        return at.SHORT
    st[at.ATTRIBUTES] = get16(src, p + 21) & 0xFFFF
    st[at.BASE_OFFSET] = get64(src, p)
    st[at.BASE_TIMESTAMP] = get64(src, p + 27)
    st[at.MAX_TIMESTAMP] = get64(src, p + 35)
    st[at.BASE_SEQUENCE] = get32(src, p + 53)
    st[at.COUNT] = get32(src, p + 57)
    st[at.READ] = 0
    st[at.BODY] = p + 61
    st[at.BODY_END] = p + size
    if (st[at.ATTRIBUTES] & 7) > 4:
        st[at.DETAIL] = st[at.ATTRIBUTES] & 7
        return at.BAD_CODEC
    return at.OPAQUE


def read_header(view, state) -> int:
    """The facts of the batch at POS into the slots: OPAQUE, or why there are none."""
    src: cython.const[cython.uchar][::1] = view
    slots: cython.longlong[::1] = state
    if len(state) < at.STATE_SIZE or not 0 <= state[at.POS] <= state[at.END] <= len(view):
        raise ValueError("dump state does not fit its buffers")
    if len(view) == 0:
        return at.DONE if state[at.FLAGS] & at.FINAL else at.MORE
    if cython.compiled:
        return _next_header(cython.address(src[0]), cython.address(slots[0]))
    return _next_header(view, state)


def read_records(view, state, records) -> int:
    """Read every record left between BODY and BODY_END; DONE or BAD_RECORD.

    Each is appended to the list `records` as (offset, timestamp, sequence, key, value, headers). With None
    only the greatest timestamp is wanted; DETAIL has it.
    """
    src: cython.const[cython.uchar][::1] = view
    slots: cython.longlong[::1] = state
    why: cython.int
    greatest: cython.longlong = -1
    p: cython.Py_ssize_t
    n: cython.longlong
    i: cython.longlong
    if len(state) < at.STATE_SIZE or not 0 <= state[at.BODY] <= state[at.BODY_END] <= len(view):
        raise ValueError("dump state does not fit its buffers")
    if state[at.COUNT] == 0:
        state[at.DETAIL] = -1
        return at.DONE
    if state[at.COUNT] < 0 or len(view) == 0:
        state[at.DETAIL] = at.NEGATIVE_COUNT if state[at.COUNT] < 0 else at.RECORD_STRUCTURE
        return at.BAD_RECORD
    if cython.compiled:
        sp: cython.pointer[cython.const[cython.uchar]] = cython.address(src[0])
        st: cython.pointer[cython.longlong] = cython.address(slots[0])
    else:
        sp, st = view, state
    while st[at.READ] < st[at.COUNT]:
        why = _next_record(sp, st)
        if why != at.R_OK:
            st[at.DETAIL] = why
            return at.BAD_RECORD
        greatest = max(greatest, st[at.R_TIMESTAMP])
        if records is not None:
            headers = []
            p = st[at.R_HEADERS]
            i = st[at.R_HEADER_COUNT]
            while i > 0:
                i -= 1
                n = _varint(sp, p, st[at.R_NEXT], 5, st)
                p = st[at.V_NEXT]
                name = bytes(view[p : p + n])
                p += n
                n = _varint(sp, p, st[at.R_NEXT], 5, st)
                p = st[at.V_NEXT]
                headers.append((name, bytes(view[p : p + n]) if n >= 0 else None))
                if n > 0:
                    p += n
            key = value = None
            if st[at.R_KEY_SIZE] >= 0:
                key = bytes(view[st[at.R_KEY] : st[at.R_KEY] + st[at.R_KEY_SIZE]])
            if st[at.R_VALUE_SIZE] >= 0:
                value = bytes(view[st[at.R_VALUE] : st[at.R_VALUE] + st[at.R_VALUE_SIZE]])
            records.append((st[at.R_OFFSET], st[at.R_TIMESTAMP], st[at.R_SEQUENCE], key, value, headers))
        st[at.READ] += 1
        st[at.BODY] = st[at.R_NEXT]
    st[at.DETAIL] = greatest
    return at.DONE


# -- text in ---------------------------------------------------------------------------------------------


def _goes_on(src, p, end):
    """Whether a continuation byte is at p."""
    return p < end and (src[p] & 0xC0) == 0x80


def _character_length(src, p, end):
    """Bytes of the character at p, or minus the bytes that Java replaces by one U+FFFD.

    Java takes back as much as could still have become a character, and it looks for surrogates only in
    a whole three-byte form: ED A0 80 is one mistake of three bytes there and three of one in Python.
    """
    b: cython.int = src[p]
    c: cython.int
    if b < 0x80:
        return 1
    if b < 0xC2 or b > 0xF7:
        return -1
    if b < 0xE0:
        return 2 if _goes_on(src, p + 1, end) else -1
    if not _goes_on(src, p + 1, end):
        return -1
    c = src[p + 1]
    if b < 0xF0:
        if b == 0xE0 and c < 0xA0:
            return -1
        if not _goes_on(src, p + 2, end):
            return -2
        return -3 if b == 0xED and c > 0x9F else 3
    if b > 0xF4 or (b == 0xF0 and c < 0x90) or (b == 0xF4 and c > 0x8F):
        return -1
    if not _goes_on(src, p + 2, end):
        return -2
    return 4 if _goes_on(src, p + 3, end) else -3


# -- text out --------------------------------------------------------------------------------------------


def _text(dst, o, s):
    """Copy a literal; the C compiler knows its length."""
    n: cython.Py_ssize_t
    if cython.compiled:
        n = strlen(s)
        memcpy(dst + o, s, n)
    else:
        n = len(s)
        dst[o : o + n] = s
    return o + n


def _number(dst, o, v):
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


def _valid_utf8(src, p, end):
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


def _string(dst, o, src, p, n):
    """Bytes as Java prints the string it makes of them. At most 3 bytes out for each one in."""
    end: cython.Py_ssize_t = p + n
    k: cython.int
    i: cython.int
    if _valid_utf8(src, p, end):
        return copy_bytes(dst, o, src, p, n)
    while p < end:
        if src[p] < 0x80:
            dst[o] = src[p]
            o += 1
            p += 1
            continue
        k = _character_length(src, p, end)
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


def _truth(dst, o, v):
    return _text(dst, o, b"true") if v else _text(dst, o, b"false")


def _time_name(dst, o, attributes):
    return _text(dst, o, b" LogAppendTime: ") if attributes & 8 else _text(dst, o, b" CreateTime: ")


def _print_header(dst, o, src, st, valid):
    """The line of a batch; the caller has seen to HEADER_ROOM."""
    p: cython.Py_ssize_t = st[at.POS]
    attributes: cython.longlong = st[at.ATTRIBUTES]
    delta: cython.longlong = get32(src, p + 23)
    codec: cython.longlong = attributes & 7
    o = _text(dst, o, b"baseOffset: ")
    o = _number(dst, o, st[at.BASE_OFFSET])
    o = _text(dst, o, b" lastOffset: ")
    o = _number(dst, o, _add64(st[at.BASE_OFFSET], delta))
    o = _text(dst, o, b" count: ")
    o = _number(dst, o, st[at.COUNT])
    o = _text(dst, o, b" baseSequence: ")
    o = _number(dst, o, st[at.BASE_SEQUENCE])
    o = _text(dst, o, b" lastSequence: ")
    o = _number(dst, o, -1 if st[at.BASE_SEQUENCE] == -1 else _sequence(st[at.BASE_SEQUENCE], delta))
    o = _text(dst, o, b" producerId: ")
    o = _number(dst, o, get64(src, p + 43))
    o = _text(dst, o, b" producerEpoch: ")
    o = _number(dst, o, get16(src, p + 51))
    o = _text(dst, o, b" partitionLeaderEpoch: ")
    o = _number(dst, o, get32(src, p + 12))
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
    o = _number(dst, o, get_u32(src, p + 17))
    o = _text(dst, o, b" isvalid: ")
    o = _truth(dst, o, valid)
    return _text(dst, o, b"\n")


def _print_record(dst, o, src, st):
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
                n = _varint(src, p, st[at.R_NEXT], 5, st)
                p = st[at.V_NEXT]
                o = _string(dst, o, src, p, n)
                p += n
                n = _varint(src, p, st[at.R_NEXT], 5, st)
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


def _print_records(src, dst, room, st, gaps):
    """Print what is left of a batch's records: DONE, FULL, GROW or BAD_RECORD."""
    o: cython.Py_ssize_t = st[at.OUT]
    why: cython.int
    need: cython.longlong
    if st[at.COUNT] < 0:
        st[at.DETAIL] = at.NEGATIVE_COUNT
        return at.BAD_RECORD
    while st[at.READ] < st[at.COUNT]:
        why = _next_record(src, st)
        if why != at.R_OK:
            st[at.OUT] = o
            st[at.DETAIL] = why
            return at.BAD_RECORD
        need = at.RECORD_ROOM + 3 * (st[at.R_NEXT] - st[at.BODY])
        if need > room - o:
            st[at.OUT] = o
            st[at.NEED] = need
            return at.GROW if o == 0 else at.FULL
        if st[at.R_OFFSET] != _add64(st[at.LAST_OFFSET], 1):
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
            code = _next_header(sp, st)
            if code != at.OPAQUE:
                return code
            if room - st[at.OUT] < at.HEADER_ROOM:
                return at.FULL
            checksum = crc_of(sp, st[at.POS] + 21, st[at.POS] + st[at.SIZE])
            st[at.OUT] = _print_header(dp, st[at.OUT], sp, st, checksum == get_u32(sp, st[at.POS] + 17))
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
