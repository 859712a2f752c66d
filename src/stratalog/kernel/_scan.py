# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Batch headers: found, checked and put in a table; indexed.

The table is int64, 14 numbers a batch, columns as in `format.batch.BatchHeader`. Nothing here looks inside a
batch's records. Every read is checked against the end of the buffer first, whatever the bytes say.

    0         8       12       16    17   21          23               27              35
    baseOffset length  epoch    magic crc  attributes  lastOffsetDelta  baseTimestamp   maxTimestamp
    43          51             53            57      61
    producerId  producerEpoch  baseSequence  count   records …
"""

import cython
from cython.cimports.stratalog.kernel.native import crc_of, get16, get32, get64, get_u32, native_init

native_init()

# so that no last offset leaves 63 bits
HIGHEST_BASE = cython.declare(cython.longlong, 0x7FFFFFFF00000000)

# Why a scan stopped: 0 end, 1 partial, 2 zeros, 3 table full. From 10 on the batch at the end position is
# wrong: 10 length, 11 magic, 12 codec, 13 base offset, 14 last offset, 15 count, 16 gap, 17 order, 18 CRC.


def scan_batches(
    source: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    check_crc: cython.bint,
    contiguous: cython.bint,
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    info: cython.longlong[::1],
    reach: cython.Py_ssize_t = -1,
):
    """Read batch headers of source[start:end] into ``table`` from ``row`` on; return the next free row.

    Batches must end within the buffer or, with ``reach``, before that position: then only headers are read,
    no CRC is checked, and ``info[1]`` may lie past ``end``.

    ``info``: 0 out: why it stopped; 1 out: the position after the last good batch; 2 out: bytes needed
    (PARTIAL); 3 in/out: the lowest base offset allowed next (the only one, when ``contiguous``);
    4, 5 out: the numbers behind an error; 6 in/out: records outside control batches; 7 in/out: largest
    timestamp; 8 in/out: batches of producers with an id.
    """
    src: cython.pointer[cython.const[cython.uchar]]
    out: cython.pointer[cython.longlong]
    p: cython.Py_ssize_t = start
    rows: cython.Py_ssize_t = len(table) // 14
    i: cython.Py_ssize_t
    size: cython.longlong
    base: cython.longlong
    delta: cython.longlong
    count: cython.longlong
    floor: cython.longlong
    records: cython.longlong
    largest: cython.longlong
    attributes: cython.longlong
    crc: cython.longlong
    code: cython.int = 0
    if start < 0 or end > len(source) or start > end or len(info) < 9 or row < 0:
        raise ValueError("scan_batches: range outside the buffer")
    if reach < end:
        reach = end
    elif reach > end:
        check_crc = False
    info[0] = 0
    info[1] = start
    info[2] = 0
    if start == end:
        return row
    if rows <= row:
        info[0] = 3
        return row
    if cython.compiled:
        src = cython.address(source[0])
        out = cython.address(table[0])
    else:
        src = source
        out = table
    floor = info[3]
    records = info[6]
    largest = info[7]
    with cython.nogil:
        while p < end:
            if end - p < 12:
                code = 1
                info[2] = 61
                break
            size = get32(src, p + 8) + 12
            if size == 12:
                code = 2
                for i in range(min(61, end - p)):
                    if src[p + i]:
                        code = 10
                        break
                break
            if size < 61 and (
                size < 26 or end - p < 17 or src[p + 16] == 2
            ):  # an older message may be shorter
                code = 10
                info[4] = size - 12
                break
            if end - p >= 17 and src[p + 16] != 2:
                code = 11
                info[4] = src[p + 16]
                info[5] = size
                break
            if end - p < 61:
                code = 1
                info[2] = 61
                break
            base = get64(src, p)
            attributes = get16(src, p + 21)
            delta = get32(src, p + 23)
            count = get32(src, p + 57)
            if base < 0 or base > HIGHEST_BASE:
                code = 13
                info[4] = base
                break
            if delta < 0:
                code = 14
                info[4] = delta
                break
            if count < 0 or count > delta + 1 or (not attributes & 7 and count * 7 > size - 61):
                code = 15
                info[4] = count
                break
            if base != floor and (contiguous or base < floor):
                code = 16 if contiguous else 17
                info[4] = floor
                info[5] = base
                break
            if size > reach - p:
                code = 1
                info[2] = size
                break
            crc = get_u32(src, p + 17)
            if check_crc:
                info[5] = crc_of(src, p + 21, p + size)
                if info[5] != crc:
                    code = 18
                    info[4] = crc
                    break
            if attributes & 7 > 4:
                code = 12
                info[4] = attributes & 7
                break
            if row >= rows:
                code = 3
                break
            i = row * 14
            out[i] = p
            out[i + 1] = size
            out[i + 2] = base
            out[i + 3] = base + delta
            out[i + 4] = count
            out[i + 5] = get32(src, p + 12)
            out[i + 6] = attributes
            out[i + 7] = crc
            out[i + 8] = get64(src, p + 27)
            out[i + 9] = get64(src, p + 35)
            out[i + 10] = -1
            out[i + 11] = get64(src, p + 43)
            out[i + 12] = get16(src, p + 51)
            out[i + 13] = get32(src, p + 53)
            if not attributes & 0x20:
                records += count
            if out[i + 11] >= 0:
                info[8] += 1
            if out[i + 9] > largest:
                largest = out[i + 9]
            floor = base + delta + 1
            row += 1
            p += size
    info[0] = code
    info[1] = p
    info[3] = floor
    info[6] = records
    info[7] = largest
    return row


def find_row(
    table: cython.const[cython.longlong][::1],
    rows: cython.Py_ssize_t,
    column: cython.Py_ssize_t,
    least: cython.longlong,
) -> cython.Py_ssize_t:
    """The first of ``rows`` whose ``column``, which rises, is not below ``least``; ``rows`` when none is."""
    low: cython.Py_ssize_t = 0
    middle: cython.Py_ssize_t
    if rows < 0 or rows * 14 > len(table) or not 0 <= column < 14:
        raise ValueError("find_row: rows outside the table")
    while low < rows:
        middle = (low + rows) // 2
        if table[middle * 14 + column] < least:
            low = middle + 1
        else:
            rows = middle
    return low


def plan_run(
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    bounds: cython.const[cython.longlong][::1],
    skip: cython.const[cython.uchar][::1],
    max_bytes: cython.longlong,
    out: cython.longlong[::1],
):
    """Find the next rows to decode together.

    Passes over batches that hold nothing wanted (control, empty, skipped, outside ``bounds``: first and last
    offset, first and last timestamp, all inclusive). ``out``: 0 first row, 1 row after the last, 2 records,
    3 bytes of records as stored, 4 codec. A run is one compressed batch, or uncompressed ones of about
    ``max_bytes``; at least one batch unless nothing is left (first == last).
    """
    i: cython.Py_ssize_t
    codec: cython.longlong
    records: cython.longlong = 0
    stored: cython.longlong = 0
    first: cython.Py_ssize_t = -1
    masked: cython.bint = len(skip) > 0
    if (
        row < 0
        or end_row * 14 > len(table)
        or (masked and len(skip) < end_row)
        or len(bounds) < 4
        or len(out) < 5
    ):
        raise ValueError("plan_run: rows outside the table")
    out[4] = 0
    while row < end_row:
        i = row * 14
        if (
            table[i + 6] & 0x20
            or table[i + 4] == 0
            or table[i + 3] < bounds[0]
            or table[i + 2] > bounds[1]
            or table[i + 9] < bounds[2]
            or (table[i + 6] & 8 and table[i + 9] > bounds[3])
            or (masked and skip[row])
        ):
            row += 1
            continue
        codec = table[i + 6] & 7
        if first >= 0 and (codec or stored + table[i + 1] > max_bytes):
            break
        if first < 0:
            first = row
        records += table[i + 4]
        stored += table[i + 1] - 61
        row += 1
        if codec:
            out[4] = codec
            break
    out[0] = first if first >= 0 else row
    out[1] = row
    out[2] = records
    out[3] = stored
    return first >= 0


def sum_batches(
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    end_row: cython.Py_ssize_t,
    bounds: cython.const[cython.longlong][::1],
    skip: cython.const[cython.uchar][::1],
    want: cython.int,
    out: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Add up what headers tell of the records of some rows; stop at a batch whose records must be read.

    Passes over the batches that ``plan_run`` does. ``want``: 1 offsets, which headers tell of batches without
    gaps, 2 the least timestamp, which they tell of LogAppendTime and of single records. ``out`` carries on:
    0 records, 1 first offset, 2 last offset, 3 least timestamp, 4 largest timestamp, 5 batches passed over.
    Returns the row it stopped at, or ``end_row``.
    """
    i: cython.Py_ssize_t
    single: cython.bint
    masked: cython.bint = len(skip) > 0
    timed: cython.bint
    if (
        row < 0
        or end_row * 14 > len(table)
        or (masked and len(skip) < end_row)
        or len(bounds) < 4
        or len(out) < 6
    ):
        raise ValueError("sum_batches: rows outside the table")
    timed = bounds[2] > -0x7FFFFFFFFFFFFFFF - 1
    while row < end_row:
        i = row * 14
        single = table[i + 6] & 8 != 0 or table[i + 4] == 1
        if (
            table[i + 6] & 0x20
            or table[i + 4] == 0
            or table[i + 3] < bounds[0]
            or table[i + 2] > bounds[1]
            or table[i + 9] < bounds[2]
            or (single and table[i + 9] > bounds[3])
            or (masked and skip[row])
        ):
            out[5] += 1
            row += 1
            continue
        if table[i + 2] < bounds[0] or table[i + 3] > bounds[1]:
            break
        if want & 1 and table[i + 3] - table[i + 2] + 1 != table[i + 4]:
            break
        if not single and (want & 2 or timed or table[i + 9] > bounds[3]):
            break
        out[0] += table[i + 4]
        if table[i + 2] < out[1]:
            out[1] = table[i + 2]
        if table[i + 3] > out[2]:
            out[2] = table[i + 3]
        if single and table[i + 9] < out[3]:
            out[3] = table[i + 9]
        if table[i + 9] > out[4]:
            out[4] = table[i + 9]
        row += 1
    return row


def index_batches(
    table: cython.const[cython.longlong][::1],
    rows: cython.Py_ssize_t,
    interval_bytes: cython.longlong,
    base_position: cython.longlong,
    state: cython.longlong[::1],
    out: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Kafka's LogSegment.append rule for each batch in turn; fills (offset, position, timestamp, its offset).

    ``state``: 0 bytes since the last entry, 1 largest timestamp, 2 the last offset of the batch holding it.
    Returns how many entries were written to ``out``, which holds four numbers a batch.
    """
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    if rows < 0 or rows * 14 > len(table) or len(state) < 3:
        raise ValueError("index_batches: rows outside the table")
    for r in range(rows):
        i = r * 14
        if table[i + 9] > state[1]:
            state[1] = table[i + 9]
            state[2] = table[i + 3]
        if state[0] > interval_bytes:
            if (n + 1) * 4 > len(out):
                raise ValueError("index_batches: no room for an entry")
            out[n * 4] = table[i + 3]
            out[n * 4 + 1] = base_position + table[i]
            out[n * 4 + 2] = state[1]
            out[n * 4 + 3] = state[2]
            n += 1
            state[0] = 0
        state[0] += table[i + 1]
    return n
