"""JSON values as columns: the schema a user gives, and the decoding of record batches by it.

A field that is missing or null is null. A field that the schema does not name is left out. A record without a
value (a tombstone) has nulls. A value fits its column if the JSON has the column's kind: a text where a
number should be is a misfit, and so is a number that is out of range. What a record becomes depends on the
record alone.

A batch is parsed at once by Arrow. Only if something in it is wrong, or was in a batch before it, its records
are looked at first. Most of them have only members that plainly fit, which a regular expression tells in a
fifth of the parser's time. Another one for each column tells the records with one value that plainly does
not fit it: a number in a STRING column, a text in an INT column. For what is left Python's parser finds the
values that do not fit, column by column. Arrow then parses the records at once, and others by themselves,
without the columns that do not fit them. Where the two parsers disagree (a field twice, half a surrogate
pair), Arrow decides, record by record.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, cached_property
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from stratalog.errors import ConfigError

ON_MISFIT = ("dead-letter", "null", "text")
"""What becomes of a record with a value that does not fit: a dead letter; a row in which that column is null;
a row in which a STRING column takes the value's JSON text (a dead letter for columns of another type)."""
OWN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "date")
"""Names a payload's field cannot have in the output; there it gets the prefix."""
PREFIX = "value_"
_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_OTHER_NAMES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
}
"""Spark's other names of types."""


@dataclass(frozen=True)
class Payload:
    """How values are decoded. Picklable."""

    schema: pa.Schema
    """The fields as the JSON has them."""
    names: tuple[str, ...]
    """The columns they become."""

    @property
    def fields(self) -> list[pa.Field]:
        return [f.with_name(n) for n, f in zip(self.names, self.schema, strict=True)]

    def with_types(self, kinds: Mapping[str, pa.DataType]) -> Payload:
        """Return the same fields with the types that their columns have."""
        fields = [f.with_type(kinds[n]) for n, f in zip(self.names, self.schema, strict=True)]
        return Payload(pa.schema(fields), self.names)

    @property
    def renamed(self) -> dict[str, str]:
        return {f.name: n for n, f in zip(self.names, self.schema, strict=True) if f.name != n}


def payload_of(ddl: str) -> Payload:
    """Parse a DDL string such as ``id BIGINT, tags ARRAY<STRING>``, as Spark writes schemas."""
    schema = pa.schema(_Ddl(ddl).fields())
    own = {name.lower() for name in OWN}
    names = tuple(PREFIX + name if name.lower() in own else name for name in schema.names)
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"schema: a column occurs twice: {', '.join(names)}")
    return Payload(schema, names)


class _Ddl:
    """A parser of schemas. Spark's own needs a session, and arguments are checked before one starts."""

    _TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:]|\S)")

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = [*self._TOKEN.findall(text), ""]
        self._at = 0

    def fields(self, end: str = "") -> list[pa.Field]:
        """Parse columns, or the fields of a struct, up to ``end``."""
        found = [self._field()]
        while self._taken(","):
            found.append(self._field())
        self._expect(end)
        return found

    def _field(self) -> pa.Field:
        name = self._next()
        if not re.fullmatch(r"\w+|`.*`", name):
            raise self._error("a column's name", name)
        self._taken(":")
        kind = self._type()
        if self._taken("NOT"):
            self._expect("NULL")
        if self._taken("COMMENT"):
            self._next()
        return pa.field(name[1:-1].replace("``", "`") if name.startswith("`") else name, kind)

    def _type(self) -> pa.DataType:
        given = self._next()
        name = _OTHER_NAMES.get(given.upper(), given.upper())
        if name == "STRUCT":
            self._expect("<")
            return pa.struct(self.fields(">"))
        if name == "ARRAY":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if name == "DECIMAL":
            return self._decimal()
        if name not in _TYPES:
            raise self._error(f"{', '.join(_TYPES)}, DECIMAL, ARRAY or STRUCT", given)
        return _TYPES[name]

    def _decimal(self) -> pa.DataType:
        if not self._taken("("):
            return pa.decimal128(10, 0)
        precision, scale = self._next(), self._next() if self._taken(",") else "0"
        self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal() and int(scale) <= int(precision) <= 38):
            raise self._error("DECIMAL(precision up to 38, scale up to that)", f"({precision}, {scale})")
        return pa.decimal128(int(precision), int(scale))

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += bool(token)
        return token

    def _taken(self, token: str) -> bool:
        taken = self._tokens[self._at].upper() == token
        self._at += taken
        return taken

    def _expect(self, token: str) -> None:
        if (found := self._next()).upper() != token:
            raise self._error(repr(token) if token else "a comma or the end", found)

    def _error(self, expected: str, found: str) -> ConfigError:
        found = repr(found) if found else "the end"
        return ConfigError(
            f"schema: expected {expected}, got {found} in {self._text!r}; pass a DDL string: id BIGINT,"
            " name STRING"
        )


