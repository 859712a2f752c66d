# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Batches with some of their records left out: who stays is judged, and what is left is written.

``filter_rows`` goes over rows of the header table that ``_scan`` made, some at a time: all records of a group
of batches are read and marked, their keys looked up in runs (see _keys), and then each batch of the group
is left out, copied, rewritten or reduced to its header. Batches that stay as they are and lie behind one
another are copied in one piece. Nothing is written past the end of the block given for it.
"""

import cython
from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize
from cython.cimports.stratalog.kernel._decode import body_end, read_record, read_varint
from cython.cimports.stratalog.kernel._encode import (
    put_header,
    put_varint,
    varint_length,
    zigzag_difference,
)
from cython.cimports.stratalog.kernel._keys import DropSet, KeyMap, begin, drops, find_many
from cython.cimports.stratalog.kernel.native import copy_bytes, key_hash

# Flags of a row in `retention`: 1 keep empty, 2 discard, 4 start the horizon. What became of a batch, in
# state[11]: 0 gone, 1 copied, 2 rewritten, 3 a bare header. Codes that ask for more room, state[12] says how
# much: 1 in `target`, 2 in `made`, 3 for the records of one batch.


def blank(size: cython.Py_ssize_t):
    """A bytearray whose bytes mean nothing yet."""
    if size < 0:
        raise ValueError("blank: a negative size")
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    return bytearray(size)


def find_rows(
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    mask: cython.longlong,
    rows: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Put the rows whose attributes have a bit of ``mask`` into ``rows`` while there is room; how many."""
    n: cython.Py_ssize_t = 0
    if row < 0 or end_row > len(table) // 14:
        raise ValueError("find_rows: rows outside the table")
    while row < end_row:
        if table[row * 14 + 6] & mask:
            if n < len(rows):
                rows[n] = row
            n += 1
        row += 1
    return n


def _among(offsets, n, offset):
    """Whether a sorted list has an offset."""
    low: cython.Py_ssize_t = 0
    middle: cython.Py_ssize_t
    high: cython.Py_ssize_t = n
    while low < high:
        middle = (low + high) // 2
        if offsets[middle] < offset:
            low = middle + 1
        else:
            high = middle
    return low < n and offsets[low] == offset


def put_kept_records(dst, at, src, starts, stamps, marks, n, count, end, base_timestamp, verbatim):
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


