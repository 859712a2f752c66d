# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Keys by their hash: a map from each key to its latest offset, and a set of exact keys.

An entry of the map is two words: 64 bits of the key's hash; 32 more bits of it and the offset (less the base
offset, plus one; zero is an empty entry). Keys themselves are not kept: two of them are taken for one if all
96 bits agree, which nobody can bring about who does not know the map's two secret points (see native.h).
An entry lies where its hash says or in the next free one. The table begins small, so that a few keys cost
little memory and stay in the processor's caches, and doubles until it is near an eighth of what it may
take; the step after that is the last. While entries move, the old and the new table together stay within
the limit. Hashes are put and found in runs: all entries of a run are asked for before the first is looked
at, so that their ways from memory overlap.

``add_rows`` fills a map from the records of batches. A map in use by one thread is refused to another that
would change it.
"""

from array import array as _array
from itertools import accumulate
from os import urandom

import cython
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
from cython.cimports.libc.string import memcmp, memset
from cython.cimports.stratalog.kernel._decode import body_end, read_record
from cython.cimports.stratalog.kernel.native import (
    key_hash,
    slot_of,
    stratalog_prefetch,
    stratalog_table_free,
    stratalog_table_new,
)

P61 = 0x1FFFFFFFFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF
FIRST_SLOTS = 1 << 15
LOW32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)
FURTHEST = cython.declare(cython.longlong, 0xFFFFFFFE)  # the largest offset less the base offset


def _points(seed):
    """Two numbers in 2 … 2**61 - 2 from a seed (None: from the system's random numbers)."""
    state = int.from_bytes(urandom(16), "little") if seed is None else seed
    made = []
    for _ in range(2):
        state = (state + 0x9E3779B97F4A7C15) & (1 << 128) - 1
        z = (state ^ state >> 64) & M64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
        made.append(2 + (z ^ z >> 31) % (P61 - 3))
        state = state >> 64 | (state & M64) << 64
    return made


def hash_key(key: bytes, seed):
    """Both parts of a key's hash in a map of that seed."""
    point_a, point_b = _points(seed)
    return _hash_view(key, point_a, point_b)


def _hash_view(key, point_a, point_b):
    none: cython.uchar = 0
    if cython.compiled:
        if len(key) == 0:
            return key_hash(cython.address(none), 0, 0, point_a, point_b)
        return key_hash(cython.address(key[0]), 0, len(key), point_a, point_b)
    return key_hash(key, 0, len(key), point_a, point_b)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    words: cython.pointer[cython.ulonglong],
    slots: cython.ulonglong,
    a: cython.ulonglong,
    b: cython.uint,
    number: cython.ulonglong,
    room: cython.bint,
    superseded: cython.pointer[cython.uchar],
    watched: cython.ulonglong,
) -> cython.int:
    """Keep the larger number for a hash. 0: it was there; 1: it is new; -1: new, and there is no room.

    The bit of the smaller number is set in ``superseded``, if it is one of those ``watched``.
    """
    i: cython.ulonglong = slot_of(a, slots)
    second: cython.ulonglong
    smaller: cython.ulonglong
    tries: cython.ulonglong = slots
    while tries > 0:
        tries -= 1
        second = words[2 * i + 1]
        if not second & LOW32:
            if not room:
                return -1
            words[2 * i] = a
            words[2 * i + 1] = cython.cast(cython.ulonglong, b) << 32 | number
            return 1
        if words[2 * i] == a and second >> 32 == b:
            smaller = second & LOW32
            if smaller < number:
                words[2 * i + 1] = cython.cast(cython.ulonglong, b) << 32 | number
            elif smaller > number:
                smaller = number
            else:
                return 0
            if smaller <= watched:
                superseded[(smaller - 1) >> 3] |= 1 << ((smaller - 1) & 7)
            return 0
        i += 1
        if i == slots:
            i = 0
    return -1


