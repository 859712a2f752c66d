"""Dumping a `.log` (or a KRaft `.checkpoint`): batch by batch, bounded memory, damage survived.

Reads one file through ``fs`` in pieces, a piece at least one batch large. Kafka's form is printed by the
kernel straight into the output block. Damage that ends Kafka's tool is reported on the error stream: a record
that cannot be read costs the rest of its batch, a length no batch can have costs the rest of the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from stratalog.cli.commands.dump.decoders import Decoder, control_facts, control_text, reason
from stratalog.cli.commands.dump.output import MAX_INT, DumpOptions, Output, Printer, Problems
from stratalog.cli.commands.files import json_bytes
from stratalog.errors import CorruptionError, FormatError, UnsupportedCodecError
from stratalog.format import batch, codecs
from stratalog.fs import File
from stratalog.kernel import crc32c
from stratalog.kernel import dump as kernel
from stratalog.kernel import dump_slots as at

CHUNK_BYTES = 1 << 20
CONTROL = 0x20
DELETE_HORIZON = 0x40


class Window:
    """The part of a file in memory, from ``state[BASE]`` on; grows to one batch when that is larger."""

    def __init__(self, file: File, state: memoryview, limit: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._file = file
        self._state = state
        self._limit = limit
        self._data = bytearray(chunk_bytes)
        self.view = memoryview(self._data)
        self.fill(0)

    @property
    def position(self) -> int:
        """Of the batch being looked at, in the file."""
        return int(self._state[at.BASE] + self._state[at.POS])

    def seek(self, position: int) -> None:
        """Look at the batch there, without reading when it is in memory already."""
        state = self._state
        end = state[at.BASE] + state[at.END]
        if end < self._limit:
            state[at.FLAGS] &= ~at.FINAL
        if state[at.BASE] <= position <= end:
            state[at.POS] = position - state[at.BASE]
            return
        state[at.BASE] = position
        state[at.POS] = state[at.END] = 0
        self.fill(0)

    def fill(self, need: int) -> None:
        """Drop what is behind, read what fits, and say FINAL when nothing can follow."""
        state = self._state
        kept = bytes(self.view[state[at.POS] : state[at.END]])
        state[at.BASE] += state[at.POS]
        state[at.POS] = 0
        left = self._limit - state[at.BASE]
        if need > len(self.view) and need <= left:
            self._data = bytearray(need)
            self.view = memoryview(self._data)
        self.view[: len(kept)] = kept
        wanted = min(len(self.view), left) - len(kept)
        got = 0
        if wanted > 0:
            got = self._file.pread_into(self.view[len(kept) : len(kept) + wanted], state[at.BASE] + len(kept))
        state[at.END] = len(kept) + got
        # A batch that asks for more than the file has, or a file that shrank: this is the end.
        if state[at.BASE] + state[at.END] >= self._limit or need > left or got < wanted:
            state[at.FLAGS] |= at.FINAL


def body_of(view: memoryview, state: memoryview) -> memoryview:
    """Return the records of the batch the slots describe, decompressed; BODY and BODY_END then span them."""
    body = view[state[at.BODY] : state[at.BODY_END]]
    codec = state[at.ATTRIBUTES] & 7
    if codec:
        body = memoryview(codecs.decompress(codec, body, max_bytes=codecs.DEFAULT_MAX_BYTES))
    state[at.BODY] = 0
    state[at.BODY_END] = len(body)
    return body


def batch_facts(view: memoryview, state: memoryview) -> dict[str, object]:
    """Return the batch the slots describe, for JSON: the names and the order of Kafka's line."""
    pos, attributes = state[at.POS], state[at.ATTRIBUTES]
    last_offset_delta = batch.read_field(view, "lastOffsetDelta", pos)
    base_sequence = state[at.BASE_SEQUENCE]
    crc = batch.read_field(view, "crc", pos)
    last_sequence = (base_sequence + last_offset_delta) & MAX_INT if base_sequence >= 0 else -1
    return {
        "baseOffset": state[at.BASE_OFFSET],
        "lastOffset": state[at.BASE_OFFSET] + last_offset_delta,
        "count": state[at.COUNT],
        "baseSequence": base_sequence,
        "lastSequence": last_sequence,
        "producerId": batch.read_field(view, "producerId", pos),
        "producerEpoch": batch.read_field(view, "producerEpoch", pos),
        "partitionLeaderEpoch": batch.read_field(view, "partitionLeaderEpoch", pos),
        "isTransactional": bool(attributes & 0x10),
        "isControl": bool(attributes & CONTROL),
        "deleteHorizonMs": state[at.BASE_TIMESTAMP] if attributes & DELETE_HORIZON else None,
        "position": state[at.BASE] + pos,
        "timestampType": time_type(attributes),
        "maxTimestamp": state[at.MAX_TIMESTAMP],
        "size": state[at.SIZE],
        "magic": state[at.MAGIC],
        "compresscodec": codecs.CODEC_NAMES[attributes & 7],
        "crc": crc,
        "isvalid": crc == crc32c(view[pos + batch.CRC_FROM : pos + state[at.SIZE]]),
    }


