# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""The numbers of a segment that is being written: what every append must compare and add up.

A single append has a budget of a few microseconds, and most of it is the system call. What remains is
kept here, in C integers: the roll policy's limits, the end of the segment, when the next index entry is
due, and the sums of the seal's open block. Nothing here decides anything: `took` answers with flags and
the writer acts on them. Not thread-safe by itself; `Appender` takes the partition's lock.
"""

from time import time_ns as _time_ns

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.stratalog.kernel._encode import one_record
from cython.cimports.stratalog.kernel._hash import join
from cython.cimports.stratalog.kernel.native import (
    native_init,
    stratalog_crc,
    stratalog_new_tuple,
    stratalog_pwrite,
    stratalog_set_item,
)

from stratalog.kernel._hash import crc32c as _crc32c

native_init()

INDEX_ENTRY_DUE = 1
BLOCK_FULL = 2
FIRST_BATCH = 4
ROOM_DUE = 8
IN_DOUBT = -2
BLOCK_BYTES = 65536
NEVER = 0x7FFFFFFFFFFFFFFF


def now_ms():
    """The wall clock in milliseconds."""
    now: cython.longlong = _time_ns()
    return now // 1000000


class BlockSums:
    """The sums of a run of batches, one behind the other, that will be a block of the seal."""

    def __init__(self, start, next_offset):
        """``next_offset`` is what the first batch must begin with to be contiguous; -1 when nobody knows."""
        self.begin(start)
        self.next_offset = next_offset
        self.contiguous = True

    def begin(self, start):
        """An empty block at ``start``; contiguity goes on from the one before."""
        self.start = start
        self.end = start
        self.crc = 0
        self.first_offset = -1
        self.last_offset = -1
        self.records = 0
        self.batches = 0
        self.min_timestamp = NEVER
        self.max_timestamp = -1

    def add(self, position, size, data, first_offset, last_offset, count, min_timestamp, max_timestamp):
        """One batch; ``data`` is its bytes or their CRC-32C. 1: the block is full. -1: it does not join."""
        if position != self.end:
            return -1
        if isinstance(data, bytes):
            if cython.compiled:
                self.crc = stratalog_crc(
                    self.crc,
                    cython.cast(cython.pointer[cython.const[cython.uchar]], PyBytes_AS_STRING(data)),
                    PyBytes_GET_SIZE(data),
                )
            else:
                self.crc = _crc32c(data, self.crc)
        elif isinstance(data, int):
            self.crc = join(self.crc, data, size) if self.batches else data
        else:
            self.crc = _crc32c(data, self.crc)
        if self.batches == 0:
            self.first_offset = first_offset
        if self.next_offset >= 0 and first_offset != self.next_offset:
            self.contiguous = False
        self.next_offset = last_offset + 1
        self.last_offset = last_offset
        self.records += count
        self.batches += 1
        if min_timestamp < self.min_timestamp:
            self.min_timestamp = min_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        self.end = position + size
        return 1 if self.end - self.start >= 65536 else 0


class Ledger:
    """Where a segment ends and what its next append must be compared with."""

    def __init__(self, base_offset, size, next_offset):
        self.size = size
        self.next_offset = next_offset
        self.last_position = -1
        self.bytes_since_entry = 0
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        self.interval_bytes = 4096
        self.roll_bytes = NEVER
        self.roll_offset = NEVER
        self.roll_timestamp = NEVER
        self.roll_now_ms = NEVER
        self.room_until = NEVER
        self.sums = None
        self.in_doubt = False

    def append_one(
        self, pwrite, value, key, headers, timestamp, leader_epoch, timestamp_type, now_ms, max_bytes
    ):
        """One record as the next batch: encoded, given to ``pwrite(data, position)``, accounted for.

        Returns the flags of `took`; -1, with nothing done, when it is larger than ``max_bytes`` or the roll
        policy must be asked first; IN_DOUBT, with nothing done, when an earlier operation was cut short.
        ``in_doubt`` is set before the write and left set: the writer clears it when all of its part is done.
        What ``pwrite`` raises passes through, and nothing is accounted for.
        """
        if self.in_doubt:
            return -2
        offset: cython.longlong = self.next_offset
        data: bytes = one_record(value, key, headers, timestamp, offset, leader_epoch, timestamp_type)
        size: cython.longlong = len(data)
        if self.next_offset != offset:
            raise RuntimeError("a record was appended while another was encoded")
        if size > max_bytes or not self.fits(size, offset, timestamp, now_ms):
            return -1
        self.in_doubt = True
        if isinstance(pwrite, DirectWrite):
            cython.cast(DirectWrite, pwrite).write(data, self.size)
        else:
            pwrite(data, self.size)
        return self.took(data, size, offset, offset, 1, timestamp, timestamp)

    def fits(self, size, last_offset, max_timestamp, now_ms):
        """Whether an append stays within every limit, so that the roll policy need not be asked."""
        return (
            self.size + size <= self.roll_bytes
            and last_offset <= self.roll_offset
            and max_timestamp <= self.roll_timestamp
            and now_ms <= self.roll_now_ms
        )

    def took(self, data, size, base_offset, last_offset, count, min_timestamp, max_timestamp):
        """Account for a batch written at the end; flags say what is due. The readable size grows last."""
        flags: cython.int = 0
        full: cython.int
        if self.size == 0:
            flags |= 4
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_entry > self.interval_bytes:
            flags |= 1
            self.bytes_since_entry = size
        else:
            self.bytes_since_entry += size
        if self.sums is not None:
            full = self.sums.add(
                self.size, size, data, base_offset, last_offset, count, min_timestamp, max_timestamp
            )
            if full < 0:
                raise ValueError(
                    f"a batch at byte {self.size} does not join the block that ends at {self.sums.end}"
                )
            if full:
                flags |= 2
        self.next_offset = last_offset + 1
        self.last_position = self.size
        self.size += size
        if self.size > self.room_until:
            flags |= 8
        return flags


class DirectWrite:
    """Positional writes to a file of the operating system, without a Python call for each.

    The file is asked for its descriptor each time: once it is closed, that is -1. What one system call does
    not write, or refuses, is left to the file's ``pwrite``: it goes on, or raises the error with its place.
    """

    def __init__(self, file):
        self.file = file

    def write(self, data, position):
        """Write all of ``data``."""
        fd: cython.int = self.file.fd
        if cython.compiled and fd >= 0:
            start: cython.pointer[cython.const[cython.uchar]]
            size: cython.Py_ssize_t = PyBytes_GET_SIZE(data)
            written: cython.longlong
            start = cython.cast(cython.pointer[cython.const[cython.uchar]], PyBytes_AS_STRING(data))
            with cython.nogil:
                written = stratalog_pwrite(fd, start, size, position)
            if written == size:
                return 0
        self.file.pwrite(data, position)
        return 0


class Appender:
    """Appends one record at a time under the partition's lock, with copies of what its writer knows.

    The copies hold while ``ready`` is set. Whoever changes one of them clears it under the lock, and the
    writer makes them again. The ledger of a segment that is no longer active stays in doubt for good, so
    that an old copy of it is never written to.
    """

    def __init__(self, writer, lock, now_ms, ends, made, partition):
        """``made`` is the class of what `append` returns: a named tuple of partition, offset, timestamp."""
        self.writer = writer
        self.lock = lock
        self.now_ms = now_ms
        self.ends = ends
        self.waiting = ends.waiting
        self.made = made
        self.partition = partition
        self.ready = False
        self.simple = False

    def renew(
        self, ledger, keyed, leader_epoch, timestamp_type, max_bytes, needs_key, acks_wait, simple=False
    ):
        """Take the copies. Under the lock. ``simple``: an append ends with its write, see `append_simple`."""
        self.ledger = ledger
        self.pwrite = None
        self.keyed = keyed
        self.leader_epoch = leader_epoch
        self.timestamp_type = timestamp_type
        self.max_bytes = max_bytes
        self.needs_key = needs_key
        self.acks_wait = acks_wait
        self.simple = simple
        self.ready = True

    def append_simple(self, value: object, key: object, headers: object, timestamp: object):
        """Append one record to a log where nothing is left to do after the write; elsewhere return None."""
        if not (self.ready and self.simple):
            return None
        if cython.compiled:
            self.lock.acquire()
            try:
                return self._append(value, key, headers, timestamp) if self.simple else None
            finally:
                self.lock.release()
        with self.lock:
            return self._append(value, key, headers, timestamp) if self.simple else None

    def append(self, value: object, key: object, headers: object, timestamp: object):
        """Append one record; return where it is, or None when the log must be made usable first."""
        if not self.ready:
            return None
        if cython.compiled:
            self.lock.acquire()  # a fourth of what a context costs; no interrupt comes before the ``try``
            try:
                return self._append(value, key, headers, timestamp)
            finally:
                self.lock.release()
        with self.lock:
            return self._append(value, key, headers, timestamp)

    def _append(self, value, key, headers, timestamp):
        now: object = self.now_ms()
        due: cython.int
        offset: cython.longlong
        ledger: Ledger = self.ledger
        if not self.ready:
            return None
        if timestamp is None or self.timestamp_type:
            timestamp = now
        else:
            self.writer.admission.check_timestamps(timestamp, timestamp, now)
        if key is None and self.needs_key:
            raise self.writer.admission.keyless()
        if self.pwrite is None:
            file: object = self.writer.active.open_for_append()
            self.pwrite = DirectWrite(file) if isinstance(getattr(file, "fd", None), int) else file.pwrite
        try:
            due = ledger.append_one(
                self.pwrite,
                value,
                key,
                headers,
                timestamp,
                self.leader_epoch,
                self.timestamp_type,
                now,
                self.max_bytes,
            )
        except Exception as error:
            self.writer.write_failed(error)
            raise
        if due == -2:
            self.ready = False
            return None
        if due < 0:
            offset = self.writer.write_one(value, key, headers, timestamp, now)
        else:
            offset = ledger.next_offset - 1
            if due or self.keyed:
                self.writer.settle_one(due, key, timestamp, now)
            if not self.acks_wait:
                self.ends.high_watermark = offset + 1
                if self.waiting:
                    self.writer.advance(offset + 1)
            ledger.in_doubt = False
        if not cython.compiled:
            return self.made(self.partition, offset, timestamp)
        made = stratalog_new_tuple(self.made, 3)
        stratalog_set_item(made, 0, self.partition)
        stratalog_set_item(made, 1, offset)
        stratalog_set_item(made, 2, timestamp)
        return made


def add_batches(
    sums: BlockSums,
    source: cython.const[cython.uchar][::1],
    base_position: cython.longlong,
    table: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Add the scanned and measured batches of ``source`` from ``row`` on, until the block is full.

    ``base_position`` is where in the file ``source`` begins. Returns the next row; -1 when a batch does not
    join the one before.
    """
    i: cython.Py_ssize_t
    position: cython.longlong
    size: cython.longlong
    if row < 0 or rows * 14 > len(table):
        raise ValueError("add_batches: rows outside the table")
    while row < rows:
        i = row * 14
        position = table[i]
        size = table[i + 1]
        if position < 0 or size <= 0 or position + size > len(source):
            raise ValueError("add_batches: a batch outside the buffer")
        if base_position + position != sums.end:
            return -1
        if cython.compiled:
            sums.crc = stratalog_crc(sums.crc, cython.address(source[position]), size)
        else:
            sums.crc = _crc32c(source[position : position + size], sums.crc)
        if sums.batches == 0:
            sums.first_offset = table[i + 2]
        if sums.next_offset >= 0 and table[i + 2] != sums.next_offset:
            sums.contiguous = False
        sums.last_offset = table[i + 3]
        sums.next_offset = table[i + 3] + 1
        if not table[i + 6] & 0x20:
            sums.records += table[i + 4]
        sums.batches += 1
        if table[i + 10] < sums.min_timestamp:
            sums.min_timestamp = table[i + 10]
        if table[i + 9] > sums.max_timestamp:
            sums.max_timestamp = table[i + 9]
        sums.end += size
        row += 1
        if sums.end - sums.start >= 65536:
            break
    return row
