# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True
# mypy: ignore-errors
"""Kafka's messages between bytes and named tuples, by tables: the loops of the room `wire`.

A `WirePlan` is one struct in one version. Bytes may be anything: every length is compared with what is left,
nothing is made by a count alone, and structs nest as deep as their plans. What does not fit is a ValueError.
"""

import os as _os
import struct as _struct
from array import array as _array

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.cpython.tuple import PyTuple_GET_ITEM
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.stratalog.kernel.native import (
    copy_bytes,
    get16,
    get32,
    get64,
    get_u32,
    native_init,
    put16,
    put32,
    put64,
    stratalog_new_tuple,
    stratalog_receive,
    stratalog_send,
    stratalog_set_item,
)

native_init()

WIRE_KINDS = {
    "bool": 0, "int8": 1, "int16": 2, "uint16": 3, "int32": 4, "uint32": 5, "int64": 6,
    "float64": 7, "uuid": 8, "string": 9, "bytes": 10, "records": 11, "struct": 12,
}  # fmt: skip

_SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 16)
"""Of kinds 0 … 8."""


class WirePlan:
    """One struct in one version: its tuple class and its fields, those with a tag last.

    A row is (name, kind, slot, is array, compact, nullable, tag or -1, plan of a struct or None).
    ``defaults`` has a value for each slot of the class.
    """

    def __init__(self, cls, rows, defaults, flexible):
        i: cython.int
        self.cls = cls
        self.slots = len(defaults)
        self.defaults = list(defaults)
        self.flexible = flexible
        self.rows = list(rows)
        self.children = [row[7] for row in rows]
        self.table = _array("i", [int(number) for row in rows for number in row[1:7]] or [0])
        if not cython.compiled:
            self.table = self.table.tolist()
        self.fields = len(self.rows)
        self.least = 1 if flexible else 0
        for i in range(self.fields):
            if self.table[i * 6 + 5] < 0:
                self.least += _least(self, i)
        if self.slots > 64:
            raise ValueError("more than 64 fields")


def _least(plan: WirePlan, i: cython.int):
    """Return the fewest bytes that a field takes."""
    kind, _, is_array, compact, nullable = list(plan.table[i * 6 : i * 6 + 5])
    if is_array or kind >= 9:
        if kind == 12 and not is_array:
            return 1 if nullable else plan.children[i].least
        return 1 if compact else 2 if kind == 9 and not is_array else 4
    return _SIZES[kind]


def _fail(plan: WirePlan, i: cython.int, what):
    raise ValueError(f"{plan.cls.__name__}.{plan.rows[i][0]}: {what}")


