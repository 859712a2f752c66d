"""Every message with its tuple class and its codec.

A struct is one named tuple for all versions, with Kafka's field names in snake case. A field that a version
does not have is at its default: a handler need not know the version. Arrays are tuples, ids are 16 bytes,
``records`` are views of the bytes they came in.
"""

from __future__ import annotations

import re
from collections import namedtuple
from functools import cache, partial
from typing import Any

from stratalog import kernel
from stratalog.wire.schema import Field, Message, Struct, table

_tuple_class: Any = partial(namedtuple, module=__name__)


class Codec:
    """One message: its class, and its bytes in any version."""

    def __init__(self, message: Message) -> None:
        self.name = message.name
        self.versions = message.versions
        self.flexible = message.flexible
        self.id = message.id
        self._struct = message.struct
        self._classes: dict[str, type[Any]] = {}
        self._plans: dict[int, kernel.WirePlan] = {}
        self.cls = self._class(message.struct)

    def __repr__(self) -> str:
        return f"<Codec {self.name} {self.versions.low}-{self.versions.high}>"

    def __call__(self, **fields: Any) -> Any:
        """Return a message with these fields; the others are at their defaults."""
        return self.cls(**fields)

    def struct(self, name: str) -> type[Any]:
        """Return the class of a struct in this message."""
        return self._classes[name]

    def decode(
        self, data: Any, version: int, start: int = 0, end: int = -1, *, most: int = 0x7FFFFFFF
    ) -> tuple[Any, int]:
        """Return the message in ``data`` from ``start`` on, and the place behind it.

        Raise ValueError if the bytes are not such a message, if its arrays have more than ``most`` elements
        together, or if there is no such version.
        """
        return kernel.decode_message(self._plan(version), data, start, end, most)

    def encode(
        self,
        value: Any,
        version: int,
        head: bytes = b"",
        *,
        framed: bool = False,
        gaps: list[tuple[int, Any]] | None = None,
    ) -> bytes:
        """Return ``head`` and the bytes of a message; ``framed``: after four bytes with their size.

        Fields that the version does not have are left out. With a list as ``gaps``, ``records`` that are not
        bytes are left out and go there with their place: the caller sends their ``length`` bytes from
        elsewhere. Raise ValueError if a value does not fit.
        """
        return kernel.encode_message(self._plan(version), value, head, framed, gaps)

    def _plan(self, version: int) -> kernel.WirePlan:
        made = self._plans.get(version)
        if made is None:
            if version not in self.versions:
                known = f"{self.versions.low} to {self.versions.high}"
                raise ValueError(f"{self.name} has no version {version}, but {known}")
            made = self._plans[version] = self._make_plan(self._struct, version, {})
        return made

    def _class(self, struct: Struct) -> type[Any]:
        """Return the tuple class of a struct; its structs have theirs first."""
        known = self._classes.get(struct.name)
        if known is None:
            for each in struct.fields:
                if each.struct is not None:
                    self._class(each.struct)
            names = [snake(each.name) for each in struct.fields]
            defaults = [self._default(each) for each in struct.fields]
            known = self._classes[struct.name] = _tuple_class(struct.name, names, defaults=defaults)
        return known

    def _default(self, field: Field) -> Any:
        if field.struct is None or field.is_array or field.default is None:
            return field.default
        return self._classes[field.struct.name]()

    def _make_plan(self, struct: Struct, version: int, made: dict[str, kernel.WirePlan]) -> kernel.WirePlan:
        if struct.name in made:
            return made[struct.name]
        flexible = version in self.flexible
        rows: list[tuple[Any, ...]] = []
        for slot, each in enumerate(struct.fields):
            if version not in each.versions:
                continue
            inside = None if each.struct is None else self._make_plan(each.struct, version, made)
            rows.append(
                (
                    snake(each.name),
                    kernel.WIRE_KINDS[each.kind if each.struct is None else "struct"],
                    slot,
                    each.is_array,
                    flexible and each.compact,
                    version in each.nullable,
                    -1 if each.tag is None else each.tag,
                    inside,
                )
            )
        rows.sort(key=lambda row: row[6])  # stable: the untagged ones stay in order
        cls = self._classes[struct.name]
        plan = made[struct.name] = kernel.WirePlan(cls, rows, list(cls()), flexible)
        return plan


def snake(name: str) -> str:
    """Return a name of Kafka's as Python writes it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@cache
def codec(name: str, of: str = "requests") -> Codec:
    """Return the codec of a message in one of our tables."""
    return Codec(table(of)[name])
