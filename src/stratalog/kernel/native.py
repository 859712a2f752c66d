"""Bytes, checksums and key hashes for the interpreted kernel: what native.pxd gives to the compiled one.

Positions are not checked here: the callers do that. Imported by interpreted modules only.
"""

from __future__ import annotations

from crc32c import crc32c

_P61 = 0x1FFFFFFFFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF

# Only compiled code calls these.
stratalog_crc = stratalog_new_tuple = stratalog_set_item = None
stratalog_prefetch = stratalog_table_free = stratalog_table_new = stratalog_pwrite = None
stratalog_receive = stratalog_send = None


def native_init() -> None:
    """Do nothing: only the compiled kernel looks for CRC instructions."""


def get64(src: memoryview, p: int) -> int:
    return int.from_bytes(src[p : p + 8], "big", signed=True)


def get32(src: memoryview, p: int) -> int:
    return int.from_bytes(src[p : p + 4], "big", signed=True)


def get_u32(src: memoryview, p: int) -> int:
    return int.from_bytes(src[p : p + 4], "big")


def get16(src: memoryview, p: int) -> int:
    return int.from_bytes(src[p : p + 2], "big", signed=True)


def put64(dst: memoryview, p: int, value: int) -> None:
    dst[p : p + 8] = value.to_bytes(8, "big", signed=True)


def put32(dst: memoryview, p: int, value: int) -> None:
    """Write a signed or an unsigned number."""
    dst[p : p + 4] = (value if value >= 0 else value + (1 << 32)).to_bytes(4, "big")


def put16(dst: memoryview, p: int, value: int) -> None:
    dst[p : p + 2] = value.to_bytes(2, "big", signed=True)


def copy_bytes(dst: memoryview, at: int, src: memoryview, p: int, n: int) -> int:
    dst[at : at + n] = src[p : p + n]
    return at + n


def copy_short(dst: memoryview, at: int, src: memoryview, p: int, n: int, room: int) -> int:
    """Copy ``n`` bytes; compiled code may write up to ``room`` of them, which both sides must have."""
    return copy_bytes(dst, at, src, p, n)


def crc_of(src: memoryview, p: int, end: int) -> int:
    return crc32c(src[p:end])


def key_hash(src: memoryview, p: int, size: int, point_a: int, point_b: int) -> tuple[int, int]:
    """Return both parts of the hash of src[p : p + size], as stratalog_key_hash does."""
    a = b = size + 1
    end = p + size
    while p < end:
        word = int.from_bytes(src[p : min(p + 7, end)], "little")
        a = (a * point_a + word) % _P61
        b = (b * point_b + word) % _P61
        p += 7
    a = a * point_a % _P61
    b = b * point_b % _P61
    a ^= a >> 33
    a = a * 0xFF51AFD7ED558CCD & _M64
    a ^= a >> 33
    a = a * 0xC4CEB9FE1A85EC53 & _M64
    return a ^ a >> 33, b & 0xFFFFFFFF


def slot_of(key_hash: int, slots: int) -> int:
    return key_hash * slots >> 64