class Cursor:
    """Bytes with a place in them."""

    def __init__(self, source, start, end, most):
        self.most = self.left = most
        self.source = source
        if cython.compiled:
            self.view = source
            self.src = cython.address(self.view[0])
        else:
            self.src = memoryview(source)
        self.p = start
        self.end = end

    def need(self, size):
        if size > self.end - self.p:
            raise ValueError(f"byte {self.p}: {size} bytes are needed, {self.end - self.p} are left")
        return 0

    def varint(self):
        value: cython.longlong = 0
        shift: cython.int = 0
        byte: cython.longlong
        while shift < 35:
            self.need(1)
            byte = self.src[self.p]
            self.p += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFFFFFF
            shift += 7
        raise ValueError(f"byte {self.p}: a varint is too long")

    def length(self, kind, compact):
        """Read a length or a count; -1 is null."""
        size: cython.Py_ssize_t
        if compact:
            size = cython.cast(cython.Py_ssize_t, self.varint() - 1)
        elif kind == 9:
            self.need(2)
            size = get16(self.src, self.p)
            self.p += 2
        else:
            self.need(4)
            size = get32(self.src, self.p)
            self.p += 4
        return -1 if size < 0 else size

    def single(self, plan, i, nullable):
        kind: cython.int = plan.table[i * 6]
        size: cython.Py_ssize_t
        at: cython.Py_ssize_t
        if kind < 9:
            size = 1 if kind < 2 else 2 if kind < 4 else 4 if kind < 6 else 8 if kind < 8 else 16
            self.need(size)
            at = self.p
            self.p += size
            if kind == 4:
                return get32(self.src, at)
            if kind == 6:
                return get64(self.src, at)
            if kind == 2:
                return get16(self.src, at)
            if kind == 0:
                return self.src[at] != 0
            if kind == 1:
                return self.src[at] - 256 if self.src[at] > 127 else self.src[at]
            if kind == 3:
                return get16(self.src, at) & 0xFFFF
            if kind == 5:
                return get_u32(self.src, at)
            if kind == 7:
                return _struct.unpack_from(">d", self.source, at)[0]
            return self.cut(at, 16)
        if kind == 12:
            if nullable:
                self.need(1)
                self.p += 1
                if self.src[self.p - 1] > 127:
                    return None
            return self.struct(plan.children[i])
        size = self.length(kind, plan.table[i * 6 + 3])
        if size < 0:
            if not nullable:
                _fail(plan, i, "must not be null")
            return None
        self.need(size)
        at = self.p
        self.p += size
        if kind == 10:
            return self.cut(at, size)
        if kind == 11:
            return memoryview(self.source)[at : at + size]
        try:
            if cython.compiled:
                return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, self.src + at), size, cython.NULL)
            return str(self.src[at : at + size], "utf-8")
        except UnicodeDecodeError:
            _fail(plan, i, "is no UTF-8")

    def cut(self, at, size):
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.src + at), size)
        return bytes(self.src[at : at + size])

    def field(self, plan, i):
        n: cython.Py_ssize_t
        k: cython.Py_ssize_t
        least: cython.Py_ssize_t = 1
        kind: cython.int = plan.table[i * 6]
        nullable: cython.bint = plan.table[i * 6 + 4]
        if not plan.table[i * 6 + 2]:
            return self.single(plan, i, nullable)
        n = self.length(12, plan.table[i * 6 + 3])
        if n < 0:
            if not nullable:
                _fail(plan, i, "must not be null")
            return None
        if kind == 12:
            least = max(1, plan.children[i].least)
        elif kind < 9:
            least = _SIZES[kind]
        if n > (self.end - self.p) // least:
            _fail(plan, i, f"{n} elements in {self.end - self.p} bytes")
        self.left -= n
        if self.left < 0:
            _fail(plan, i, f"more than {self.most} elements in one message")
        if not cython.compiled:
            return tuple([self.single(plan, i, False) for k in range(n)])
        made = stratalog_new_tuple(tuple, n)
        for k in range(n):
            stratalog_set_item(made, k, self.single(plan, i, False))
        return made

    def struct(self, plan):
        i: cython.int = 0
        k: cython.int
        slot: cython.int
        seen: cython.ulonglong = 0
        left: cython.longlong
        tag: cython.longlong
        stop: cython.Py_ssize_t
        after: cython.Py_ssize_t
        one: cython.ulonglong = 1
        values: list = []
        if cython.compiled:
            made = stratalog_new_tuple(plan.cls, plan.slots)
        else:
            values = list(plan.defaults)
        while i < plan.fields and plan.table[i * 6 + 5] < 0:
            slot = plan.table[i * 6 + 1]
            value = self.field(plan, i)
            if cython.compiled:
                stratalog_set_item(made, slot, value)
            else:
                values[slot] = value
            seen |= one << slot
            i += 1
        if plan.flexible:
            left = self.varint()
            while left > 0:
                left -= 1
                tag = self.varint()
                after = self.varint()
                self.need(after)
                after += self.p
                for k in range(i, plan.fields):
                    slot = plan.table[k * 6 + 1]
                    if plan.table[k * 6 + 5] == tag:
                        if seen & (one << slot):
                            _fail(plan, k, "twice")
                        stop = self.end
                        self.end = after
                        value = self.field(plan, k)
                        self.end = stop
                        if cython.compiled:
                            stratalog_set_item(made, slot, value)
                        else:
                            values[slot] = value
                        seen |= one << slot
                        break
                self.p = after
        if not cython.compiled:
            return tuple.__new__(plan.cls, values)
        for slot in range(plan.slots):
            if not seen & (one << slot):
                stratalog_set_item(made, slot, plan.defaults[slot])
        return made

    def read(self, plan):
        """Read one struct; return it and the place behind it."""
        return self.struct(plan), self.p


