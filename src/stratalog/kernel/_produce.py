# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Ready-made batches: checked to the last record, compared with their producers, placed and written.

`Producer` is what a partition remembers of one producer; Kafka's rules are codes there, and the writer turns
them into errors. `AppendInfo` carries the batches of one append from step to step. Its table is the one
`_scan` makes, 14 numbers a batch. Nothing is copied: offsets, leader epoch and, with LogAppendTime,
timestamps are changed in the caller's buffer, batches that stay in one segment are one write, and the CRC of
a whole batch follows from the one it carries.

Every read is checked against the end of the buffer first, whatever the bytes say. Not thread-safe by itself.
"""

from array import array as _array

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.stratalog.kernel._decode import read_record
from cython.cimports.stratalog.kernel._hash import join
from cython.cimports.stratalog.kernel._ledger import Ledger
from cython.cimports.stratalog.kernel.native import (
    crc_of,
    get16,
    get32,
    get64,
    get_u32,
    native_init,
    put16,
    put32,
    put64,
)

native_init()

JOIN_FROM = cython.declare(cython.Py_ssize_t, 2048)
"""Up to here the CRC of a whole batch is computed sooner than joined."""

# Whether a batch may follow: 0, it may; else it is a repeated one, or why it may not.
DUPLICATE, FENCED, UNSEQUENCED, NEW_EPOCH, GAP, NOT_TRANSACTIONAL, COORDINATOR_FENCED = range(1, 8)


def last_sequence_of(sequence, increment):
    """Add two numbers as sequences: they count 0 … 2**31 - 1 and start over; -1 is none."""
    return -1 if sequence < 0 else (sequence + increment) & 0x7FFFFFFF


class Producer:
    """One producer's epoch, last five batches and open transaction; -1 where there is none."""

    def __init__(self):
        if not cython.compiled:
            self.ring = [0] * 20
        self.epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = -1
        self.count = 0
        self.newest = 4

    def copy(self):
        """Return an equal one that changes by itself."""
        twin: Producer = Producer()
        i: cython.int
        twin.epoch = self.epoch
        twin.coordinator_epoch = self.coordinator_epoch
        twin.last_timestamp = self.last_timestamp
        twin.txn_first_offset = self.txn_first_offset
        twin.count = self.count
        twin.newest = self.newest
        for i in range(20):
            twin.ring[i] = self.ring[i]
        return twin

    def last_sequence(self):
        """Return the sequence of the last record; -1 when it is not known."""
        return self.ring[self.newest * 4] if self.count else -1

    def last_batch(self):
        """Return (last sequence, last offset, offset delta, timestamp) of the newest batch, or None."""
        i: cython.int = self.newest * 4
        if not self.count:
            return None
        return self.ring[i], self.ring[i + 1], self.ring[i + 2], self.ring[i + 3]

    def find(
        self,
        epoch: cython.longlong,
        base_sequence: cython.longlong,
        last_sequence: cython.longlong,
        transactional: cython.bint,
    ):
        """Return (base offset, last offset, timestamp) of a remembered batch, or None."""
        i: cython.int = self.slot_of(epoch, base_sequence, last_sequence, transactional)
        if i < 0:
            return None
        return self.ring[i + 1] - self.ring[i + 2], self.ring[i + 1], self.ring[i + 3]

    def slot_of(self, epoch, base_sequence, last_sequence, transactional):
        """Return where a batch is in the ring; -1 if it is none of the last five.

        One of a transaction is only compared with those of the transaction that is open: a sequence from
        before the last marker that comes again is another record, of a client that gave the first one up.
        Said to be there, it would be lost.
        """
        k: cython.int
        i: cython.int
        if epoch != self.epoch or base_sequence < 0 or (transactional and self.txn_first_offset < 0):
            return -1
        for k in range(self.count):
            i = (self.newest + 5 - k) % 5 * 4
            if (
                self.ring[i] == last_sequence
                and (last_sequence - self.ring[i + 2]) & 0x7FFFFFFF == base_sequence
                and self.ring[i] >= 0
                and (not transactional or self.ring[i + 1] >= self.txn_first_offset)
            ):
                return i
        return -1

    def check(self, epoch, base_sequence, transactional, client):
        """Say whether a data batch may follow: 0, or the reason against it."""
        last: cython.longlong
        if epoch < self.epoch:
            return 2
        if client:
            if base_sequence < 0:
                return 3
            if (
                self.epoch >= 0
            ):  # else nothing is known, perhaps since retention took it: any sequence will do
                if epoch != self.epoch:
                    if base_sequence != 0:
                        return 4
                else:
                    last = self.last_sequence()
                    if base_sequence != last + 1 and not (base_sequence == 0 and last == 0x7FFFFFFF):
                        return 5
        if self.txn_first_offset >= 0 and not transactional:
            return 6
        return 0

    def check_marker(
        self, epoch: cython.longlong, coordinator_epoch: cython.longlong, transaction_version: cython.int
    ) -> cython.int:
        """Say whether a marker may follow: 0, or the reason against it.

        From transaction version 2 on (KIP-890) every marker brings a new epoch: the present one is that of a
        marker sent again, which is only right when nothing is open any more.
        """
        if epoch < self.epoch:
            return 2
        if transaction_version >= 2 and epoch == self.epoch and self.txn_first_offset >= 0:
            return 2
        if coordinator_epoch < self.coordinator_epoch:
            return 7
        return 0

    def add(self, epoch, last_sequence, last_offset, offset_delta, timestamp, transactional):
        """Take an appended data batch in; True when it begins a transaction."""
        i: cython.int
        self.enter(epoch)
        self.newest = (self.newest + 1) % 5
        if self.count < 5:
            self.count += 1
        i = self.newest * 4
        self.ring[i] = last_sequence
        self.ring[i + 1] = last_offset
        self.ring[i + 2] = offset_delta
        self.ring[i + 3] = timestamp
        self.last_timestamp = timestamp
        if transactional and self.txn_first_offset < 0:
            self.txn_first_offset = last_offset - offset_delta
            return True
        return False

    def end(
        self, epoch: cython.longlong, coordinator_epoch: cython.longlong, timestamp: cython.longlong
    ) -> cython.longlong:
        """Take a marker in; return the first offset of the transaction it ended, -1 when none was open."""
        first: cython.longlong = self.txn_first_offset
        self.txn_first_offset = -1
        self.enter(epoch)
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = timestamp
        return first

    def enter(self, epoch):
        if epoch != self.epoch:
            self.epoch = epoch
            self.count = 0  # sequences start over with every epoch
        return 0