class KeyMap:
    """The latest offset of each key, within a fixed bound of memory."""

    def __init__(self, memory_bytes, base_offset, seed=None):
        """``base_offset``: records below it do not count."""
        most = memory_bytes // 16
        if most < 2 or most > 1 << 40:
            raise ValueError(f"a key map of {memory_bytes} bytes")
        if base_offset < 0:
            raise ValueError(f"base offset {base_offset}")
        slots = most
        if most > 16 * FIRST_SLOTS:  # room for the old table while the largest one is filled
            most -= most // 8
            slots = FIRST_SLOTS
        point_a, point_b = _points(seed)
        if cython.compiled:
            if self.words != cython.NULL:
                raise ValueError("a key map is made once")
            self.words = stratalog_table_new(2 * slots)
            if self.words == cython.NULL:
                raise MemoryError(f"a key map of {memory_bytes} bytes")
        else:
            self.words = _array("Q", bytes(16 * slots))
        self.slots = slots
        self.most_slots = most
        self.capacity = most * 85 // 100
        self.limit = self.capacity if slots == most else slots * 7 // 10
        self.point_a = point_a
        self.point_b = point_b
        self.used = 0
        self.users = 0
        self.full = False
        self.latest_offset = -1
        self.base_offset = base_offset
        self.watch(0)

    def watch(self, size):
        """Keep ``size`` bytes with a bit for each offset from the base offset on, beside the map's memory.

        It is set when a later record of the same key goes in. Whoever filters the same records need not look
        those up.
        """
        if self.used:
            raise ValueError("a key map is watched before the first key")
        marks = bytearray(size)
        begin(self, True)
        self.marks = marks
        self.watched = 8 * size
        if cython.compiled:
            self.superseded = cython.cast(cython.pointer[cython.uchar], PyByteArray_AS_STRING(self.marks))
        else:
            self.superseded = self.marks
        self.users = 0

    def __dealloc__(self):
        if cython.compiled:
            stratalog_table_free(self.words)

    @staticmethod
    def memory_for(records):
        """Bytes for a map that takes ``records`` different keys."""
        slots = records * 20 // 17 + 2
        return 16 * (slots if slots <= 16 * FIRST_SLOTS else slots * 8 // 7 + 8)

    def clear(self, base_offset):
        """Forget everything, for the next pass; secrets and the table reached stay."""
        if base_offset < 0:
            raise ValueError(f"base offset {base_offset}")
        begin(self, True)
        if cython.compiled:
            memset(self.words, 0, 16 * self.slots)
        else:
            self.words = _array("Q", bytes(16 * self.slots))
        self.users = 0
        self.used = 0
        self.full = False
        self.latest_offset = -1
        self.base_offset = base_offset
        self.watch(len(self.marks))

    def __len__(self):
        return self.used

    def get(self, key: bytes):
        """The latest offset of a key; None when it is not in the map."""
        a = cython.declare(cython.ulonglong[1])
        b = cython.declare(cython.uint[1])
        found = cython.declare(cython.longlong[1])
        if not cython.compiled:
            a, b, found = [0], [0], [0]
        a[0], b[0] = _hash_view(key, self.point_a, self.point_b)
        begin(self, False)
        find_many(self, a, b, 1, found)
        self.users -= 1
        return found[0] - 1 + self.base_offset if found[0] else None

    def add(self, key: bytes, offset: cython.longlong):
        """Keep ``offset`` for a key if it has no later one. False: there is no room for another key."""
        a = cython.declare(cython.ulonglong[1])
        b = cython.declare(cython.uint[1])
        number = cython.declare(cython.longlong[1])
        if not cython.compiled:
            a, b, number = [0], [0], [0]
        if offset < self.base_offset:
            return True
        number[0] = offset - self.base_offset + 1
        a[0], b[0] = _hash_view(key, self.point_a, self.point_b)
        begin(self, True)
        room: cython.bint = number[0] <= FURTHEST + 1 and put_many(self, a, b, number, 1) == 1
        self.users = 0
        if not room:
            self.full = True
        return bool(room)


def find_many(keys, a, b, n, found):
    """The number kept for each of ``n`` hashes; 0 where there is none."""
    words: cython.pointer[cython.ulonglong] = keys.words
    slots: cython.ulonglong = keys.slots
    j: cython.Py_ssize_t
    i: cython.ulonglong
    second: cython.ulonglong
    tries: cython.ulonglong
    if cython.compiled:
        for j in range(n):
            stratalog_prefetch(words + 2 * slot_of(a[j], slots))
    for j in range(n):
        i = slot_of(a[j], slots)
        tries = slots
        found[j] = 0
        while tries > 0:
            tries -= 1
            second = words[2 * i + 1]
            if not second & LOW32:
                break
            if words[2 * i] == a[j] and second >> 32 == b[j]:
                found[j] = cython.cast(cython.longlong, second & LOW32)
                break
            i += 1
            if i == slots:
                i = 0
    return 0


def put_many(keys, a, b, numbers, n):
    """Keep the larger number for each of ``n`` hashes; how many went in before there was no room."""
    j: cython.Py_ssize_t
    made: cython.int
    if cython.compiled:
        for j in range(n):
            stratalog_prefetch(keys.words + 2 * slot_of(a[j], keys.slots))
    for j in range(n):
        made = -1
        while made < 0:
            made = _put(
                keys.words,
                keys.slots,
                a[j],
                b[j],
                cython.cast(cython.ulonglong, numbers[j]),
                keys.used < keys.limit,
                keys.superseded,
                keys.watched,
            )
            if made < 0 and not _grow(keys):
                return j
        keys.used += made
    return n


def _grow(keys):
    """Move to the next larger table; False when there is none, or no memory for it."""
    old: cython.pointer[cython.ulonglong] = keys.words
    slots: cython.ulonglong = keys.slots * 2
    words: cython.pointer[cython.ulonglong]
    i: cython.ulonglong
    if keys.slots >= keys.most_slots:
        return False
    if slots > keys.most_slots // 8:
        slots = keys.most_slots
    if cython.compiled:
        words = stratalog_table_new(2 * slots)
        if words == cython.NULL:
            return False
    else:
        words = _array("Q", bytes(16 * slots))
    for i in range(keys.slots):
        if old[2 * i + 1]:
            _put(
                words,
                slots,
                old[2 * i],
                cython.cast(cython.uint, old[2 * i + 1] >> 32),
                old[2 * i + 1] & LOW32,
                True,
                keys.superseded,
                0,
            )
    keys.words = words
    keys.slots = slots
    keys.limit = keys.capacity if slots == keys.most_slots else slots * 7 // 10
    if cython.compiled:
        stratalog_table_free(old)
    return True


def begin(keys, change):
    """Take a map for use, with the GIL held: alone to ``change`` it. The user gives it back in ``users``."""
    if cython.compiled and keys.words == cython.NULL:
        raise ValueError("a key map without memory")
    if keys.users < 0 or (change and keys.users > 0):
        raise RuntimeError("a key map is in use by another thread")
    if change:
        keys.users = -1
    else:
        keys.users += 1
    return 0


class DropSet:
    """A set of keys, compared byte by byte. It does not change once it is made."""

    def __init__(self, keys):
        distinct = list(frozenset(keys))
        if not all(isinstance(key, bytes) for key in distinct):
            raise TypeError("keys to drop must be bytes")
        self.slots = 2 * len(distinct) + 1
        self.point_a, self.point_b = _points(None)
        self.blob = b"".join(distinct) or b"\0"
        self.ends = _array("q", accumulate(map(len, distinct), initial=0))
        self.table = _array("Q", bytes(8 * self.slots))
        self.count = len(distinct)
        for number, key in enumerate(distinct):
            self._place(key, number + 1)

    def _place(self, key: bytes, number: cython.ulonglong):
        a: cython.ulonglong
        i: cython.ulonglong
        a, _ = _hash_view(key, self.point_a, self.point_b)
        i = slot_of(a, self.slots)
        while self.table[i]:
            i = (i + 1) % self.slots
        self.table[i] = number

    def __len__(self):
        return self.count

    def __contains__(self, key):
        return isinstance(key, bytes) and bool(_drops_view(self, key))


def _drops_view(keys, key):
    none: cython.uchar = 0
    if cython.compiled:
        return drops(keys, cython.address(key[0]) if len(key) else cython.address(none), 0, len(key))
    return drops(keys, key, 0, len(key))


def drops(keys, src, p, size):
    """Whether src[p : p + size] is one of the keys."""
    a: cython.ulonglong
    i: cython.ulonglong
    number: cython.ulonglong
    a, _ = key_hash(src, p, size, keys.point_a, keys.point_b)
    i = slot_of(a, keys.slots)
    while keys.table[i]:
        number = keys.table[i]
        if keys.ends[number] - keys.ends[number - 1] == size:
            if cython.compiled:
                if memcmp(cython.address(keys.blob[keys.ends[number - 1]]), src + p, size) == 0:
                    return True
            elif keys.blob[keys.ends[number - 1] : keys.ends[number]] == src[p : p + size]:
                return True
        i = (i + 1) % keys.slots
    return False


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
                run_a[m], run_b[m] = key_hash(src, f[2], f[3], point_a, point_b)
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
