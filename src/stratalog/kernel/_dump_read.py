# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Reading batches and records for the dump printer, hostile bytes welcome.

Touches nothing but the buffers it is given. One source: compiled by Cython, or run as it is with equal
results. Every read is bounded by the end of the batch and every length is checked against the bytes left
before it is used. There is nothing here to lose in a crash.

What was read goes to the slots of an int64 array, named in dump_slots. Numbers wrap where Java's would:
the dump shows what Kafka's tool would show, even of nonsense.
"""

import cython

if cython.compiled:
    import cython.cimports.stratalog.kernel.dump_slots as at
else:
    from stratalog.kernel import dump_slots as at


# -- bytes in --------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def big_endian(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, n: cython.int
) -> cython.longlong:
    """n bytes as an unsigned number (8 bytes: as two's complement)."""
    i: cython.int
    r: cython.ulonglong = 0
    if cython.compiled:
        for i in range(n):
            r = (r << 8) | src[p + i]
        return cython.cast(cython.longlong, r)
    return int.from_bytes(src[p : p + n], "big", signed=n == 8)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def int32(v: cython.longlong) -> cython.longlong:
    """The low 32 bits as a signed number: what Java's int arithmetic keeps."""
    if cython.compiled:
        return cython.cast(cython.int, v)
    return ((v & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def add64(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """a + b as Java's long wraps it."""
    if cython.compiled:
        total: cython.ulonglong = cython.cast(cython.ulonglong, a) + cython.cast(cython.ulonglong, b)
        return cython.cast(cython.longlong, total)
    return ((a + b + (1 << 63)) & 0xFFFFFFFFFFFFFFFF) - (1 << 63)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def sequence(base: cython.longlong, delta: cython.longlong) -> cython.longlong:
    """Sequence numbers wrap from 2**31-1 to 0."""
    if base > int32(0x7FFFFFFF - delta):
        return int32(delta - (0x7FFFFFFF - base) - 1)
    return int32(base + delta)


@cython.cfunc
@cython.exceptval(check=False)
def varint(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    st: cython.pointer[cython.longlong],
) -> cython.longlong:
    """A zigzag varint of at most 5 bytes; bits past the 32nd fall off, as they do in Java."""
    v: cython.ulonglong = 0
    b: cython.ulonglong
    i: cython.int
    for i in range(5):
        if p >= end:
            break
        b = src[p]
        p += 1
        v |= (b & 0x7F) << (7 * i)
        if b < 0x80:
            st[at.V_NEXT] = p
            if cython.compiled:
                v = cython.cast(cython.uint, v)
            else:
                v &= 0xFFFFFFFF
            return cython.cast(cython.longlong, v >> 1) ^ -cython.cast(cython.longlong, v & 1)
    st[at.V_NEXT] = -1
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def varlong(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    st: cython.pointer[cython.longlong],
) -> cython.longlong:
    """A zigzag varint of at most 10 bytes."""
    v: cython.ulonglong = 0
    b: cython.ulonglong
    i: cython.int
    for i in range(10):
        if p >= end:
            break
        b = src[p]
        p += 1
        v |= (b & 0x7F) << (7 * i)
        if b < 0x80:
            st[at.V_NEXT] = p
            if not cython.compiled:
                v &= 0xFFFFFFFFFFFFFFFF
            return cython.cast(cython.longlong, v >> 1) ^ -cython.cast(cython.longlong, v & 1)
    st[at.V_NEXT] = -1
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def next_record(
    src: cython.pointer[cython.const[cython.uchar]], st: cython.pointer[cython.longlong]
) -> cython.int:
    """Read the record at BODY into the R_ slots; a reason when it is none. Moves nothing but those."""
    p: cython.Py_ssize_t = st[at.BODY]
    end: cython.Py_ssize_t = st[at.BODY_END]
    n: cython.longlong
    i: cython.longlong
    delta: cython.longlong
    n = varint(src, p, end, st)
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
    delta = varlong(src, p, end, st)
    p = st[at.V_NEXT]
    if p < 0:
        return at.RECORD_STRUCTURE
    if st[at.ATTRIBUTES] & 8:
        st[at.R_TIMESTAMP] = st[at.MAX_TIMESTAMP]
    else:
        st[at.R_TIMESTAMP] = add64(st[at.BASE_TIMESTAMP], delta)
    delta = varint(src, p, end, st)
    p = st[at.V_NEXT]
    if p < 0:
        return at.RECORD_STRUCTURE
    st[at.R_OFFSET] = add64(st[at.BASE_OFFSET], delta)
    st[at.R_SEQUENCE] = sequence(st[at.BASE_SEQUENCE], delta) if st[at.BASE_SEQUENCE] >= 0 else -1
    n = varint(src, p, end, st)
    p = st[at.V_NEXT]
    if p < 0 or n > end - p:
        return at.RECORD_STRUCTURE
    st[at.R_KEY] = p
    st[at.R_KEY_SIZE] = n if n >= 0 else -1
    if n > 0:
        p += n
    n = varint(src, p, end, st)
    p = st[at.V_NEXT]
    if p < 0 or n > end - p:
        return at.RECORD_STRUCTURE
    st[at.R_VALUE] = p
    st[at.R_VALUE_SIZE] = n if n >= 0 else -1
    if n > 0:
        p += n
    n = varint(src, p, end, st)
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
        n = varint(src, p, end, st)
        p = st[at.V_NEXT]
        if p < 0 or n > end - p:
            return at.RECORD_STRUCTURE
        if n < 0:
            return at.HEADER_KEY_SIZE
        p += n
        n = varint(src, p, end, st)
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


@cython.cfunc
@cython.exceptval(check=False)
def next_header(
    src: cython.pointer[cython.const[cython.uchar]], st: cython.pointer[cython.longlong]
) -> cython.int:
    """Look at the batch at POS: OPAQUE when its facts are in the slots, else why not."""
    p: cython.Py_ssize_t = st[at.POS]
    left: cython.longlong = st[at.END] - st[at.POS]
    size: cython.longlong
    if left <= 17:
        st[at.NEED] = 61
        return at.DONE if st[at.FLAGS] & at.FINAL else at.MORE
    size = int32(big_endian(src, p + 8, 4))
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
    st[at.ATTRIBUTES] = big_endian(src, p + 21, 2)
    st[at.BASE_OFFSET] = big_endian(src, p, 8)
    st[at.BASE_TIMESTAMP] = big_endian(src, p + 27, 8)
    st[at.MAX_TIMESTAMP] = big_endian(src, p + 35, 8)
    st[at.BASE_SEQUENCE] = int32(big_endian(src, p + 53, 4))
    st[at.COUNT] = int32(big_endian(src, p + 57, 4))
    st[at.READ] = 0
    st[at.BODY] = p + 61
    st[at.BODY_END] = p + size
    if (st[at.ATTRIBUTES] & 7) > 4:
        st[at.DETAIL] = st[at.ATTRIBUTES] & 7
        return at.BAD_CODEC
    return at.OPAQUE


# -- what the dump room calls ----------------------------------------------------------------------------


def read_header(view, state) -> int:
    """The facts of the batch at POS into the slots: OPAQUE, or why there are none."""
    src: cython.const[cython.uchar][::1] = view
    slots: cython.longlong[::1] = state
    if len(state) < at.STATE_SIZE or not 0 <= state[at.POS] <= state[at.END] <= len(view):
        raise ValueError("dump state does not fit its buffers")
    if len(view) == 0:
        return at.DONE if state[at.FLAGS] & at.FINAL else at.MORE
    if cython.compiled:
        return next_header(cython.address(src[0]), cython.address(slots[0]))
    return next_header(view, state)


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
        why = next_record(sp, st)
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
                n = varint(sp, p, st[at.R_NEXT], st)
                p = st[at.V_NEXT]
                name = bytes(view[p : p + n])
                p += n
                n = varint(sp, p, st[at.R_NEXT], st)
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


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _goes_on(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Whether a continuation byte is at p."""
    return p < end and (src[p] & 0xC0) == 0x80


@cython.cfunc
@cython.exceptval(check=False)
def character_length(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.int:
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