# Why `AppendInfo.check` refuses a batch, beside the codes of _decode.py: -30 no batches, -31 header, -32 too
# large, -33 offsets, -34 no records, -35 control, -36 LogAppendTime, -37 delete horizon, -38 no sequence,
# -39 no producer, -40 timestamp bounds, -41 the table is full.


@cython.cclass
class AppendInfo:
    """The batches of one append: what they are, where they go, what is wrong with them.

    Steps, in this order: `check` (then `walk` for each compressed batch), `admit`, `place`, `write` until no
    row is left (`account` after each flag is settled), `remember`, `release`.
    """

    source = cython.declare(cython.uchar[::1])
    table = cython.declare(cython.longlong[::1])
    rules = cython.declare(cython.longlong[5])
    state = cython.declare(cython.longlong[6])
    data = cython.declare(object, visibility="readonly")
    n = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    compressed = cython.declare(cython.longlong, visibility="readonly")
    producers = cython.declare(cython.longlong, visibility="readonly")
    batch_index = cython.declare(cython.Py_ssize_t, visibility="readonly")
    record_index = cython.declare(cython.longlong, visibility="readonly")
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    number = cython.declare(cython.longlong, visibility="readonly")
    base_offset = cython.declare(cython.longlong, visibility="readonly")
    last_offset = cython.declare(cython.longlong, visibility="readonly")
    timestamp = cython.declare(cython.longlong, visibility="readonly")
    row = cython.declare(cython.Py_ssize_t, visibility="readonly")
    written = cython.declare(cython.Py_ssize_t, visibility="readonly")

    def __init__(self):
        if not cython.compiled:
            self.rules, self.state = [0] * 5, [0] * 6
        self.table = _array("q", bytes(8 * 14 * 8))
        self.release()

    def release(self):
        """Let the buffer go and forget its batches."""
        self.source = None
        self.data = None
        self.n = self.size = self.row = self.written = 0
        self.compressed = self.producers = 0
        self.batch_index = self.record_index = self.position = self.number = -1
        self.base_offset = self.last_offset = self.timestamp = -1

    def check(
        self,
        data: object,
        max_bytes: cython.longlong,
        keyed: cython.bint,
        client: cython.bint,
        oldest: cython.longlong,
        newest: cython.longlong,
    ) -> cython.int:
        """Check the batches of a writable buffer; 0, or why not, with ``batch_index`` and the like set.

        Each has at most ``max_bytes``, a valid header and CRC, offset deltas 0, 1, 2 …, with ``keyed`` a key
        on every record, and timestamps from ``oldest`` to ``newest`` (-1, no timestamp, is always right).
        Nobody may send control batches, LogAppendTime or a delete horizon; a ``client`` must number its
        records. The records of compressed batches are left to `walk`. Offsets in the buffer mean nothing.
        """
        size: cython.Py_ssize_t
        rows: cython.Py_ssize_t
        code: cython.int
        src: cython.pointer[cython.const[cython.uchar]]
        t: cython.pointer[cython.longlong]
        rules: cython.pointer[cython.longlong]
        state: cython.pointer[cython.longlong]
        grown: object
        self.release()
        self.source = data
        self.data = data
        size = len(self.source)
        self.size = size
        if size == 0:
            self.batch_index = 0
            return -30
        self.rules[0] = max_bytes
        self.rules[1] = keyed
        self.rules[2] = client
        self.rules[3] = oldest
        self.rules[4] = newest
        self.state[0] = 0  # the next row
        self.state[1] = 0  # the next byte
        self.state[2] = -1  # the record that is wrong
        self.state[3] = -1  # the number that is wrong in it
        self.state[4] = 0  # compressed batches
        self.state[5] = 0  # batches with a producer
        while True:
            rows = len(self.table) // 14
            if cython.compiled:
                src = cython.address(self.source[0])
                t = cython.address(self.table[0])
                rules = self.rules
                state = self.state
            else:
                src, t, rules, state = self.source, self.table, self.rules, self.state
            if size > 65536:
                with cython.nogil:
                    code = _check(src, size, t, rows, rules, state)
            else:
                code = _check(src, size, t, rows, rules, state)
            if code != -41:
                break
            grown = _array("q", bytes(8 * 14 * rows * 4))
            grown[: rows * 14] = _array("q", self.table)
            self.table = grown
        self.compressed = self.state[4]
        self.producers = self.state[5]
        if code:
            self.batch_index = self.state[0]
            self.position = self.state[1]
            self.record_index = self.state[2]
            self.number = self.state[3]
        else:
            self.n = self.state[0]
        return code

    def walk(self, row: cython.Py_ssize_t, body: cython.const[cython.uchar][::1]) -> cython.int:
        """Check the records of a compressed batch, decompressed in ``body``; 0, or why not, as `check`."""
        code: cython.int
        size: cython.Py_ssize_t = len(body)
        if row < 0 or row >= self.n:
            raise ValueError("walk: a row outside the table")
        if cython.compiled:
            if size == 0:
                code = -12
            elif size > 65536:
                code = self.walk_unlocked(row, body)
            else:
                code = _walk(
                    cython.address(body[0]),
                    0,
                    size,
                    cython.address(self.table[row * 14]),
                    self.rules,
                    self.state,
                )
        else:
            part = memoryview(self.table)[row * 14 : row * 14 + 14]
            code = _walk(body, 0, size, part, self.rules, self.state) if size else -12
        if code:
            self.batch_index = row
            self.position = self.table[row * 14]
            self.record_index = self.state[2]
            self.number = self.state[3]
        return code

    @cython.cfunc
    def walk_unlocked(self, row: cython.Py_ssize_t, body: cython.const[cython.uchar][::1]) -> cython.int:
        code: cython.int = 0
        size: cython.Py_ssize_t = len(body)
        src: cython.pointer[cython.const[cython.uchar]]
        t: cython.pointer[cython.longlong]
        rules: cython.pointer[cython.longlong]
        state: cython.pointer[cython.longlong]
        if cython.compiled:
            src = cython.address(body[0])
            t = cython.address(self.table[row * 14])
            rules = self.rules
            state = self.state
            with cython.nogil:
                code = _walk(src, 0, size, t, rules, state)
        return code

    def header(self, row: cython.Py_ssize_t):
        """Return the 14 numbers of a batch, as a scan's table has them."""
        if row < 0 or row >= self.n:
            raise IndexError("no such batch")
        return tuple(self.table[row * 14 : row * 14 + 14])

    def replace(self, data: object, places: object):
        """Go on with the same batches in other bytes: (position, size, attributes, CRC) of each."""
        row: cython.Py_ssize_t
        position: cython.Py_ssize_t
        size: cython.Py_ssize_t
        source: cython.uchar[::1] = data
        if len(places) != self.n:
            raise ValueError("replace: one place for each batch")
        for row, place in enumerate(places):
            position, size = place[0], place[1]
            if position < 0 or size < 61 or size > len(source) - position:
                raise ValueError("replace: a batch outside the buffer")
            self.table[row * 14] = position
            self.table[row * 14 + 1] = size
            self.table[row * 14 + 6] = place[2]
            self.table[row * 14 + 7] = place[3]
        self.source = source
        self.data = data
        self.size = len(source)

    def admit(self, producers: dict, client: cython.bint) -> cython.int:
        """Compare the batches with what is known of their producers, by id. Changes nothing.

        0; DUPLICATE, when the only batch is one of the producer's last five in its epoch: then
        ``base_offset``, ``last_offset`` and ``timestamp`` are those of the first time; or the reason against
        the batch ``batch_index``.
        """
        r: cython.Py_ssize_t
        i: cython.Py_ssize_t
        k: cython.int
        code: cython.int
        delta: cython.longlong
        known: Producer
        trial: dict
        if not self.producers:
            return 0
        if self.n == 1:
            known = producers.get(self.table[11])
            if known is None:
                return 0
            delta = self.table[3] - self.table[2]
            k = known.slot_of(
                self.table[12],
                self.table[13],
                last_sequence_of(self.table[13], delta),
                self.table[6] & 0x10 != 0,
            )
            if k >= 0:
                self.last_offset = known.ring[k + 1]
                self.base_offset = known.ring[k + 1] - known.ring[k + 2]
                self.timestamp = known.ring[k + 3]
                return 1
            code = known.check(self.table[12], self.table[13], self.table[6] & 0x10 != 0, client)
            if code:
                self.batch_index = 0
            return code
        trial = {}
        for r in range(self.n):
            i = r * 14
            if self.table[i + 11] < 0:
                continue
            known = trial.get(self.table[i + 11])
            if known is None:
                known = producers.get(self.table[i + 11])
                known = Producer() if known is None else known.copy()
                trial[self.table[i + 11]] = known
            code = known.check(self.table[i + 12], self.table[i + 13], self.table[i + 6] & 0x10 != 0, client)
            if code:
                self.batch_index = r
                return code
            delta = self.table[i + 3] - self.table[i + 2]
            known.add(
                self.table[i + 12],
                last_sequence_of(self.table[i + 13], delta),
                delta,
                delta,
                self.table[i + 9],
                self.table[i + 6] & 0x10 != 0,
            )
        return 0

    def place(
        self,
        base_offset: cython.longlong,
        leader_epoch: cython.int,
        append_time: cython.bint,
        append_time_ms: cython.longlong,
    ) -> cython.longlong:
        """Write offsets and leader epoch into the batches; return the offset after the last.

        A batch whose largest timestamp was not that of its records is corrected; with ``append_time`` all
        become LogAppendTime. Only where that changes bytes under the CRC is it computed again.
        """
        r: cython.Py_ssize_t
        i: cython.Py_ssize_t
        p: cython.Py_ssize_t
        size: cython.Py_ssize_t
        attributes: cython.longlong
        largest: cython.longlong
        src: cython.pointer[cython.uchar]
        t: cython.pointer[cython.longlong]
        if self.n == 0:
            return base_offset
        if cython.compiled:
            src = cython.address(self.source[0])
            t = cython.address(self.table[0])
        else:
            src, t = self.source, self.table
        self.base_offset = base_offset
        for r in range(self.n):
            i = r * 14
            p = t[i]
            size = t[i + 1]
            put64(src, p, base_offset)
            put32(src, p + 12, leader_epoch)
            attributes = t[i + 6]
            largest = t[i + 9]
            if append_time:
                attributes |= 8
                largest = append_time_ms
                t[i + 10] = largest
            t[i + 5] = leader_epoch
            t[i + 3] += base_offset - t[i + 2]
            t[i + 2] = base_offset
            if attributes != t[i + 6] or largest != get64(src, p + 35):
                t[i + 6] = attributes
                t[i + 9] = largest
                put16(src, p + 21, attributes)
                put64(src, p + 35, largest)
                t[i + 7] = crc_of(src, p + 21, p + size)
                put32(src, p + 17, t[i + 7])
            base_offset = t[i + 3] + 1
        self.last_offset = base_offset - 1
        return base_offset

    def next_batch(self):
        """Return size, base offset, last offset and largest timestamp of the first batch not yet written."""
        i: cython.Py_ssize_t = self.row * 14
        if self.row >= self.n:
            raise IndexError("every batch is written")
        return self.table[i + 1], self.table[i + 2], self.table[i + 3], self.table[i + 9]

    def write(
        self, ledger: Ledger, pwrite: object, now_ms: cython.longlong, forced: cython.bint
    ) -> cython.int:
        """Give the next batches that stay in the ledger's segment to ``pwrite``, in one call, and account.

        Of an empty segment only the first: the limits of the roll policy follow from it.
        Returns -1, with nothing done, when the roll policy must be asked about the next one first; ``forced``
        says that it was. Else what `account` returns. The ledger's ``in_doubt`` is set before the write: the
        writer clears it when all of its part is done. What ``pwrite`` raises passes through, and nothing is
        accounted for.
        """
        end: cython.Py_ssize_t = self.row
        i: cython.Py_ssize_t
        start: cython.longlong
        size: cython.longlong = 0
        largest: cython.longlong = -1
        if self.row >= self.n or self.row != self.written:
            raise ValueError("write: no batch is left, or one is not accounted for")
        start = self.table[end * 14]
        while end < self.n:
            i = end * 14
            if end > self.row and (ledger.size == 0 or self.table[i] != start + size):
                break
            if self.table[i + 9] > largest:
                largest = self.table[i + 9]
            if not ledger.fits(size + self.table[i + 1], self.table[i + 3], largest, now_ms) and not (
                forced and end == self.row
            ):
                break
            size += self.table[i + 1]
            end += 1
        if end == self.row:
            return -1
        ledger.in_doubt = True
        if size == self.size:
            pwrite(self.data, ledger.size)
        else:
            pwrite(memoryview(self.data)[start : start + size], ledger.size)
        self.written = end
        return self.account(ledger)

    @cython.ccall
    def account(self, ledger: Ledger) -> cython.int:
        """Account for written batches until one makes something due; return its flags, 0 when none is left.

        ``last_offset`` and ``timestamp`` (the largest) are those of the batch it stopped at.
        """
        i: cython.Py_ssize_t
        p: cython.Py_ssize_t
        size: cython.Py_ssize_t
        crc: cython.uint
        summed: object
        flags: cython.int
        while self.row < self.written:
            i = self.row * 14
            p = self.table[i]
            size = self.table[i + 1]
            if size <= JOIN_FROM:
                if cython.compiled:
                    start = cython.cast(cython.p_char, cython.address(self.source[p]))
                    summed = PyBytes_FromStringAndSize(start, size)
                else:
                    summed = bytes(self.source[p : p + size])
            else:
                if cython.compiled:
                    crc = crc_of(cython.address(self.source[p]), 0, 21)
                else:
                    crc = crc_of(self.source, p, p + 21)
                summed = join(crc, cython.cast(cython.uint, self.table[i + 7]), size - 21)
            flags = ledger.took(
                summed,
                size,
                self.table[i + 2],
                self.table[i + 3],
                self.table[i + 4],
                self.table[i + 10],
                self.table[i + 9],
            )
            self.row += 1
            if flags:
                self.last_offset = self.table[i + 3]
                self.timestamp = self.table[i + 9]
                return flags
        self.last_offset = self.table[(self.row - 1) * 14 + 3]
        return 0

    def remember(self, producers: dict, open_txns: dict, first: cython.Py_ssize_t):
        """Take the batches from row ``first`` to the last written into the producers' state.

        ``open_txns``: first offset -> producer id of the transactions that begin.
        """
        r: cython.Py_ssize_t
        i: cython.Py_ssize_t
        delta: cython.longlong
        known: Producer
        for r in range(first, self.row):
            i = r * 14
            if self.table[i + 11] < 0:
                continue
            known = producers.get(self.table[i + 11])
            if known is None:
                known = Producer()
                producers[self.table[i + 11]] = known
            delta = self.table[i + 3] - self.table[i + 2]
            if known.add(
                self.table[i + 12],
                last_sequence_of(self.table[i + 13], delta),
                self.table[i + 3],
                delta,
                self.table[i + 9],
                self.table[i + 6] & 0x10 != 0,
            ):
                open_txns[self.table[i + 2]] = self.table[i + 11]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check(
    src: cython.pointer[cython.const[cython.uchar]],
    size: cython.Py_ssize_t,
    t: cython.pointer[cython.longlong],
    rows: cython.Py_ssize_t,
    rules: cython.pointer[cython.longlong],
    state: cython.pointer[cython.longlong],
) -> cython.int:
    """`AppendInfo.check` from row state[0] and byte state[1] on; both end at the batch that was refused."""
    p: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, state[1])
    i: cython.Py_ssize_t
    length: cython.longlong
    delta: cython.longlong
    count: cython.longlong
    attributes: cython.longlong
    crc: cython.longlong
    stored: cython.longlong
    code: cython.int = 0
    while p < size:
        state[1] = p
        if state[0] >= rows:
            return -41
        if size - p < 61 or src[p + 16] != 2:
            return -31
        length = get32(src, p + 8) + 12
        if length < 61 or length > size - p:
            return -31
        if length > rules[0]:
            state[3] = length
            return -32
        attributes = get16(src, p + 21)
        delta = get32(src, p + 23)
        count = get32(src, p + 57)
        crc = crc_of(src, p + 21, p + cython.cast(cython.Py_ssize_t, length))
        stored = get_u32(src, p + 17)
        if crc != stored or attributes & 7 > 4 or delta < 0 or count < 0:
            return -31
        if count != delta + 1:
            state[3] = count
            return -34 if count == 0 else -33
        if attributes & 0x20:
            return -35
        if attributes & 8:
            return -36
        if attributes & 0x40:
            return -37
        i = cython.cast(cython.Py_ssize_t, state[0]) * 14
        t[i] = p
        t[i + 1] = length
        t[i + 2] = 0
        t[i + 3] = delta
        t[i + 4] = count
        t[i + 5] = get32(src, p + 12)
        t[i + 6] = attributes
        t[i + 7] = crc
        t[i + 8] = get64(src, p + 27)
        t[i + 9] = get64(src, p + 35)
        t[i + 10] = -1
        t[i + 11] = get64(src, p + 43)
        t[i + 12] = get16(src, p + 51)
        t[i + 13] = get32(src, p + 53)
        if t[i + 11] >= 0:
            state[5] += 1
            if rules[2] and t[i + 13] < 0:
                state[3] = t[i + 11]
                return -38
        elif attributes & 0x10:
            return -39
        if attributes & 7:
            state[4] += 1
        else:
            if cython.compiled:
                code = _walk(src, p + 61, p + cython.cast(cython.Py_ssize_t, length), t + i, rules, state)
            else:
                code = _walk(src, p + 61, p + length, memoryview(t)[i : i + 14], rules, state)
            if code:
                return code
        state[0] += 1
        p += cython.cast(cython.Py_ssize_t, length)
    state[1] = p
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    t: cython.pointer[cython.longlong],
    rules: cython.pointer[cython.longlong],
    state: cython.pointer[cython.longlong],
) -> cython.int:
    """Check the records in src[p:end] of the batch at ``t``; fill in its least and largest timestamp."""
    f = cython.declare(cython.longlong[9])
    n: cython.longlong = 0
    least: cython.longlong = 0
    largest: cython.longlong = 0
    if not cython.compiled:
        f = [0] * 9
    if t[4] > (end - p) // 7:
        state[2] = 0
        return -12
    while n < t[4]:
        state[2] = n
        p = read_record(src, p, end, f, t[8])
        if p < 0:
            return cython.cast(cython.int, p)
        if f[1] != n:
            return -10
        if f[0]:
            return -13
        if rules[1] and f[3] < 0:
            return -14
        if (f[8] < rules[3] or f[8] > rules[4]) and f[8] != -1:
            state[3] = f[8]
            return -40
        if n == 0:
            least = f[8]
            largest = f[8]
        elif f[8] < least:
            least = f[8]
        elif f[8] > largest:
            largest = f[8]
        n += 1
    if p != end:
        return -11
    state[2] = -1
    t[9] = largest
    t[10] = least
    return 0