def legacy_facts(message: memoryview, position: int) -> dict[str, object]:
    """Return a message of format 0 or 1, a batch of its own or a wrapper, with the names of Kafka's line."""
    magic = int.from_bytes(message[16:17], signed=True)
    attributes = message[17]
    codec = attributes & 7
    crc = int.from_bytes(message[12:16], "big")
    name = "NoTimestampType" if magic == 0 else time_type(attributes)
    return {
        "offset": int.from_bytes(message[:8], "big", signed=True),
        "position": position,
        name: -1 if magic == 0 else int.from_bytes(message[18:26], "big", signed=True),
        "size": len(message),
        "magic": magic,
        "compresscodec": codecs.CODEC_NAMES[codec] if codec < len(codecs.CODEC_NAMES) else codec,
        "crc": crc,
        "isvalid": crc == zlib.crc32(message[16:]),
    }


def time_type(attributes: int) -> str:
    return "LogAppendTime" if attributes & 8 else "CreateTime"


class LogDump:
    """One file of batches on its way out."""

    def __init__(
        self,
        path: str,
        file: File,
        options: DumpOptions,
        decoder: Decoder | None,
        out: Output,
        printer: Printer,
        problems: Problems,
    ) -> None:
        flags = at.DEEP if options.deep else 0
        flags |= at.CONTENTS if options.contents else 0
        flags |= at.SKIP_METADATA if options.skip_record_metadata else 0
        flags |= at.OPAQUE_ALL if decoder is not None else 0
        self._path = path
        self._options = options
        self._decoder = decoder
        self._out = out
        self._printer = printer
        self._problems = problems
        self._state = kernel.new_state(flags)
        self._gaps: kernel.Gaps = {}
        self._limit = min(file.size(), options.max_bytes)
        self._window = Window(file, self._state, self._limit)

    def run(self) -> None:
        clean = True
        try:
            clean = self._run_json() if self._printer.json else self._run_text()
        finally:
            self._problems.mismatch("gaps", self._path, *self._gaps.items())
        trailing = self._limit - self._window.position
        if clean and trailing > 0 and self._options.max_bytes == MAX_INT:
            name = self._path.rpartition("/")[2]
            text = f"Found {trailing} invalid bytes at the end of {name}"
            self._printer.show("trailingBytes", text, bytes=trailing, name=name)

    def _run_text(self) -> bool:
        state, window, out = self._state, self._window, self._out
        while True:
            state[at.OUT] = out.used
            code = kernel.print_log(window.view, out.block, state, self._gaps)
            out.used = state[at.OUT]
            if code == at.DONE:
                return True
            if code == at.MORE:
                window.fill(state[at.NEED])
            elif code in {at.FULL, at.GROW}:
                out.room(state[at.NEED] if code == at.GROW else 0)
            elif code == at.OPAQUE:
                self._records(self._print_opaque)
                self._next()
            elif not self._survive(code):
                return False

    def _run_json(self) -> bool:
        state, window = self._state, self._window
        while True:
            code = kernel.read_header(window.view, state)
            if code == at.DONE:
                return True
            if code == at.MORE:
                window.fill(state[at.NEED])
            elif code == at.OPAQUE:
                self._printer.row("batch", **batch_facts(window.view, state))
                if state[at.FLAGS] & at.DEEP:
                    self._records(self._print_json)
                self._next()
            elif not self._survive(code):
                return False

    def _next(self) -> None:
        state = self._state
        state[at.IN_BATCH] = 0
        state[at.POS] += state[at.SIZE]

    def _survive(self, code: int) -> bool:
        """Report what is wrong with the batch and step over it; return False if its end is unknown."""
        state = self._state
        if code == at.BAD_LENGTH:
            self._problems.fail(
                f"Found record size {state[at.DETAIL]} smaller than minimum record overhead (14) "
                f"in file {self._path}. (at position {self._window.position})"
            )
            return False
        if code == at.LEGACY:
            self._legacy()
        elif code == at.SHORT:
            self._bad(f"{state[at.SIZE]} bytes are less than a batch header")
        elif code == at.BAD_CODEC:
            self._bad(f"Unknown compression type id: {state[at.DETAIL]}")
        else:
            self._bad_record()
        self._next()
        return True

    def _legacy(self) -> None:
        """Print the line of a message of format 0 or 1; its contents are not read."""
        state, view = self._state, self._window.view
        pos, size = state[at.POS], state[at.SIZE]
        if state[at.MAGIC] > 127:
            self._bad(f"Invalid magic {state[at.MAGIC] - 256}")
            return
        facts = legacy_facts(view[pos : pos + size], self._window.position)
        if not self._printer.json:
            facts["isvalid"] = "true" if facts["isvalid"] else "false"
        self._printer.row("batch", **facts)
        if state[at.FLAGS] & at.DEEP:
            self._bad(
                f"message format v{facts['magic']} is not supported, only v2: its records are not shown"
            )

    def _bad(self, why: str) -> None:
        self._problems.fail(f"{self._path}: batch at position {self._window.position}: {why}")

    def _bad_record(self) -> None:
        state = self._state
        why = kernel.REASONS.get(state[at.DETAIL], "unreadable")
        self._bad(f"record {state[at.READ] + 1} of {state[at.COUNT]}: {why}")

    # -- records the kernel does not print by itself

    def _records(self, show: Callable[[memoryview], None]) -> None:
        try:
            body = body_of(self._window.view, self._state)
        except (FormatError, UnsupportedCodecError) as error:
            self._bad(reason(error))
            return
        show(body)

    def _print_opaque(self, body: memoryview) -> None:
        state, out = self._state, self._out
        if self._decoder is not None or state[at.ATTRIBUTES] & CONTROL:
            self._each(body, lambda record: out.write(self._record_text(record)))
            return
        while True:
            state[at.OUT] = out.used
            code = kernel.print_body(body, out.block, state, self._gaps)
            out.used = state[at.OUT]
            if code == at.DONE:
                return
            if code not in {at.FULL, at.GROW}:
                self._bad_record()
                return
            out.room(state[at.NEED] if code == at.GROW else 0)

    def _print_json(self, body: memoryview) -> None:
        attributes = self._state[at.ATTRIBUTES]

        def show(record: kernel.RawRecord) -> None:
            offset, timestamp, sequence, key, value, headers = record
            facts: dict[str, object] = {}
            if not self._options.skip_record_metadata:
                facts = {
                    "offset": offset,
                    "timestampType": time_type(attributes),
                    "timestamp": timestamp,
                    "keySize": -1 if key is None else len(key),
                    "valueSize": -1 if value is None else len(value),
                    "sequence": sequence,
                    "headers": [
                        {**json_bytes("key", name, "Base64"), **json_bytes("value", data, "Base64")}
                        for name, data in headers
                    ],
                }
            if attributes & CONTROL:
                facts["control"] = control_facts(record)
            elif self._decoder is not None:
                facts["key"], facts["payload"] = self._decode(self._decoder, record)
            elif self._options.contents:
                facts |= json_bytes("key", key, "Base64") | json_bytes("payload", value, "Base64")
            self._printer.row("record", **facts)

        self._each(body, show)

    def _each(self, body: memoryview, show: Callable[[kernel.RawRecord], None]) -> None:
        """Show the records of a batch one by one, up to the first that cannot be shown."""
        state = self._state
        records: list[kernel.RawRecord] = []
        code = kernel.read_records(body, state, records)
        for record in records:
            if record[0] != state[at.LAST_OFFSET] + 1:
                self._gaps[state[at.LAST_OFFSET]] = record[0]
            state[at.LAST_OFFSET] = record[0]
            try:
                show(record)
            except FormatError as error:
                self._bad(f"record at offset {record[0]}: {reason(error)}")
                return
        if code != at.DONE:
            self._bad_record()

    def _decode(self, decoder: Decoder, record: kernel.RawRecord) -> tuple[str | None, str | None]:
        try:
            return decoder(record)
        except CorruptionError as error:
            self._problems.fail(f"{self._path}: {error.reason}")
            return None, None

    def _record_text(self, record: kernel.RawRecord) -> bytes:
        offset, timestamp, sequence, key, value, headers = record
        attributes = self._state[at.ATTRIBUTES]
        skip = self._options.skip_record_metadata
        parts: list[bytes] = []
        if not skip:
            names = b",".join(kernel.java_string(name) for name, _ in headers)
            parts.append(
                b"| offset: %d %s: %d keySize: %d valueSize: %d sequence: %d headerKeys: [%s]"
                % (
                    offset,
                    time_type(attributes).encode(),
                    timestamp,
                    -1 if key is None else len(key),
                    -1 if value is None else len(value),
                    sequence,
                    names,
                )
            )
            if attributes & CONTROL:
                parts.append(control_text(record))
        if self._decoder is not None and not attributes & CONTROL:
            prefix = b"| " if skip else b" "
            decoded_key, decoded_value = self._decode(self._decoder, record)
            if decoded_key is not None:
                parts.append(prefix + b"key: " + decoded_key.encode("utf-8"))
                prefix = b" "
            if decoded_value is not None:
                parts.append(prefix + b"payload: " + decoded_value.encode("utf-8"))
        parts.append(b"\n")
        return b"".join(parts)
