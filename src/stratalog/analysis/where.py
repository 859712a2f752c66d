"""Conditions on records: ``amount > 100 and country == "DE"``.

    condition   = all { "or" all }
    all         = one { "and" one }
    one         = "not" one | "(" condition ")" | path operator literal
    operator    = "==" | "=" | "!=" | "<" | "<=" | ">" | ">=" | "contains"
    path        = "$" { step } | name { step } | "@" field
    step        = "." name | "[" number "]" | "[" string "]"
    field       = key | offset | partition | timestamp        of the record, not of its value
    literal     = a JSON number, a string in "…" or '…', true, false, null

A path goes into the value, which is JSON unless another form is given. A comparison is false if the path
leads nowhere, if the value is not JSON, or if the two sides are of different kinds (``!=`` is true then);
``== null`` is true where JSON has a null. ``contains`` looks for text in text, or for an element of a list.
``@timestamp`` is in epoch milliseconds. Nothing is evaluated as code, and a condition costs one pass over it.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

from stratalog.errors import InvalidArgumentError
from stratalog.model import Record

Condition = Callable[[Record], bool]
Load = Callable[[Record], Any]
"""Returns the value of a record as lists, dictionaries, text and numbers; `NOWHERE` if it has none."""

MAX_DEPTH = 50
NOWHERE = object()

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[^\W\d][\w-]*)
    |(?P<sign>==|!=|<=|>=|[=<>()\[\].$@])
    )""",
    re.VERBOSE,
)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FIELDS: dict[str, Callable[[Record], Any]] = {
    "key": lambda record: NOWHERE if record.key is None else record.key.decode("utf-8", "replace"),
    "offset": lambda record: record.offset,
    "partition": lambda record: record.partition,
    "timestamp": lambda record: NOWHERE if record.timestamp is None else record.timestamp,
}
_CONSTANTS = {"true": True, "false": False, "null": None}


def load_json(record: Record) -> Any:
    """Return the value of a record as JSON; `NOWHERE` if it is none."""
    try:
        return NOWHERE if record.value is None else json.loads(record.value)
    except (ValueError, RecursionError):
        return NOWHERE


def compile_where(text: str, load: Load = load_json) -> Condition:
    """Return the function of a condition; InvalidArgumentError says what is wrong, and where."""
    return _Parser(text, load).condition()


class _Parser:
    """Reads a condition from left to right, and builds its function."""

    def __init__(self, text: str, load: Load) -> None:
        self._text = text
        self._load = load
        self._at = 0
        self._depth = 0
        self._kind = self._word = ""
        self._take()

    def condition(self) -> Condition:
        found = self._any()
        if self._kind:
            raise self._wrong("`and`, `or` or the end")
        return found

    def _take(self) -> str:
        """Go on to the next word; return the one before it."""
        word = self._word
        self._start = self._at
        if not self._text[self._at :].strip():
            self._kind = self._word = ""
            return word
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._wrong("a path, an operator or a value")
        self._kind = match.lastgroup or ""
        self._word = match[self._kind]
        self._start, self._at = match.start(self._kind), match.end()
        return word

    def _wrong(self, expected: str) -> InvalidArgumentError:
        found = self._text[self._start :].strip()[:20]
        return InvalidArgumentError(
            f"the condition {self._text!r} is not understood at {found!r}: expected {expected}"
            if found
            else f"the condition {self._text!r} ends too early: expected {expected}"
        )

    def _is(self, word: str) -> bool:
        return self._kind in ("name", "sign") and self._word == word

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._is("or"):
            self._take()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda record: any(part(record) for part in parts)

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._is("and"):
            self._take()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda record: all(part(record) for part in parts)

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidArgumentError(f"a condition is nested more than {MAX_DEPTH} levels deep")
        try:
            if self._is("not"):
                self._take()
                inner = self._one()
                return lambda record: not inner(record)
            if self._is("("):
                self._take()
                inside = self._any()
                self._expect(")")
                return inside
            return self._comparison()
        finally:
            self._depth -= 1

    def _expect(self, sign: str) -> None:
        if not self._is(sign):
            raise self._wrong(repr(sign))
        self._take()

    def _comparison(self) -> Condition:
        find = self._path()
        if self._word not in (*_ORDER, "==", "=", "!=", "contains") or self._kind == "string":
            raise self._wrong("an operator: == != < <= > >= or contains")
        compare = _comparer(self._take(), self._literal())

        def holds(record: Record) -> bool:
            value = find(record)
            return value is not NOWHERE and compare(value)

        return holds

    def _path(self) -> Callable[[Record], Any]:
        if self._is("@"):
            self._take()
            if self._word not in _FIELDS:
                raise self._wrong(f"one of {', '.join(_FIELDS)}")
            return _FIELDS[self._take()]
        steps: list[str | int] = []
        if self._is("$"):
            self._take()
        elif self._kind == "name":
            steps.append(self._take())
        else:
            raise self._wrong("a path such as $.amount or amount")
        while self._is(".") or self._is("["):
            if self._take() == ".":
                if self._kind != "name":
                    raise self._wrong("a name")
                steps.append(self._take())
            else:
                if self._kind not in ("number", "string"):
                    raise self._wrong("a number or a string")
                step = self._literal()
                if not isinstance(step, str | int):
                    raise InvalidArgumentError(f"[{step}] is not an index of a list: write a whole number")
                steps.append(step)
                self._expect("]")
        load = self._load
        return lambda record: _follow(load(record), steps)

    def _literal(self) -> Any:
        kind, word = self._kind, self._word
        if kind == "name" and word in _CONSTANTS:
            self._take()
            return _CONSTANTS[word]
        if kind == "number":
            self._take()
            try:
                return json.loads(word)
            except ValueError:
                raise InvalidArgumentError(f"{word[:40]} is not a number as JSON writes it") from None
        if kind == "string":
            self._take()
            inside = word[1:-1] if word[0] == '"' else word[1:-1].replace('"', '\\"').replace("\\'", "'")
            try:
                return json.loads(f'"{inside}"', strict=False)
            except ValueError:
                raise InvalidArgumentError(f"{word} is not a string as JSON writes it") from None
        raise self._wrong("a number, a string, true, false or null")


def _follow(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(step, str):
            found = isinstance(value, dict) and step in value
        else:
            found = isinstance(value, list) and -len(value) <= step < len(value)
        if not found:
            return NOWHERE
        value = value[step]
    return value


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


def _comparer(sign: str, wanted: Any) -> Callable[[Any], bool]:
    kind = _kind(wanted)
    if sign in ("==", "="):
        return lambda value: _kind(value) == kind and bool(value == wanted)
    if sign == "!=":
        return lambda value: _kind(value) != kind or bool(value != wanted)
    if sign == "contains":
        return lambda value: (
            (isinstance(value, str) and isinstance(wanted, str) and wanted in value)
            or (isinstance(value, list) and any(_kind(each) == kind and each == wanted for each in value))
        )
    if kind not in ("number", "str"):
        raise InvalidArgumentError(f"{sign} compares numbers or text, not {json.dumps(wanted)}")
    compare = _ORDER[sign]
    return lambda value: _kind(value) == kind and compare(value, wanted)
