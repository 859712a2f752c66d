# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
"""The latest offset of each key, collected from batches.

``add_rows`` goes over rows of the header table that ``_scan`` made and puts the keys of their records into a
map of ``_keys``, in runs of 64. One source, compiled by Cython or run as it is.
"""

import cython

if cython.compiled:
    from cython.cimports.stratalog.kernel._keys import KeyMap, begin, put_many
    from cython.cimports.stratalog.kernel._record import body_end, read_record
    from cython.cimports.stratalog.kernel.native import stratalog_key_hash
else:
    from stratalog.kernel._keys import KeyMap, begin, plain_hash, put_many
    from stratalog.kernel._record import body_end, read_record

FURTHEST = cython.declare(cython.longlong, 0xFFFFFFFE)  # the largest offset less the base offset


def add_rows(
    keys: KeyMap,
    source: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    skip: cython.const[cython.uchar][::1],
    lo: cython.longlong,
    state: cython.longlong[::1],
) -> cython.int:
    """Add the keys of the rows' records from offset ``lo`` on.

    Control batches and rows with a ``skip`` byte are left out. For uncompressed batches the records lie in
    the source at the row's position (``body`` < 0); a decompressed batch is its own source, from byte
    ``body`` to the end. The walk ends at a compressed batch whose records were not given, and when the map
    is full. ``state``: 0 code, 1 row, 2 record of an error; 3 the row after the last one done.
    """
    src: cython.pointer[cython.const[cython.uchar]]
    t: cython.pointer[cython.const[cython.longlong]]
    f = cython.declare(cython.longlong[9])
    run_a = cython.declare(cython.ulonglong[64])
    run_b = cython.declare(cython.uint[64])
    numbers = cython.declare(cython.longlong[64])
    size: cython.Py_ssize_t = len(source)
    masked: cython.bint = len(skip) > 0
    point_a: cython.ulonglong
    point_b: cython.ulonglong
    capacity: cython.longlong
    base: cython.longlong
    latest: cython.longlong
    offset: cython.longlong
    previous: cython.longlong
    n: cython.longlong = 0
    r: cython.Py_ssize_t = row
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    m: cython.Py_ssize_t = 0
    went: cython.Py_ssize_t
    stop: cython.longlong = 0
    full: cython.bint = False
    code: cython.int = 0
    if row < 0 or end_row > len(table) // 14 or (masked and len(skip) < end_row) or len(state) < 8:
        raise ValueError("add_rows: rows outside the table")
    if body >= 0 and end_row - row > 1:
        raise ValueError("add_rows: rows outside the table")
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
        run_a, run_b, numbers = [0] * 64, [0] * 64, [0] * 64
    begin(keys, True)
    point_a = keys.point_a
    point_b = keys.point_b
    capacity = keys.capacity
    base = keys.base_offset
    latest = keys.latest_offset
    with cython.nogil:
        while r < end_row:
            i = r * 14
            if t[i + 3] < lo or t[i + 3] < base:
                r += 1
                continue
            if t[i + 6] & 0x20 or t[i + 4] == 0 or (masked and skip[r]):
                if t[i + 3] > latest:
                    latest = t[i + 3]
                r += 1
                continue
            n = 0
            if body < 0 and t[i + 6] & 7:
                break
            end = body_end(t, i, body, size)
            if end < 0 or t[i + 4] > (end - (body if body >= 0 else t[i] + 61)) // 7:
                code = -12
                break
            if keys.used + m + t[i + 4] > capacity or t[i + 3] - base > FURTHEST:
                went = put_many(keys, run_a, run_b, numbers, m)
                if went < m:
                    stop = numbers[went]
                    break
                m = 0
                if keys.used == 0:
                    if t[i + 2] > base:
                        base = t[i + 2]
                elif keys.used + t[i + 4] > capacity or t[i + 3] - base > FURTHEST:
                    full = True
                    break
            p = body if body >= 0 else cython.cast(cython.Py_ssize_t, t[i] + 61)
            previous = -1
            while n < t[i + 4]:
                p = read_record(src, p, end, f, 0)
                if p < 0:
                    code = cython.cast(cython.int, p)
                    break
                if f[1] <= previous or f[1] > t[i + 3] - t[i + 2]:
                    code = -10
                    break
                previous = f[1]
                n += 1
                offset = t[i + 2] + f[1]
                if f[3] < 0 or offset < lo or offset < base:
                    continue
                if offset - base > FURTHEST:  # a table that lies
                    code = -10
                    break
                numbers[m] = offset - base + 1
                if cython.compiled:
                    stratalog_key_hash(
                        src + f[2],
                        f[3],
                        point_a,
                        point_b,
                        cython.address(run_a[m]),
                        cython.address(run_b[m]),
                    )
                else:
                    run_a[m], run_b[m] = plain_hash(src, f[2], f[3], point_a, point_b)
                m += 1
                if m == 64:
                    went = put_many(keys, run_a, run_b, numbers, 64)
                    if went < 64:
                        stop = numbers[went]
                        break
                    m = 0
            if code or stop:
                break
            if p != end:
                code = -11
                break
            if t[i + 3] > latest:
                latest = t[i + 3]
            r += 1
            if t[i + 4] > capacity:  # too large to be known to fit
                went = put_many(keys, run_a, run_b, numbers, m)
                if went < m:
                    stop = numbers[went]
                    r -= 1
                    break
                m = 0
        if m > 0 and not stop:
            went = put_many(keys, run_a, run_b, numbers, m)
            if went < m:
                stop = numbers[went]
    if stop:  # what lies before that record went in
        full = True
        latest = base + stop - 2
    if full:
        keys.full = True
    keys.base_offset = base
    keys.latest_offset = latest
    keys.users = 0
    state[3] = r
    if code:
        state[0], state[1], state[2] = code, r, n
    return code