@cache
def ddl_of(kind: pa.DataType) -> str:
    """Return the name of a column's type as a schema has it."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{each.name}: {ddl_of(each.type)}' for each in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl_of(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return next((name for name, known in _TYPES.items() if known == kind), str(kind))


# -- decoding ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoded:
    """What became of a batch."""

    rows: pa.RecordBatch
    """Records with the payload's columns behind their own."""
    failed: pa.RecordBatch
    """The other records, as they are."""
    reasons: list[str]
    """Why, for each of these."""
    misfits: Counter[str] = field(default_factory=Counter)
    """How many values did not fit, by column."""


def decode(
    batch: pa.RecordBatch, payload: Payload, on_misfit: str = "dead-letter", *, doubtful: bool = False
) -> Decoded:
    """Decode the values of a batch; ``on_misfit`` is one of `ON_MISFIT`.

    ``doubtful``: look for what does not fit at once, without trying whether all fit. The result is the same.
    """
    values = batch.column("value")
    present = pc.is_valid(values)
    parsed = _parse(values.filter(present), payload.schema, on_misfit, doubtful=doubtful)
    kept = batch
    failed = pc.indices_nonzero(present).take(pa.array(sorted(parsed.bad), pa.int64()))
    if parsed.bad:
        good = pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.uint64()), value_set=failed))
        kept, present = batch.filter(good), present.filter(good)
    columns = parsed.columns
    if columns.num_rows < kept.num_rows:  # tombstones: a row of nulls each
        place = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
        columns = columns.take(pc.if_else(present, place, pa.scalar(None, pa.int64())))
    made = pa.RecordBatch.from_arrays(
        [*kept.columns, *columns.columns], schema=pa.schema([*batch.schema, *payload.fields])
    )
    names = dict(enumerate(payload.names))
    misfits = Counter({names[at]: count for at, count in parsed.misfits.items()})
    return Decoded(made, batch.take(failed), [parsed.bad[row] for row in sorted(parsed.bad)], misfits)


@dataclass
class _Parsed:
    """Texts as columns, in their order without the bad ones."""

    columns: pa.RecordBatch
    bad: dict[int, str] = field(default_factory=dict)
    misfits: Counter[int] = field(default_factory=Counter)


def _parse(values: pa.Array, schema: pa.Schema, on_misfit: str, *, doubtful: bool) -> _Parsed:
    """Decode texts: all at once if all fit."""
    texts = values.to_pylist()
    if not doubtful:
        with suppress(pa.ArrowInvalid):
            return _Parsed(_parse_block(texts, schema))
    return _sort_out(values, texts, schema, on_misfit)