def decode_message(
    plan: WirePlan,
    source,
    start: cython.Py_ssize_t = 0,
    end: cython.Py_ssize_t = -1,
    most: cython.Py_ssize_t = 0x7FFFFFFF,
):
    """Return the message at ``start`` and the place behind it, which is at most ``end``.

    Its arrays have at most ``most`` elements together: each takes many times its bytes in memory.
    """
    if end < 0:
        end = len(source)
    if not 0 <= start < end <= len(source):
        if start == end and plan.least == 0 and 0 <= start <= len(source):
            return Cursor(b"\0", 0, 0, most).read(plan)[0], start
        raise ValueError(f"no bytes from {start} to {end}")
    return Cursor(source, start, end, most).read(plan)


@cython.cfunc
@cython.exceptval(-2, check=True)
def _integer(plan: WirePlan, i: cython.int, kind: cython.int, value) -> cython.longlong:
    """Return the value of a field as a number that fits it."""
    number: cython.longlong
    least: cython.longlong = 0
    most: cython.longlong
    try:
        if kind == 0:
            return 1 if value else 0
        number = value.__index__() if not cython.compiled else value
        if kind == 6:
            if not cython.compiled and not -(1 << 63) <= number < 1 << 63:
                raise OverflowError
            return number
        most = 0x7F if kind == 1 else 0x7FFF if kind == 2 else 0xFFFF if kind == 3 else 0x7FFFFFFF
        if kind == 5:
            most = 0xFFFFFFFF
        elif kind != 3:
            least = -most - 1
        if least <= number <= most:
            return number
    except (AttributeError, TypeError, OverflowError):
        pass
    _fail(plan, i, f"{value!r} does not fit")
    return -2


