# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Checksums and hashes: CRC-32C (and joining two of them), Kafka's murmur2, XXH64 of keys."""

from sys import byteorder

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.stratalog.kernel.native import native_init, stratalog_crc

if not cython.compiled:
    from crc32c import crc32c as _package_crc32c

native_init()

M64 = 0xFFFFFFFFFFFFFFFF


def crc32c(data, crc=0):
    """CRC-32C of ``data`` (any contiguous buffer), going on from ``crc``."""
    if cython.compiled:
        return _crc(data, crc)
    return _package_crc32c(data, crc)


def _crc(data, crc):
    size: cython.size_t = data.shape[0]
    if size == 0:
        return crc
    if size < 65536:
        crc = stratalog_crc(crc, cython.address(data[0]), size)
    else:
        with cython.nogil:
            crc = stratalog_crc(crc, cython.address(data[0]), size)
    return crc


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _times(a: cython.uint, b: cython.uint) -> cython.uint:
    """a * b modulo the CRC polynomial, both bit-reflected."""
    polynomial: cython.uint = 0x82F63B78
    product: cython.uint = 0
    bit: cython.int = 31
    while bit >= 0:
        # without branches: the bits are as good as random
        product ^= b & -((a >> bit) & 1)
        b = (b >> 1) ^ (polynomial & -(b & 1))
        bit -= 1
    return product


def join(crc_a, crc_b, len_b):
    """`crc32c_combine` for the kernel's other modules: A moved up by B's length, and B added."""
    shift: cython.uint = 0x80000000  # x**0
    power: cython.uint = 0x00800000  # x**8
    while len_b:
        if len_b & 1:
            shift = _times(power, shift)
        len_b >>= 1
        if len_b:
            power = _times(power, power)
    return _times(shift, crc_a) ^ crc_b


def crc32c_combine(crc_a: cython.uint, crc_b: cython.uint, len_b: cython.ulonglong):
    """The CRC-32C of A + B from the CRC of each and the length of B."""
    return join(crc_a, crc_b, len_b)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _start(key: bytes) -> cython.pointer[cython.const[cython.uchar]]:
    """The bytes of a key where they lie."""
    if cython.compiled:
        return cython.cast(cython.pointer[cython.const[cython.uchar]], PyBytes_AS_STRING(key))
    return key


def murmur2(key: bytes):
    """Kafka's murmur2, as the signed 32-bit number its Java code returns."""
    h: cython.uint
    h = _murmur2(_start(key), len(key))
    return h - 0x100000000 if h & 0x80000000 else h


def partition_for_key(key: bytes, partitions):
    """Where the Java client's default partitioner sends ``key``."""
    h: cython.uint
    h = _murmur2(_start(key), len(key))
    return (h & 0x7FFFFFFF) % partitions