def _sort_out(values: pa.Array, texts: list[bytes], schema: pa.Schema, on_misfit: str) -> _Parsed:
    """Decode texts of which some may be no JSON or have values that do not fit."""
    found = _Found(values, texts, schema)
    done = _Parsed(_nothing(schema), found.bad)
    done.misfits.update(at for columns in found.misfits.values() for at in columns)
    wrong_rows = found.misfits.keys() | found.bad.keys()
    fitting = [row for row in range(len(texts)) if row not in wrong_rows] if wrong_rows else range(len(texts))
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, columns in found.misfits.items():
        groups.setdefault(tuple(columns), []).append(row)
    for left_out in [each for each in groups if not _kept(each, schema, on_misfit)]:
        done.bad.update((row, found.reason(row)) for row in groups.pop(left_out))
    pieces: list[pa.RecordBatch] = []
    order: list[int] = []
    for wrong, rows in (((), fitting), *groups.items()):
        rest = pa.schema([each for at, each in enumerate(schema) if at not in wrong])
        for own, part in _parse_parts(texts, rows, rest):
            if isinstance(part, str):
                done.bad[own[0]] = part
                continue
            pieces.append(_completed(part, own, schema, found if on_misfit == "text" else None))
            order += own
    if pieces:
        done.columns = pa.concat_batches(pieces)
        if len(pieces) > 1:
            done.columns = done.columns.take(pc.sort_indices(pa.array(order, pa.int64())))
    return done