class Sink:
    """Bytes that grow."""

    def __init__(self, size, gaps):
        self.data = bytearray(size)
        self.gaps = gaps
        self.elsewhere = 0
        self.n = 0
        self.room = size
        if cython.compiled:
            self.dst = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
        else:
            self.dst = self.data

    def grow(self, size):
        """Make room for ``size`` more bytes."""
        if size > self.room - self.n:
            self.room = (self.n + size) * 2 + 64
            if cython.compiled:
                PyByteArray_Resize(self.data, self.room)
                self.dst = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
            else:
                self.data.extend(bytes(self.room - len(self.data)))
        return 0

    def varint(self, value):
        self.grow(5)
        while value > 127:
            self.dst[self.n] = (value & 127) | 128
            self.n += 1
            value >>= 7
        self.dst[self.n] = cython.cast(cython.uchar, value)
        self.n += 1
        return 0

    def length(self, size, kind, compact):
        """Write a length or a count; -1 is null."""
        if compact:
            return self.varint(size + 1)
        self.grow(4)
        if kind == 9:
            if size > 32767:
                raise ValueError(f"a string of {size} bytes is longer than 32767")
            put16(self.dst, self.n, size)
            self.n += 2
        else:
            put32(self.dst, self.n, size)
            self.n += 4
        return 0

    def raw(self, source):
        """Write bytes as they are."""
        view: cython.const[cython.uchar][::1]
        src: cython.pointer[cython.const[cython.uchar]]
        size: cython.Py_ssize_t
        if cython.compiled:
            if type(source) is bytes:
                size = len(source)
                self.grow(size)
                src = cython.cast(cython.p_uchar, PyBytes_AS_STRING(source))
                self.n = copy_bytes(self.dst, self.n, src, 0, size)
                return
            view = source
            size = view.shape[0]
            if size:
                self.grow(size)
                src = cython.address(view[0])
                self.n = copy_bytes(self.dst, self.n, src, 0, size)
        else:
            self.grow(len(source))
            self.n = copy_bytes(self.dst, self.n, source, 0, len(source))

    def single(self, plan, i, value, nullable):
        kind: cython.int = plan.table[i * 6]
        number: cython.longlong
        size: cython.Py_ssize_t
        if kind < 7:
            number = _integer(plan, i, kind, value)
            self.grow(8)
            if kind == 4 or kind == 5:
                put32(self.dst, self.n, number)
            elif kind == 6:
                put64(self.dst, self.n, number)
            elif kind == 2:
                put16(self.dst, self.n, number)
            elif kind == 3:
                put16(self.dst, self.n, number - 65536 if number > 32767 else number)
            else:
                self.dst[self.n] = cython.cast(cython.uchar, number & 255)
            self.n += 1 if kind < 2 else 2 if kind < 4 else 4 if kind < 6 else 8
            return 0
        if kind == 12:
            if nullable:
                self.grow(1)
                self.dst[self.n] = 255 if value is None else 1
                self.n += 1
                if value is None:
                    return 0
            return self.struct(plan.children[i], value)
        if value is None:
            if not nullable:
                _fail(plan, i, "must not be null")
            return self.length(-1, kind, plan.table[i * 6 + 3])
        if kind == 7:
            self.raw(_struct.pack(">d", value))
            return 0
        if kind == 8:
            if len(value) != 16:
                _fail(plan, i, "must have 16 bytes")
            self.raw(value)
            return 0
        if kind == 11 and self.gaps is not None and type(value) is not bytes:
            size = value.length
            self.length(size, kind, plan.table[i * 6 + 3])
            self.gaps.append((self.n, value))
            self.elsewhere += size
            return 0
        if kind == 9:
            if not isinstance(value, str):
                _fail(plan, i, f"{value!r} is no string")
            value = value.encode("utf-8")
        self.length(len(value), kind, plan.table[i * 6 + 3])
        self.raw(value)
        return 0

    def field(self, plan, i, value):
        if not plan.table[i * 6 + 2]:
            return self.single(plan, i, value, plan.table[i * 6 + 4])
        if value is None:
            if not plan.table[i * 6 + 4]:
                _fail(plan, i, "must not be null")
            return self.length(-1, 12, plan.table[i * 6 + 3])
        self.length(len(value), 12, plan.table[i * 6 + 3])
        for each in value:
            self.single(plan, i, each, False)
        return 0

    def struct(self, plan, value):
        i: cython.int = 0
        k: cython.int
        if type(value) is not plan.cls:
            raise ValueError(f"{type(value).__name__} where {plan.cls.__name__} belongs")
        while i < plan.fields and plan.table[i * 6 + 5] < 0:
            if cython.compiled:
                self.field(plan, i, cython.cast(object, PyTuple_GET_ITEM(value, plan.table[i * 6 + 1])))
            else:
                self.field(plan, i, value[plan.table[i * 6 + 1]])
            i += 1
        if plan.flexible and i == plan.fields:
            self.varint(0)
        elif plan.flexible:
            tagged = []
            for k in range(i, plan.fields):
                each = value[plan.table[k * 6 + 1]]
                default = plan.defaults[plan.table[k * 6 + 1]]
                if each != default and (default != () or each is None or len(each) > 0):
                    part: Sink = Sink(64, None)
                    part.field(plan, k, each)
                    tagged.append((plan.table[k * 6 + 5], part.taken(0)))
            self.varint(len(tagged))
            for tag, content in tagged:
                self.varint(tag)
                self.varint(len(content))
                self.raw(content)
        return 0

    def taken(self, head):
        """Return what was written; with ``head``, its size goes into the first four bytes."""
        if head:
            put32(self.dst, 0, self.n - 4 + self.elsewhere)
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.dst), self.n)
        return bytes(self.data[: self.n])

    def write(self, plan: WirePlan, value):
        """Write one struct."""
        self.struct(plan, value)


def encode_message(plan: WirePlan, value, head=b"", framed=False, gaps=None):
    """Return ``head`` and the message; ``framed``: after four bytes with the size of both.

    With a list as ``gaps``, ``records`` that are not bytes are left out, and go there with their place: the
    caller sends their ``length`` bytes from elsewhere.
    """
    sink: Sink = Sink(256, gaps)
    if framed:
        sink.n = 4
    if head:
        sink.raw(head)
    sink.write(plan, value)
    return sink.taken(framed)


# -- sockets -------------------------------------------------------------------------------------------------
#
# Python's own methods give the interpreter away for each call. A call that never waits takes less time than
# another thread needs to wake up for that, and to give it back.


def receive(fd: cython.int, buffer, start: cython.Py_ssize_t):
    """Receive what a socket has now into buffer[start:]; return the size, or minus an error's number."""
    if start < 0 or start >= len(buffer):
        raise ValueError("receive: no room")
    if not cython.compiled:
        try:
            return _os.readv(fd, [memoryview(buffer)[start:]])
        except OSError as error:
            return -error.errno
    got: cython.longlong
    view = cython.declare(Py_buffer)
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    if view.len <= start:
        PyBuffer_Release(cython.address(view))
        raise ValueError("receive: no room")
    got = stratalog_receive(fd, cython.cast(cython.p_uchar, view.buf) + start, view.len - start)
    PyBuffer_Release(cython.address(view))
    return got


