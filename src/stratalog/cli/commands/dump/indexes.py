"""Dumping what lies beside a `.log`: `.index`, `.timeindex`, `.txnindex`, `.snapshot`.

Reads through ``fs``. Index files are taken entry by entry as they are, right or wrong, because seeing
what is wrong is what a dump is for; the parsers of ``format`` would refuse them. Each entry is compared
with the log it points into, by Kafka's rules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from stratalog.cli.commands.dump.logfile import Window, body_of
from stratalog.cli.commands.dump.output import MAX_INT, DumpOptions, Printer, Problems
from stratalog.errors import FormatError, UnsupportedCodecError
from stratalog.format import batch, producer_snapshot, txn_index
from stratalog.format.layout import make_struct
from stratalog.fs import File, FileSystem
from stratalog.kernel import crc32c
from stratalog.kernel import dump as kernel
from stratalog.kernel import dump_slots as at

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = make_struct(txn_index.LAYOUT)
LEGACY_HEADER_SIZE = 18  # up to the attributes, of formats 0 and 1
LEGACY_SIZE = 26  # a message of format 0 without key and value
WARM_BYTES = 8192  # the end of an index that Kafka's lookup searches first
INDEX_LIMIT_BYTES = MAX_INT
PROBE_BYTES = 1 << 16
NO_TIMESTAMP = -1


def offset_entries(data: bytes, base_offset: int) -> list[tuple[int, int]]:
    """(offset, position) of every whole entry, preallocated zeros included."""
    whole = len(data) - len(data) % OFFSET_ENTRY.size
    return [
        (base_offset + relative, position) for relative, position in OFFSET_ENTRY.iter_unpack(data[:whole])
    ]


def lookup(entries: list[tuple[int, int]], base_offset: int, target: int) -> tuple[int, int]:
    """Return the greatest entry not above target, found by Kafka's own search, which also decides for entries
    that are not sorted: the warm end first, then the rest."""
    if not entries:
        return base_offset, 0
    first_hot = max(0, len(entries) - 1 - WARM_BYTES // OFFSET_ENTRY.size)
    if entries[first_hot][0] < target:
        low, high = first_hot, len(entries) - 1
    elif entries[0][0] > target:
        return base_offset, 0
    else:
        low, high = 0, first_hot
    while low < high:
        middle = (low + high + 1) >> 1
        found = entries[middle][0]
        if found > target:
            high = middle - 1
        elif found < target:
            low = middle
        else:
            return entries[middle]
    return entries[low]


class LogProbe:
    """The log an index points into: batch headers at any position."""

    def __init__(self, file: File) -> None:
        self.size = file.size()
        self._file = file
        self._state = kernel.new_state(0)
        self._window = Window(file, self._state, self.size, PROBE_BYTES)

    def last_offset_at(self, position: int, max_bytes: int) -> int | None:
        """Return the last offset of the batch there; None without a batch of at most ``max_bytes``."""
        if not 0 <= position <= self.size:
            return None
        header = self._file.pread(batch.HEADER_SIZE, position)
        if len(header) < LEGACY_HEADER_SIZE:
            return None
        size = batch.read_field(header, "length") + batch.LENGTH_FROM
        if size < LEGACY_SIZE or size > min(max_bytes, self.size - position):
            return None
        base_offset = batch.read_field(header, "baseOffset")
        if batch.read_field(header, "magic") < 2:
            return base_offset  # an old format: its one offset is the last
        if len(header) < batch.HEADER_SIZE:
            return None
        return base_offset + batch.read_field(header, "lastOffsetDelta")

    def find(self, position: int, offset: int) -> tuple[int, int, bool] | None:
        """(last offset, greatest record timestamp, readable) of the first batch from ``position`` on that
        reaches ``offset``. Timestamps are only read when its last offset is ``offset``."""
        state, window = self._state, self._window
        if not 0 <= position <= self.size:
            return None
        window.seek(position)
        while True:
            code = kernel.read_header(window.view, state)
            if code == at.MORE:
                window.fill(state[at.NEED])
                continue
            if code in {at.DONE, at.BAD_LENGTH}:
                return None
            if code == at.OPAQUE:
                last = state[at.BASE_OFFSET] + batch.read_field(window.view, "lastOffsetDelta", state[at.POS])
                if last > offset:
                    return last, NO_TIMESTAMP, True
                if last == offset:
                    try:
                        body = body_of(window.view, state)
                    except (FormatError, UnsupportedCodecError):
                        return last, NO_TIMESTAMP, False
                    readable = kernel.read_records(body, state, None) == at.DONE
                    return last, state[at.DETAIL] if readable else NO_TIMESTAMP, readable
            state[at.POS] += state[at.SIZE]


class IndexDump:
    """Dumps the files beside a log."""

    def __init__(self, fs: FileSystem, options: DumpOptions, printer: Printer, problems: Problems) -> None:
        self._fs = fs
        self._options = options
        self._printer = printer
        self._problems = problems

    def offset_index(self, path: str, base_offset: int) -> None:
        data = self._fs.read_file(path, INDEX_LIMIT_BYTES)
        entries = offset_entries(data, base_offset)
        with self._fs.open(_beside(path, ".log")) as file:
            if not entries:
                self._printer.show("emptyIndex", f"{path} is empty.", path=path)
                return
            if self._options.index_sanity_check:
                self._sanity(path, _offset_index_fault, data, entries, base_offset)
                return
            log = LogProbe(file)
            for i, (offset, position) in enumerate(entries):
                if offset == base_offset and i > 0:
                    return  # preallocated and never written
                found = log.last_offset_at(position, self._options.max_message_size)
                if found is None:
                    self._problems.fail(
                        f"{path}: entry {i}, offset {offset}: no whole batch of at most "
                        f"{self._options.max_message_size} bytes at position {position} of the log"
                    )
                elif found != offset:
                    self._problems.mismatch("index", path, (offset, found))
                if not self._options.verify_index_only:
                    self._printer.row("offsetIndexEntry", offset=offset, position=position)

    def time_index(self, path: str, base_offset: int) -> None:
        data = self._fs.read_file(path, INDEX_LIMIT_BYTES)
        whole = len(data) - len(data) % TIME_ENTRY.size
        entries = [(time, base_offset + relative) for time, relative in TIME_ENTRY.iter_unpack(data[:whole])]
        try:
            index_data = self._fs.read_file(_beside(path, ".index"), INDEX_LIMIT_BYTES)
        except FileNotFoundError:
            index_data = b""
        with self._fs.open(_beside(path, ".log")) as file:
            if self._options.index_sanity_check:
                self._sanity(path, _time_index_fault, data, entries, base_offset)
                return
            index = offset_entries(index_data, base_offset)
            log = LogProbe(file)
            previous = NO_TIMESTAMP
            for i, (timestamp, offset) in enumerate(entries):
                if offset == base_offset and i > 0:
                    return
                _, position = lookup(index, base_offset, offset)
                self._check_time(log, path, position, timestamp, offset, previous)
                if not self._options.verify_index_only:
                    self._printer.row("timeIndexEntry", timestamp=timestamp, offset=offset)
                previous = timestamp

    def _check_time(
        self, log: LogProbe, path: str, position: int, timestamp: int, offset: int, previous: int
    ) -> None:
        found = log.find(position, offset)
        if found is None or found[0] != offset:
            self._problems.mismatch("not found", path, (offset, -1 if found is None else found[0]))
            return
        _, greatest, readable = found
        if not readable:
            self._problems.fail(f"{path}: the batch of offset {offset} cannot be read")
        elif greatest != timestamp:
            self._problems.mismatch("time", path, (timestamp, greatest))
        if previous >= timestamp:
            self._problems.mismatch("order", path, (timestamp, previous))

    def _sanity(
        self,
        path: str,
        fault_of: Callable[[bytes, list[tuple[int, int]], int], str],
        data: bytes,
        entries: list[tuple[int, int]],
        base_offset: int,
    ) -> None:
        fault = fault_of(data, entries, base_offset)
        if fault:
            self._problems.fail(f"{path}: {fault}")
        else:
            self._printer.show("sane", f"{path} passed sanity check.", path=path)

    def txn_index(self, path: str) -> None:
        data = self._fs.read_file(path, INDEX_LIMIT_BYTES)
        whole = len(data) - len(data) % TXN_ENTRY.size
        names = [name for name, _, _ in txn_index.LAYOUT]
        for values in TXN_ENTRY.iter_unpack(data[:whole]):
            version = values[0]
            if version > txn_index.VERSION:
                self._problems.fail(
                    f"Unexpected aborted transaction version {version} in transaction index {path}, "
                    f"current version is {txn_index.VERSION}"
                )
                return
            self._printer.row("abortedTxn", **dict(zip(names, values, strict=True)))

    def producer_snapshot(self, path: str) -> None:
        data = self._fs.read_file(path, INDEX_LIMIT_BYTES)
        try:
            entries = producer_snapshot.parse(data)
        except FormatError:
            self._problems.fail(_snapshot_fault(data))
            return
        for entry in entries:
            self._printer.row("producer", **_producer_facts(entry, self._printer.json))


def _producer_facts(entry: producer_snapshot.ProducerEntry, as_json: bool) -> dict[str, object]:
    first: object = entry.current_txn_first_offset if entry.current_txn_first_offset >= 0 else None
    if not as_json:
        first = "OptionalLong.empty" if first is None else f"OptionalLong[{first}]"
    facts = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": first,
        "lastTimestamp": entry.timestamp,
    }
    if entry.last_offset >= 0:  # a producer that has written nothing since its snapshot has no batch
        sequence = entry.last_sequence - entry.offset_delta
        facts |= {
            "firstSequence": sequence if sequence >= 0 else sequence + 2**31,  # sequences wrap at 2**31 - 1
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
        }
    return facts


def _beside(path: str, suffix: str) -> str:
    """Return the path of the file of another kind with the same base offset."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{name.split('.')[0]}{suffix}"