def _completed(
    part: pa.RecordBatch, rows: Sequence[int], schema: pa.Schema, found: _Found | None
) -> pa.RecordBatch:
    """Add the columns that were left out: the texts of the records' members, null where there is none."""
    columns = []
    for each in schema:
        if each.name in part.schema.names:
            columns.append(part.column(each.name))
        elif found is None:
            columns.append(pa.nulls(len(rows), each.type))
        else:
            columns.append(pa.array([found.written(row, each.name) for row in rows], each.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def _kept(columns: Sequence[int], schema: pa.Schema, on_misfit: str) -> bool:
    if on_misfit == "text":
        return all(schema.field(at).type == pa.string() for at in columns)
    return on_misfit == "null"


def _parse_parts(
    texts: list[bytes], rows: Sequence[int], schema: pa.Schema
) -> Iterator[tuple[Sequence[int], pa.RecordBatch | str]]:
    """Decode the texts of these rows; yield rows with their columns, and single ones with the reason why they
    cannot be decoded.

    Rows that fail are halved until one is left.
    """
    waiting = [rows]
    while waiting:
        some = waiting.pop()
        try:
            yield some, _parse_block([texts[row] for row in some], schema)
        except pa.ArrowInvalid as error:
            if len(some) == 1:
                yield some, _reason(texts[some[0]], error)
                continue
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]


def _parse_block(texts: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Decode texts; raise ArrowInvalid unless each is exactly one object that fits.

    Each is numbered and wrapped, so that one text cannot end up as two rows, or two as one, unnoticed.
    """
    if not texts:
        return _nothing(schema)
    data = b"\n".join([b'{"i":%d,"v":%b}' % each for each in enumerate(texts)])
    try:
        data.decode()  # the parser does not check
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"not UTF-8: {error.reason}") from error
    wire = pa.schema([("i", pa.int64()), ("v", pa.struct([_wire(each) for each in schema]))])
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=wire, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if not table.column("i").combine_chunks().equals(pa.array(range(len(texts)), pa.int64())):
        raise pa.ArrowInvalid("not exactly one JSON object")
    found = table.column("v").combine_chunks().flatten()
    columns = [_converted(each, kind.type) for each, kind in zip(found, schema, strict=True)]
    made = pa.RecordBatch.from_arrays(columns, schema=schema)
    if _has_decimals(schema):
        made.validate(full=True)  # the parser lets numbers of too many digits pass
    return made


def _has_decimals(schema: pa.Schema) -> bool:
    return any(pa.types.is_decimal(kind) for kind in _leaves(schema))


def _wire(field: pa.Field) -> pa.Field:
    return field.with_type(_wire_type(field.type))


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for Arrow's parser, to which dates and times are texts."""
    if pa.types.is_struct(kind):
        return pa.struct([_wire(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_wire(kind.value_field))
    return pa.string() if _is_moment(kind) else kind


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return what Arrow's parser made, with its dates and times; raise ArrowInvalid if one is none."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = [_converted(array.field(at), each.type) for at, each in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        parts = _converted(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, parts, type=kind, mask=array.is_null())
    return _moments(array, kind)


_ZONE = r"[T ]\S*(Z|[+-]\d\d(:?\d\d)?)$"
_UTC, _NO_ZONE = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse dates or times; a time without a zone is UTC."""
    if pa.types.is_date(kind):
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONE)
    count, known = pc.sum(zoned).as_py() or 0, len(texts) - texts.null_count
    if count == known:
        return texts.cast(_UTC).cast(kind)
    if not count:
        return texts.cast(_NO_ZONE).cast(pa.int64()).cast(kind)
    none = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, none).cast(_UTC).cast(pa.int64())
    without = pc.if_else(zoned, none, texts).cast(_NO_ZONE).cast(pa.int64())
    return pc.coalesce(with_zone, without).cast(kind)


def _reason(text: bytes, error: pa.ArrowInvalid) -> str:
    """Python's parser has the better message for a text that is not JSON at all."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as why:
        return f"not JSON: {why}"
    return f"does not fit the schema: {_first_line(error).replace('/v/', '/').replace(' in row 0', '')}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# -- values that do not fit --------------------------------------------------------------------------


_LONGEST = 60
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"([T ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,6})?)?)?(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?",
    re.ASCII,
)
"""The dates and times that Arrow takes, but for the number of days of a month."""
_SPACE = re.compile(r"[ \t\n\r]*")
_ONLY_ARROW = re.compile("Inf|NaN")
"""Numbers that Arrow's parser takes in forms that Python's does not."""
_WRITER = json.JSONEncoder(ensure_ascii=False, default=float)
_PLAINLY, _EXACTLY = json.JSONDecoder(), json.JSONDecoder(parse_float=Decimal)


class _Found:
    """What Python's parser finds wrong in a list of texts."""

    def __init__(self, values: pa.Array, texts: list[bytes], schema: pa.Schema) -> None:
        self.bad: dict[int, str] = {}
        """Rows that are no JSON object, with the reason."""
        self.misfits: dict[int, list[int]] = {}
        """Rows with values that do not fit, and the columns of these values."""
        self._fields = list(schema)
        self._texts = texts
        self._members: dict[int, Mapping[str, str]] = {}
        self._decoder = _EXACTLY if _has_decimals(schema) else _PLAINLY
        self._plain = _Plain(values, texts, schema)
        for at, some in self._plain.misfits.items():
            self.misfits.update({row: [at] for row in some})
        rows = self._plain.others
        self._objects = {row: self._object(row, texts[row]) for row in rows}
        for at, each in enumerate(schema):
            column = [one.get(each.name) for one in self._objects.values()]
            for place in _check_of(each.type).misfits(column):
                self.misfits.setdefault(rows[place], []).append(at)

    def _object(self, row: int, text: bytes) -> Mapping[str, Any]:
        try:
            line = text.decode().strip(" \t\n\r")
            found, end = self._decoder.raw_decode(line)
            if end != len(line):
                raise json.JSONDecodeError("Extra data", line, end)
        except UnicodeDecodeError as error:
            self.bad[row] = f"not JSON: not UTF-8: {error.reason}"
        except json.JSONDecodeError as error:
            if not _ONLY_ARROW.search(error.doc):
                self.bad[row] = f"not JSON: {error}"
        except (ValueError, RecursionError):
            pass  # a number of very many digits, or very deep: Arrow decides
        else:
            if isinstance(found, dict):
                return found
            if found is not None:
                self.bad[row] = f"does not fit the schema: {_excerpt(found)} is not an object"
        return {}

    def written(self, row: int, name: str) -> str | None:
        """Return a value that does not fit, as it is written."""
        if row in self._plain.written:
            return self._plain.written[row]
        if row not in self._members:
            self._members[row] = _members(self._texts[row])
        return self._members[row].get(name)

    def reason(self, row: int) -> str:
        """Return why a row does not fit."""
        written = self._plain.written
        if row in written:
            each = self._fields[self.misfits[row][0]]
            text = _cut(written[row])
            return f"does not fit the schema: {each.name} is {text}, expected {ddl_of(each.type)}"
        return "does not fit the schema: " + "; ".join(
            f"{field.name} is {_excerpt(self._objects[row][field.name])}, expected {ddl_of(field.type)}"
            for field in map(self._fields.__getitem__, self.misfits[row])
        )


def _excerpt(value: object) -> str:
    return _cut(_WRITER.encode(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _leaves(kinds: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    for each in kinds:
        kind = each.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            yield from _leaves(kind)
        else:
            yield kind


@dataclass(frozen=True)
class _Check:
    """Tells which values of a column fit; null always does."""

    kinds: frozenset[type]
    """Python's types for JSON values of the column's kind."""
    fits: Callable[[Any], bool] = lambda value: True
    """For a value of these types."""
    all_fit: Callable[[list[Any]], bool] = lambda values: False
    """A fast test of many values of these types, none of them null."""

    def __call__(self, value: Any) -> bool:
        return value is None or (type(value) in self.kinds and self.fits(value))

    def misfits(self, column: list[Any]) -> Sequence[int]:
        """Return the rows whose value does not fit."""
        right = [value for value in column if type(value) in self.kinds]
        if not right or self.all_fit(right):
            kinds = {*self.kinds, type(None)}
            if kinds.issuperset(map(type, column)):
                return ()
            return [row for row, value in enumerate(column) if type(value) not in kinds]
        return [row for row, value in enumerate(column) if not self(value)]


def _check_of(kind: pa.DataType) -> _Check:
    if pa.types.is_struct(kind):
        parts = [(each.name, _check_of(each.type)) for each in kind]
        return _Check(
            frozenset({dict}),
            lambda v: all(part(v.get(name)) for name, part in parts),
            lambda vs: not any(part.misfits([v.get(name) for v in vs]) for name, part in parts),
        )
    if pa.types.is_list(kind):
        element = _check_of(kind.value_type)
        return _Check(
            frozenset({list}),
            lambda v: all(map(element, v)),
            lambda vs: not element.misfits([*chain.from_iterable(vs)]),
        )
    if pa.types.is_integer(kind):
        low, high = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
        return _Check(
            frozenset({int}), lambda v: low <= v <= high, lambda vs: low <= min(vs) and max(vs) <= high
        )
    if _is_moment(kind):
        return _Check(
            frozenset({str}),
            lambda v: _fits_moment(v, pa.types.is_date(kind)),
            lambda vs: _all_moments(vs, kind),
        )
    if pa.types.is_decimal(kind):
        return _Check(frozenset({int, Decimal, str}), lambda v: _fits_decimal(v, kind.precision, kind.scale))
    plain: dict[pa.DataType, set[type]] = {pa.bool_(): {bool}, pa.string(): {str}}
    return _Check(frozenset(plain.get(kind, {int, Decimal, float})), all_fit=lambda vs: True)


# -- values that plainly fit -------------------------------------------------------------------------


_S = "[ \\t\\n\\r]*"
_DAY = (
    "[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"[T ]{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])?"
_NEVER = r"[^\x00-\x{10FFFF}]"
_MOST_PATTERN = 20_000
"""A longer pattern is not tried: every level of a schema doubles it."""


class _Plain:
    """What regular expressions tell of texts: which are objects whose members beyond doubt fit or have plain
    values and names that the schema does not have, and which are such objects but for one value that beyond
    doubt does not fit.

    The others are not classified: one may have an escape in a text, or a number close to the limits.
    """

    def __init__(self, values: pa.Array, texts: list[bytes], schema: pa.Schema) -> None:
        self.misfits: dict[int, list[int]] = {}
        """Rows with one value that does not fit, by its column."""
        self.others = list(range(len(texts)))
        """Rows of which nothing is known."""
        self._schema = schema
        self._lines = _utf8(values, texts)
        also = _other_member(schema.names)
        if len(_object_pattern(schema, also)) > _MOST_PATTERN:
            also = _NEVER
        if len(pattern := _object_pattern(schema, also)) > _MOST_PATTERN:
            return
        self._take(pattern)
        below = {name for each in schema for name in _names_below(each.type)}
        for at, each in enumerate(schema):
            rest = [other for place, other in enumerate(schema) if place != at]
            if self.others and _is_plain_name(each) and each.name not in below:
                self.misfits[at] = self._take(_object_pattern(rest, also, but=each))

    def _take(self, pattern: str) -> list[int]:
        """Return the rows that match, and know them."""
        every = len(self.others) == len(self._lines)
        lines = self._lines if every else self._lines.take(pa.array(self.others, pa.int64()))
        match = pc.fill_null(pc.match_substring_regex(lines, rf"\A{_S}{pattern}{_S}\z"), False)
        rows = pa.array(self.others, pa.int64())
        self.others = rows.filter(pc.invert(match)).to_pylist()
        taken: list[int] = rows.filter(match).to_pylist()
        return taken

    @cached_property
    def written(self) -> dict[int, str]:
        """The values that do not fit, as they are written: as Python writes them, too."""
        found: dict[int, str] = {}
        for at, rows in self.misfits.items():
            pattern = rf'"{self._schema.field(at).name}"{_S}:{_S}(?P<v>"[^"]*"|[-+.0-9a-z]+)'
            lines = self._lines.take(pa.array(rows, pa.int64()))
            found.update(zip(rows, pc.extract_regex(lines, pattern).field("v").to_pylist(), strict=True))
        return found


def _utf8(values: pa.Array, texts: list[bytes]) -> pa.Array:
    """Return texts as strings, null where one is not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text if _is_utf8(text) else None for text in texts], pa.binary()).cast(pa.string())


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _names_below(kind: pa.DataType) -> Iterator[str]:
    """Return the names of fields inside a type."""
    if pa.types.is_list(kind):
        yield from _names_below(kind.value_type)
    elif pa.types.is_struct(kind):
        for each in kind:
            yield each.name
            yield from _names_below(each.type)


def _is_plain_name(each: pa.Field) -> bool:
    return re.fullmatch("[A-Za-z0-9_]+", each.name) is not None


def _object_pattern(fields: Iterable[pa.Field], also: str = _NEVER, but: pa.Field | None = None) -> str:
    """Return a pattern for objects of these members, each of them plainly fitting or null.

    ``also``: a pattern for other members. ``but``: one more member, whose value plainly does not fit.
    """
    known = [each for each in fields if _is_plain_name(each)]
    members = [f'"{one.name}"{_S}:{_S}(?:{_pattern(one.type)}|null)' for one in known]
    each = "|".join([*members, also])
    if but is not None:
        wrong = f'"{but.name}"{_S}:{_S}(?:{_wrong_pattern(but.type)})'
        return rf"\{{{_S}(?:(?:{each}){_S},{_S})*{wrong}{_S}(?:,{_S}(?:{each}){_S})*\}}"
    return rf"\{{{_S}(?:(?:{each})(?:{_S},{_S}(?:{each}))*{_S})?\}}"


@cache
def _pattern(kind: pa.DataType) -> str:
    """Return a pattern for values that fit a type beyond doubt."""
    if pa.types.is_struct(kind):
        return _object_pattern(kind)
    if pa.types.is_list(kind):
        one = f"(?:{_pattern(kind.value_type)}|null)"
        return rf"\[{_S}(?:{one}(?:{_S},{_S}{one})*{_S})?\]"
    if pa.types.is_integer(kind):
        return _digits({8: 2, 16: 4, 32: 9, 64: 18}[kind.bit_width])
    if pa.types.is_decimal(kind):
        fraction = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        return _digits(kind.precision - kind.scale) + fraction
    if pa.types.is_floating(kind):
        return _digits(15) + r"(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"
    if _is_moment(kind):
        return f'"{_DAY}"' if pa.types.is_date(kind) else f'"{_DAY}{_TIME}"'
    return "true|false" if pa.types.is_boolean(kind) else r'"[^"\\\x00-\x1f\x7f]*"'


_REST = r'[^"\\\x00-\x1f\x7f]*"'
_TEXT, _WORD = '"' + _REST, rf'"(?:"|[A-Za-z]{_REST})'
_INT, _FRACTION = "0|-?[1-9][0-9]{0,17}", r"-?(?:0|[1-9][0-9]{0,8})\.(?:0|[0-9]{0,3}[1-9])"
_BOOL = "true|false"


_PLAIN_NUMBER = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"
_SCALAR = f"(?:{_TEXT}|{_PLAIN_NUMBER}|{_BOOL}|null)"


def _other_member(names: Iterable[str]) -> str:
    """Return a pattern for a member of none of these names, with a plain value or a list of such values."""
    some = rf"\[{_S}(?:{_SCALAR}(?:{_S},{_S}{_SCALAR})*{_S})?\]"
    return rf'"(?:{_other_name({*names})}){_S}:{_S}(?:{_SCALAR}|{some})'


def _other_name(names: Set[str]) -> str:
    """Return a pattern for text up to a quote that is none of these names."""
    firsts = {f"\\x{{{ord(name[0]):x}}}": name[0] for name in sorted(names) if name}
    ways = [rf'[^{"".join(firsts)}"\\\x00-\x1f\x7f]{_REST}']
    ways += ['"'] * ("" not in names)
    for escaped, first in firsts.items():
        ways.append(f"{escaped}(?:{_other_name({name[1:] for name in names if name.startswith(first)})})")
    return "|".join(ways)


@cache
def _wrong_pattern(kind: pa.DataType) -> str:
    """Return a pattern for values that beyond doubt do not fit a type, written as Python would write them."""
    if pa.types.is_integer(kind):
        digits = len(str(1 << (kind.bit_width - 1)))
        too_long = f"|-?[1-9][0-9]{{{digits},18}}" if kind.bit_width < 64 else ""
        return f"{_TEXT}|{_FRACTION}|{_BOOL}{too_long}"
    if pa.types.is_decimal(kind):
        return f"{_WORD}|{_BOOL}"
    if pa.types.is_floating(kind):
        return f"{_TEXT}|{_BOOL}"
    if _is_moment(kind):
        return f"{_WORD}|{_INT}|{_FRACTION}|{_BOOL}"
    if kind == pa.string():
        return f"{_INT}|{_FRACTION}|{_BOOL}"
    return f"{_TEXT}|{_INT}|{_FRACTION}" + f"|{_BOOL}" * (not pa.types.is_boolean(kind))


def _digits(count: int) -> str:
    """Return a pattern for whole numbers of up to so many digits."""
    return f"-?(?:0|[1-9][0-9]{{0,{count - 1}}})" if count else "-?0"


def _all_moments(texts: list[str], kind: pa.DataType) -> bool:
    try:
        _moments(pa.array(texts, pa.string()), kind)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return False
    return True


def _fits_moment(text: str, is_date: bool) -> bool:
    found = _MOMENT.fullmatch(text)
    if found is None or (is_date and found.end(3) < len(text)):
        return False
    try:
        dt.date(int(found[1]) or 4, int(found[2]), int(found[3]))  # Python has no year 0; it is a leap year
    except ValueError:
        return False
    return True


def _fits_decimal(value: int | Decimal | str, precision: int, scale: int) -> bool:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return False
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    used = text.rstrip("0")
    exponent += len(text) - len(used)
    return not used or (-exponent <= scale and len(used) + exponent + scale <= precision)


def _members(text: bytes) -> dict[str, str]:
    """Return the members of a JSON object, each as it is written."""
    found: dict[str, str] = {}
    line = text.decode()
    at = _SPACE.match(line, line.index("{") + 1).end()  # type: ignore[union-attr]
    while line[at] == '"':
        name, at = _PLAINLY.raw_decode(line, at)
        start = _SPACE.match(line, line.index(":", at) + 1).end()  # type: ignore[union-attr]
        _, end = _PLAINLY.raw_decode(line, start)
        found[name] = line[start:end]
        at = _SPACE.match(line, end).end()  # type: ignore[union-attr]
        at = _SPACE.match(line, at + 1).end() if line[at] == "," else at  # type: ignore[union-attr]
    return found