def send(fd: cython.int, data: bytes):
    """Send what a socket takes now; return the size, or minus an error's number."""
    if not cython.compiled:
        try:
            return _os.write(fd, data)
        except OSError as error:
            return -error.errno
    src: cython.pointer[cython.const[cython.uchar]]
    src = cython.cast(cython.pointer[cython.const[cython.uchar]], PyBytes_AS_STRING(data))
    return stratalog_send(fd, src, PyBytes_GET_SIZE(data))


# -- Produce requests of one partition, read and answered without tables: what a busy broker gets most -------
#
# `parse_produce` knows requests that are as most are, and returns None for all others: the tables read those.
# The bytes of `produce_answer` are those that the tables would make. From version 9 on lengths are compact
# and structs have tagged fields; from 13 on topics have ids.


def parse_produce(frame):
    """Return (version, correlation id, acks, topic, partition, start, end, records) of a Produce request.

    ``topic`` is a name's bytes, or the id in versions that have ids; the batches are frame[start:end].
    ``records`` is what their header says if they are one batch; else 0.
    None if there is more than one partition, a transaction or a control batch, a tagged field, a null where a
    value belongs, a version before 3 or after 13, a name that is not ASCII, or anything wrong: the tables
    tell what.
    """
    if cython.compiled:
        view = cython.declare(Py_buffer)  # a fourth of what a typed view costs
        PyObject_GetBuffer(frame, cython.address(view), PyBUF_SIMPLE)
        try:
            return _parse_produce(cython.cast(cython.pointer[cython.const[cython.uchar]], view.buf), view.len)
        finally:
            PyBuffer_Release(cython.address(view))
    return _parse_produce(frame, len(frame))