def _snapshot_fault(data: bytes) -> str:
    """Kafka's words for a snapshot it would not load, found by the same steps."""
    version = int.from_bytes(data[:2], "big", signed=True)
    count = int.from_bytes(data[6:10], "big", signed=True)
    left = len(data) - producer_snapshot.HEADER_SIZE
    reason = "null"  # what Java's exception says when a buffer is too short
    if len(data) >= 2 and version != producer_snapshot.VERSION:
        reason = f"Snapshot contained an unknown file version {version}"
    elif left >= 0 > count:
        reason = "non-nullable field producerEntries was serialized as null"
    elif 0 <= left < count:
        reason = f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining."
    elif count * producer_snapshot.ENTRY_SIZE <= left:
        stored, computed = int.from_bytes(data[2:6], "big"), crc32c(data[6:])
        if stored == computed:
            return f"Snapshot is corrupt: {left} bytes hold {count} producers"
        return f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {stored}. Computed crc: {computed}"
    return f"Snapshot failed schema validation: {reason}"


def _offset_index_fault(data: bytes, entries: list[tuple[int, int]], base_offset: int) -> str:
    if entries and entries[-1][0] < base_offset:
        return (
            f"Corrupt index found, it has non-zero size but the last offset is {entries[-1][0]} "
            f"which is less than the base offset {base_offset}"
        )
    if len(data) % OFFSET_ENTRY.size:
        return f"found {len(data)} bytes which is neither positive nor a multiple of {OFFSET_ENTRY.size}"
    return ""


def _time_index_fault(data: bytes, entries: list[tuple[int, int]], base_offset: int) -> str:
    if entries:
        first, (timestamp, offset) = entries[0][0], entries[-1]
        if timestamp < first:
            return (
                f"Corrupt time index found, it has non-zero size but the last timestamp is {timestamp} "
                f"which is less than the first timestamp {first}"
            )
        if offset < base_offset:
            return (
                f"Corrupt time index found, it has non-zero size but the last offset is {offset} "
                f"which is less than the first offset {base_offset}"
            )
    if len(data) % TIME_ENTRY.size:
        return f"found {len(data)} bytes which is neither positive nor a multiple of {TIME_ENTRY.size}"
    return ""