def filter_rows(
    source: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    retention: cython.const[cython.uchar][::1],
    keys: KeyMap | None,
    drop_keys: DropSet | None,
    keep_offsets: cython.const[cython.longlong][::1],
    now_ms: cython.longlong,
    horizon_ms: cython.longlong,
    target: cython.uchar[::1],
    made: cython.longlong[::1],
    starts: cython.longlong[::1],
    stamps: cython.longlong[::1],
    marks: cython.uchar[::1],
    state: cython.longlong[::1],
) -> cython.int:
    """Write what stays of the rows to ``target``, and its rows to ``made``.

    ``body`` as in ``walk_records``; with it >= 0 a batch that is COPIED is left to the caller, and one that
    is REWRITTEN is written without a codec. ``retention``: flags for each row (empty: none). ``horizon_ms``:
    the delete horizon that batches with tombstones get; below 0, none is given and tombstones do not go for
    their age. ``starts``, ``stamps`` and ``marks`` are scratch, a place a record. The walk ends at a
    compressed batch whose records were not given.

    ``state``: 0 code, 1 row, 2 record of an error; 3 out: the row after the last one done; in/out, added to:
    4 bytes of target, 5 rows of made, 6 and 7 records in and out, 8 and 9 tombstones in and out, 10 batches
    rewritten, 13 the largest timestamp, 14 batches of producers with an id; out: 11 what became of the last
    batch, 12 the room needed.
    """
    src: cython.pointer[cython.const[cython.uchar]]
    dst: cython.pointer[cython.uchar]
    t: cython.pointer[cython.const[cython.longlong]]
    o: cython.pointer[cython.longlong]
    start: cython.pointer[cython.longlong]
    stamp: cython.pointer[cython.longlong]
    mark: cython.pointer[cython.uchar]
    kept_offsets: cython.pointer[cython.const[cython.longlong]]
    f = cython.declare(cython.longlong[9])
    run_a = cython.declare(cython.ulonglong[64])
    run_b = cython.declare(cython.uint[64])
    run_record = cython.declare(cython.Py_ssize_t[64])
    run_number = cython.declare(cython.longlong[64])
    found = cython.declare(cython.longlong[64])
    size: cython.Py_ssize_t = len(source)
    target_size: cython.Py_ssize_t = len(target)
    made_rows: cython.Py_ssize_t = len(made) // 14
    room: cython.Py_ssize_t = min(len(starts), len(stamps), len(marks))
    offsets: cython.Py_ssize_t = len(keep_offsets)
    flagged: cython.bint = len(retention) > 0
    mapped: cython.bint = keys is not None
    dropping: cython.bint = drop_keys is not None
    point_a: cython.ulonglong = 0
    point_b: cython.ulonglong = 0
    base: cython.longlong = 0
    latest: cython.longlong = 0
    watched: cython.longlong = 0
    superseded: cython.pointer[cython.const[cython.uchar]] = cython.NULL if cython.compiled else None
    at: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    r: cython.Py_ssize_t = row
    q: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    k: cython.Py_ssize_t
    c: cython.Py_ssize_t
    m: cython.Py_ssize_t
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    need: cython.Py_ssize_t
    copy_from: cython.Py_ssize_t = 0
    copy_to: cython.Py_ssize_t = 0
    seen: cython.longlong = 0
    previous: cython.longlong
    offset: cython.longlong
    kept: cython.longlong
    tombstones: cython.longlong
    gone: cython.longlong
    first: cython.longlong
    least: cython.longlong
    largest: cython.longlong
    newest: cython.longlong
    attributes: cython.longlong
    flags: cython.int
    stays: cython.uchar
    due: cython.bint
    starting: cython.bint
    code: cython.int = 0
    if row < 0 or end_row > len(table) // 14 or (flagged and len(retention) < end_row) or len(state) < 16:
        raise ValueError("filter_rows: rows outside the table")
    if body >= 0 and end_row - row > 1:
        raise ValueError("filter_rows: rows outside the table")
    if state[4] < 0 or state[4] > target_size or state[5] < 0 or state[5] > made_rows:
        raise ValueError("filter_rows: a position outside the target")
    state[3] = row
    if row >= end_row:
        return 0
    if size == 0:
        state[0], state[1], state[2] = -12, row, 0
        return -12
    if target_size == 0 or made_rows == 0 or room == 0:
        state[12] = 61 if target_size == 0 else 1
        return 1 if target_size == 0 else 2 if made_rows == 0 else 3
    if cython.compiled:
        src = cython.address(source[0])
        dst = cython.address(target[0])
        t = cython.address(table[0])
        o = cython.address(made[0])
        start = cython.address(starts[0])
        stamp = cython.address(stamps[0])
        mark = cython.address(marks[0])
        kept_offsets = cython.address(keep_offsets[0]) if offsets else cython.NULL
    else:
        src, dst, t, o, start, stamp, mark = source, target, table, made, starts, stamps, marks
        kept_offsets, f, found = keep_offsets, [0] * 9, [0] * 64
        run_a, run_b, run_record, run_number = [0] * 64, [0] * 64, [0] * 64, [0] * 64
    if mapped:
        begin(keys, False)
        point_a = keys.point_a
        point_b = keys.point_b
        base = keys.base_offset
        latest = keys.latest_offset
        watched = base + cython.cast(cython.longlong, keys.watched)
        superseded = keys.superseded
    at = state[4]
    rows = state[5]
    with cython.nogil:
        while r < end_row:
            # Read and judge every record of the next batches, a few hundred records or one large batch.
            m = 0
            n = 0
            q = r
            while q < end_row and n < 256:
                i = q * 14
                seen = 0
                flags = retention[q] if flagged else 0
                if flags & 2 or t[i + 4] <= 0:
                    q += 1
                    continue
                if body < 0 and t[i + 6] & 7:
                    break
                end = body_end(t, i, body, size)
                if end < 0 or t[i + 4] > (end - (body if body >= 0 else t[i] + 61)) // 7:
                    code = -12
                    break
                if t[i + 4] > room - n:
                    if n == 0:
                        state[12] = t[i + 4]
                        code = 3
                    break
                p = body if body >= 0 else cython.cast(cython.Py_ssize_t, t[i] + 61)
                due = horizon_ms >= 0 and t[i + 6] & 0x40 and t[i + 8] <= now_ms
                previous = -1
                while seen < t[i + 4]:
                    start[n] = p
                    p = read_record(src, p, end, f, t[i + 8])
                    if p < 0:
                        code = cython.cast(cython.int, p)
                        break
                    if f[1] <= previous or f[1] > t[i + 3] - t[i + 2]:
                        code = -10
                        break
                    previous = f[1]
                    seen += 1
                    stamp[n] = f[8]
                    stays = 3 if f[5] < 0 else 1
                    if not t[i + 6] & 0x20:
                        offset = t[i + 2] + f[1]
                        if dropping and f[3] >= 0 and drops(drop_keys, src, f[2], f[3]):
                            stays -= 1
                        elif not mapped or offset <= latest:
                            if (
                                (mapped and f[3] < 0)
                                or (due and f[5] < 0 and not _among(kept_offsets, offsets, offset))
                                or (
                                    mapped
                                    and base <= offset < watched
                                    and superseded[(offset - base) >> 3] >> ((offset - base) & 7) & 1
                                )
                            ):
                                stays -= 1
                            elif mapped:
                                run_record[m] = n
                                run_number[m] = offset - base + 1
                                run_a[m], run_b[m] = key_hash(src, f[2], f[3], point_a, point_b)
                                m += 1
                    mark[n] = stays
                    n += 1
                    if m == 64:
                        find_many(keys, run_a, run_b, 64, found)
                        for j in range(64):
                            if found[j] > 0 and found[j] > run_number[j]:
                                mark[run_record[j]] &= 2
                        m = 0
                if code:
                    break
                if p != end:
                    code = -11
                    break
                q += 1
            if code:
                break
            if m > 0:
                find_many(keys, run_a, run_b, m, found)
                for j in range(m):
                    if found[j] > 0 and found[j] > run_number[j]:
                        mark[run_record[j]] &= 2
            if q == r:
                break
            # Write what is left of them.
            n = 0
            while r < q:
                i = r * 14
                flags = retention[r] if flagged else 0
                kept = 0
                tombstones = 0
                gone = 0
                newest = t[i + 9]
                least = t[i + 9]
                first = t[i + 9]
                if not (flags & 2 or t[i + 4] <= 0):
                    largest = t[i + 9]
                    for k in range(n, n + cython.cast(cython.Py_ssize_t, t[i + 4])):
                        if t[i + 6] & 8:
                            stamp[k] = t[i + 9]
                        if stamp[k] > largest:
                            largest = stamp[k]
                        if not mark[k] & 1:
                            gone += mark[k] >> 1
                            continue
                        tombstones += mark[k] >> 1
                        if kept == 0:
                            first = stamp[k]
                            least = stamp[k]
                            newest = stamp[k]
                        elif stamp[k] < least:
                            least = stamp[k]
                        elif stamp[k] > newest:
                            newest = stamp[k]
                        kept += 1
                    if largest > t[i + 9] and t[i + 4] > 1:
                        code = -15
                        seen = 0
                        break
                need = 0
                starting = False
                if kept > 0:
                    starting = (tombstones > 0 or flags & 4) and horizon_ms >= 0 and not t[i + 6] & 0x40
                    if kept < t[i + 4] or starting:
                        need = size + 61 if body >= 0 else t[i + 1]
                        need += 10 * kept
                    elif body < 0:
                        need = t[i + 1]
                elif flags & 1:
                    need = 61
                if need > target_size - at - (copy_to - copy_from):
                    state[12] = need
                    code = 1
                    break
                if rows >= made_rows and (kept > 0 or flags & 1):
                    state[12] = 1
                    code = 2
                    break
                state[11] = 0
                if kept > 0 or flags & 1:
                    c = rows * 14
                    for j in range(14):
                        o[c + j] = t[i + j]
                    if kept > 0 and kept == t[i + 4] and not starting:
                        state[11] = 1
                        o[c + 10] = least if kept > 1 else t[i + 9]
                        if body < 0:
                            if t[i] != copy_to:
                                at = copy_bytes(dst, at, src, copy_from, copy_to - copy_from)
                                copy_from = t[i]
                                copy_to = t[i]
                            o[c] = at + copy_to - copy_from
                            copy_to += t[i + 1]
                        else:
                            o[c] = at
                    else:
                        at = copy_bytes(dst, at, src, copy_from, copy_to - copy_from)
                        copy_from = 0
                        copy_to = 0
                        p = at + 61
                        if kept > 0:
                            state[11] = 2
                            attributes = t[i + 6] & ~7
                            if attributes & 0x40:
                                first = t[i + 8]
                            elif starting:
                                first = horizon_ms
                                attributes |= 0x40
                            p = put_kept_records(
                                dst,
                                p,
                                src,
                                start,
                                stamp,
                                mark,
                                n,
                                t[i + 4],
                                body_end(t, i, body, size),
                                first,
                                first == t[i + 8] and not attributes & 8,
                            )
                        else:
                            state[11] = 3
                            attributes = t[i + 6] & 0x38
                            first = -1
                        o[c] = at
                        o[c + 1] = p - at
                        o[c + 4] = kept
                        o[c + 6] = attributes
                        o[c + 7] = put_header(
                            dst,
                            at,
                            p - at,
                            t[i + 2],
                            t[i + 5],
                            attributes,
                            t[i + 3] - t[i + 2],
                            first,
                            newest,
                            t[i + 11],
                            t[i + 12],
                            t[i + 13],
                            kept,
                        )
                        o[c + 8] = first
                        o[c + 9] = newest
                        o[c + 10] = least
                        at = p
                        if kept > 0 or t[i + 1] != 61 or o[c + 7] != t[i + 7]:  # not a bare header before
                            state[10] += 1
                    if o[c + 9] > state[13]:
                        state[13] = o[c + 9]
                    if o[c + 11] >= 0:
                        state[14] += 1
                    rows += 1
                if not t[i + 6] & 0x20:
                    state[6] += t[i + 4]
                    state[7] += kept
                    state[8] += tombstones + gone
                    state[9] += tombstones
                if not (flags & 2 or t[i + 4] <= 0):
                    n += t[i + 4]
                r += 1
            if code:
                q = r
                break
        at = copy_bytes(dst, at, src, copy_from, copy_to - copy_from)
    if mapped:
        keys.users -= 1
    state[3] = r
    state[4] = at
    state[5] = rows
    if code < 0:
        state[0], state[1], state[2] = code, q, seen
    return code