@cython.cfunc
def _parse_produce(src: cython.pointer[cython.const[cython.uchar]], end: cython.Py_ssize_t):
    f = cython.declare(cython.longlong[1])
    p: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    version: cython.longlong
    acks: cython.longlong
    correlation: cython.longlong
    partition: cython.longlong
    size: cython.longlong
    flexible: cython.bint
    if not cython.compiled:
        f = [0]
    if end < 10:
        return None
    version = get16(src, 2)
    if get16(src, 0) != 0 or version < 3 or version > 13:
        return None
    flexible = version >= 9
    correlation = get32(src, 4)
    size = get16(src, 8)  # the client's id
    p = 10 + cython.cast(cython.Py_ssize_t, max(0, size))
    if size < -1 or p > end or not _ascii(src, 10, p):
        return None
    if flexible:
        if p >= end or src[p] != 0:  # tagged fields of the header
            return None
        p += 1
    p = _length(src, p, end, flexible, 2, f)
    if p < 0 or f[0] != -1 or end - p < 6:  # a transactional id
        return None
    acks = get16(src, p)
    if acks < -1 or acks > 1:
        return None
    p = _length(src, p + 6, end, flexible, 4, f)
    if p < 0 or f[0] != 1:  # topics
        return None
    start = p
    stop = p + 16
    if version < 13:
        start = _length(src, p, end, flexible, 2, f)
        if start < 0 or f[0] < 0:
            return None
        stop = start + cython.cast(cython.Py_ssize_t, f[0])
    if stop > end or (version < 13 and not _ascii(src, start, stop)):
        return None
    p = _length(src, stop, end, flexible, 4, f)
    if p < 0 or f[0] != 1 or end - p < 4:  # partitions
        return None
    partition = get32(src, p)
    p = _length(src, p + 4, end, flexible, 4, f)
    if p < 0 or f[0] <= 0 or f[0] > end - p:
        return None
    size = f[0]
    if flexible:  # three structs that end
        if end - p - size != 3 or src[end - 3] or src[end - 2] or src[end - 1]:
            return None
    elif end - p != size:
        return None
    if not _plain(src, p, p + cython.cast(cython.Py_ssize_t, size)):
        return None
    if cython.compiled:
        topic = PyBytes_FromStringAndSize(cython.cast(cython.p_char, src + start), stop - start)
    else:
        topic = bytes(src[start:stop])
    records: cython.longlong = 0
    if size >= 61 and get32(src, p + 8) + 12 == size:
        records = get32(src, p + 23) + 1
    return version, correlation, acks, topic, partition, p, p + size, max(0, records)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _length(
    src: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
    width: cython.int,
    f: cython.pointer[cython.longlong],
) -> cython.Py_ssize_t:
    """Read a length or a count of ``width`` bytes, or a compact one, into f[0]; return the place behind it.

    -1 for null; a place of -1 if it does not end.
    """
    value: cython.longlong = 0
    shift: cython.int = 0
    if not flexible:
        if end - p < width:
            return -1
        f[0] = get16(src, p) if width == 2 else get32(src, p)
        return p + width
    while p < end and shift < 35:
        value |= cython.cast(cython.longlong, src[p] & 127) << shift
        p += 1
        if src[p - 1] < 128:
            f[0] = value - 1
            return p if value <= 0x7FFFFFFF else -1
        shift += 7
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ascii(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    while p < end:
        if src[p] > 127:
            return False
        p += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _plain(
    src: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return False if a batch belongs to a transaction or is a control batch, by its attributes alone."""
    length: cython.longlong
    while end - p >= 23:
        if src[p + 22] & 0x30:
            return False
        length = get32(src, p + 8)
        p += 12 + cython.cast(cython.Py_ssize_t, max(0, length))
    return True


def produce_answer(
    version: cython.int,
    correlation: cython.longlong,
    topic: bytes,
    partition: cython.longlong,
    base_offset: cython.longlong,
    append_time: cython.longlong,
    log_start_offset: cython.longlong,
):
    """Return the frame that tells of one append without an error, its size in front."""
    flexible: cython.bint = version >= 9
    n: cython.Py_ssize_t = len(topic)
    p: cython.Py_ssize_t = 8
    size: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    dst: cython.p_uchar
    src: cython.pointer[cython.const[cython.uchar]]
    # flexible: the header's tag 1, topics 1, a name's length 1 or 2, partitions 1, then 30, errors 1,
    # message 1, tags 2, throttle 4, tag 1; else topics 4, length 2, partitions 4, 22 or 30, errors 4,
    # message 2, throttle 4
    if flexible:
        size = 8 + 2 + (0 if version >= 13 else 1 if n < 127 else 2) + n + 1 + 30 + 2 + 2 + 4 + 1
    else:
        size = 8 + 4 + 2 + n + 4 + (30 if version >= 5 else 22) + (6 if version >= 8 else 0) + 4
    if n > 16000 or (version >= 13 and n != 16):
        raise ValueError("produce_answer: not a topic")
    if cython.compiled:
        made = PyBytes_FromStringAndSize(cython.NULL, size)
        dst = cython.cast(cython.p_uchar, PyBytes_AS_STRING(made))
        src = cython.cast(cython.p_uchar, PyBytes_AS_STRING(topic))
    else:
        made = dst = bytearray(size)
        src = topic
    put32(dst, 0, size - 4)
    put32(dst, 4, correlation)
    if flexible:
        dst[8] = 0
        dst[9] = 2
        p = 10
        if version < 13:
            if n < 127:
                dst[p] = n + 1
            else:
                dst[p] = (n + 1) & 127 | 128
                dst[p + 1] = (n + 1) >> 7
                p += 1
            p += 1
        p = copy_bytes(dst, p, src, 0, n)
        dst[p] = 2
        p += 1
    else:
        put32(dst, 8, 1)
        put16(dst, 12, n)
        p = copy_bytes(dst, 14, src, 0, n)
        put32(dst, p, 1)
        p += 4
    put32(dst, p, partition)
    put16(dst, p + 4, 0)
    put64(dst, p + 6, base_offset)
    put64(dst, p + 14, append_time)
    p += 22
    if version >= 5:
        put64(dst, p, log_start_offset)
        p += 8
    for rest in range(p, size):  # no errors, no message, no throttling, no tags
        dst[rest] = 0
    if flexible:
        dst[p] = 1  # no record errors; the message after them is null
    elif version >= 8:
        put16(dst, p + 4, -1)
    return made if cython.compiled else bytes(made)
