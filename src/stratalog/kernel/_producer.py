# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
"""What a partition remembers of one producer: its epoch, its last five batches, its open transaction.

Kafka's rules, as codes: `log.producers` turns them into errors. One source, compiled by Cython (with
_producer.pxd, by which _produce.py calls in) or run as it is; not thread-safe by itself.
"""

import cython

# Whether a batch may follow: it may, it is a repeated one, or why it may not.
ADMITTED, DUPLICATE, FENCED, UNSEQUENCED, NEW_EPOCH, GAP, NOT_TRANSACTIONAL, COORDINATOR_FENCED = range(8)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def last_sequence_of(sequence: cython.longlong, increment: cython.longlong) -> cython.longlong:
    """Add two numbers as sequences: they count 0 … 2**31 - 1 and start over; -1 is none."""
    return -1 if sequence < 0 else (sequence + increment) & 0x7FFFFFFF


@cython.cclass
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

    @cython.ccall
    def last_sequence(self) -> cython.longlong:
        """Return the sequence of the last record; -1 when it is not known."""
        return self.ring[self.newest * 4] if self.count else -1

    def last_batch(self):
        """Return (last sequence, last offset, offset delta, timestamp) of the newest batch, or None."""
        i: cython.int = self.newest * 4
        if not self.count:
            return None
        return self.ring[i], self.ring[i + 1], self.ring[i + 2], self.ring[i + 3]

    def find(self, epoch: cython.longlong, base_sequence: cython.longlong, last_sequence: cython.longlong):
        """Return (base offset, last offset, timestamp) of a remembered batch, or None."""
        i: cython.int = self.slot_of(epoch, base_sequence, last_sequence)
        if i < 0:
            return None
        return self.ring[i + 1] - self.ring[i + 2], self.ring[i + 1], self.ring[i + 3]

    @cython.cfunc
    @cython.exceptval(check=False)
    def slot_of(
        self, epoch: cython.longlong, base_sequence: cython.longlong, last_sequence: cython.longlong
    ) -> cython.int:
        k: cython.int
        i: cython.int
        if epoch != self.epoch or base_sequence < 0:
            return -1
        for k in range(self.count):
            i = (self.newest + 5 - k) % 5 * 4
            if (
                self.ring[i] == last_sequence
                and (last_sequence - self.ring[i + 2]) & 0x7FFFFFFF == base_sequence
                and self.ring[i] >= 0
            ):
                return i
        return -1

    @cython.ccall
    @cython.exceptval(check=False)
    def check(
        self,
        epoch: cython.longlong,
        base_sequence: cython.longlong,
        transactional: cython.bint,
        client: cython.bint,
    ) -> cython.int:
        """Say whether a data batch may follow: ADMITTED, or the reason against it."""
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
        """Say whether a marker may follow: ADMITTED, or the reason against it.

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

    @cython.ccall
    @cython.exceptval(check=False)
    def add(
        self,
        epoch: cython.longlong,
        last_sequence: cython.longlong,
        last_offset: cython.longlong,
        offset_delta: cython.longlong,
        timestamp: cython.longlong,
        transactional: cython.bint,
    ) -> cython.bint:
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

    @cython.cfunc
    @cython.exceptval(check=False)
    def enter(self, epoch: cython.longlong) -> cython.int:
        if epoch != self.epoch:
            self.epoch = epoch
            self.count = 0  # sequences start over with every epoch
        return 0