def _murmur2(data, size):
    i: cython.Py_ssize_t = 0
    m: cython.uint = 0x5BD1E995
    h: cython.uint = 0x9747B28C
    k: cython.uint
    h ^= cython.cast(cython.uint, size)
    while i + 4 <= size:
        k = _little(data, i, 4)
        i += 4
        k = _mul32(k, m)
        k = _mul32(k ^ (k >> 24), m)
        h = _mul32(h, m) ^ k
    if i < size:
        h = _mul32(h ^ cython.cast(cython.uint, _little(data, i, size - i)), m)
    h = _mul32(h ^ (h >> 13), m)
    return h ^ (h >> 15)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mul32(a: cython.uint, b: cython.uint) -> cython.uint:
    if cython.compiled:
        return a * b
    return (a * b) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mul(a: cython.ulonglong, b: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return a * b
    return (a * b) & M64


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _add(a: cython.ulonglong, b: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return a + b
    return (a + b) & M64


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotate(a: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    if cython.compiled:
        return (a << bits) | (a >> (64 - bits))
    return ((a << bits) | (a >> (64 - bits))) & M64


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _little(
    data: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.ulonglong:
    i: cython.Py_ssize_t
    r: cython.ulonglong = 0
    if cython.compiled:
        for i in range(n):
            r |= cython.cast(cython.ulonglong, data[p + i]) << (8 * i)
        return r
    return int.from_bytes(data[p : p + n], "little")


P1 = cython.declare(cython.ulonglong, 0x9E3779B185EBCA87)
P2 = cython.declare(cython.ulonglong, 0xC2B2AE3D27D4EB4F)
P3 = cython.declare(cython.ulonglong, 0x165667B19E3779F9)
P4 = cython.declare(cython.ulonglong, 0x85EBCA77C2B2AE63)
P5 = cython.declare(cython.ulonglong, 0x27D4EB2F165667C5)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _round(acc: cython.ulonglong, lane: cython.ulonglong) -> cython.ulonglong:
    return _mul(_rotate(_add(acc, _mul(lane, P2)), 31), P1)


def _xxh64(data, p, end):
    """XXH64 with seed 0 of data[p:end]."""
    size: cython.Py_ssize_t = end - p
    h: cython.ulonglong
    a: cython.ulonglong
    b: cython.ulonglong
    c: cython.ulonglong
    d: cython.ulonglong
    if size >= 32:
        a = _add(P1, P2)
        b = P2
        c = 0
        d = _add(0, -P1) if cython.compiled else (-P1) & M64
        while p + 32 <= end:
            a = _round(a, _little(data, p, 8))
            b = _round(b, _little(data, p + 8, 8))
            c = _round(c, _little(data, p + 16, 8))
            d = _round(d, _little(data, p + 24, 8))
            p += 32
        h = _add(_add(_rotate(a, 1), _rotate(b, 7)), _add(_rotate(c, 12), _rotate(d, 18)))
        h = _add(_mul(h ^ _round(0, a), P1), P4)
        h = _add(_mul(h ^ _round(0, b), P1), P4)
        h = _add(_mul(h ^ _round(0, c), P1), P4)
        h = _add(_mul(h ^ _round(0, d), P1), P4)
    else:
        h = P5
    h = _add(h, size)
    while p + 8 <= end:
        h = _add(_mul(_rotate(h ^ _round(0, _little(data, p, 8)), 27), P1), P4)
        p += 8
    if p + 4 <= end:
        h = _add(_mul(_rotate(h ^ _mul(_little(data, p, 4), P1), 23), P2), P3)
        p += 4
    while p < end:
        h = _mul(_rotate(h ^ _mul(_little(data, p, 1), P5), 11), P1)
        p += 1
    h = _mul(h ^ (h >> 33), P2)
    h = _mul(h ^ (h >> 29), P3)
    return h ^ (h >> 32)


def hash64(key: bytes):
    """XXH64 (seed 0) of a key, unsigned."""
    return _xxh64(_start(key), 0, len(key))


def key_row(key: bytes, offset: cython.longlong):
    """A row of the active key index: the hash of ``key`` and ``offset``, each as 8 bytes of this machine."""
    row: cython.pointer[cython.ulonglong]
    if cython.compiled:
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, 16)
        row = cython.cast(cython.pointer[cython.ulonglong], PyBytes_AS_STRING(made))
        row[0] = _xxh64(_start(key), 0, len(key))
        row[1] = cython.cast(cython.ulonglong, offset)
        return made
    return hash64(key).to_bytes(8, byteorder) + offset.to_bytes(8, byteorder, signed=True)


def key_rows(hashes: cython.const[cython.ulonglong][::1], offsets: cython.const[cython.longlong][::1]):
    """Rows like those of `key_row`, one behind the other, from as many hashes as offsets."""
    row: cython.pointer[cython.ulonglong]
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(hashes)
    if len(offsets) != n:
        raise ValueError(f"{n} hashes for {len(offsets)} offsets")
    if cython.compiled:
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, n * 16)
        row = cython.cast(cython.pointer[cython.ulonglong], PyBytes_AS_STRING(made))
        for i in range(n):
            row[2 * i] = hashes[i]
            row[2 * i + 1] = cython.cast(cython.ulonglong, offsets[i])
        return made
    rows = bytearray()
    for i in range(n):
        rows += hashes[i].to_bytes(8, byteorder) + offsets[i].to_bytes(8, byteorder, signed=True)
    return bytes(rows)


def hash_keys(
    data: cython.const[cython.uchar][::1],
    ends: cython.const[cython.int][::1],
    valid: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    rows: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    kept: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Hash every key of an Arrow binary column (buffers ``ends``, ``data``, ``valid``) that is not null.

    Fills ``hashes`` and the matching record ``kept`` offsets, and returns how many.
    """
    keys: cython.pointer[cython.const[cython.uchar]]
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = len(data)
    if rows < 0 or len(ends) <= rows or len(offsets) < rows or len(hashes) < rows or len(kept) < rows:
        raise ValueError("hash_keys: buffers too short")
    if len(valid) * 8 < rows:
        raise ValueError("hash_keys: buffers too short")
    if cython.compiled:
        keys = cython.address(data[0]) if size else cython.NULL
    else:
        keys = data
    for i in range(rows):
        if not (valid[i >> 3] >> (i & 7)) & 1:
            continue
        if ends[i] < 0 or ends[i + 1] < ends[i] or ends[i + 1] > size:
            raise ValueError("hash_keys: key outside its buffer")
        hashes[n] = _xxh64(keys, ends[i], ends[i + 1])
        kept[n] = offsets[i]
        n += 1
    return n
