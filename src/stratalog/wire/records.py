"""Records of Kafka's internal topics: a key begins with the number of its kind, a value with its version."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from stratalog.errors import CorruptionError
from stratalog.wire.messages import codec
from stratalog.wire.schema import table

_NUMBER = struct.Struct(">h")
TOPICS = {
    "offsets": "__consumer_offsets",
    "transaction-log": "__transaction_state",
    "share-group-state": "__share_group_state",
}
"""The topic of each table."""


@cache
def _kinds(of: str) -> dict[int, str]:
    """Return the kinds of records in a topic by their numbers."""
    return {
        message.id: name.removesuffix("Key")
        for name, message in table(of).items()
        if message.id is not None and name.endswith("Key")
    }


def pack_key(of: str, kind: str, **fields: Any) -> bytes:
    """Return a record's key; raise ValueError if a field does not fit."""
    made = codec(f"{kind}Key", of)
    return made.encode(made(**fields), 0, _NUMBER.pack(made.id))


def pack_value(of: str, kind: str, version: int, **fields: Any) -> bytes:
    """Return a record's value in one version; raise ValueError if a field does not fit."""
    made = codec(f"{kind}Value", of)
    return made.encode(made(**fields), version, _NUMBER.pack(version))


def struct_of(of: str, kind: str, name: str) -> type[Any]:
    """Return the class of a struct in a record's value."""
    return codec(f"{kind}Value", of).struct(name)


def parse_key(of: str, data: bytes) -> tuple[str, Any]:
    """Return the kind of a record, "" if this version knows none of its number, and the fields of its key."""
    try:
        (number,) = _NUMBER.unpack_from(data)
        kind = _kinds(of).get(number, "")
        return kind, codec(f"{kind}Key", of).decode(data, 0, 2)[0] if kind else None
    except (ValueError, struct.error) as error:
        raise CorruptionError(f"a key of {TOPICS[of]} is cut short or garbled: {error}") from error


def parse_value(of: str, kind: str, data: bytes) -> Any:
    """Return the fields of a record's value, in whichever version it was written."""
    try:
        (version,) = _NUMBER.unpack_from(data)
        return codec(f"{kind}Value", of).decode(data, version, 2)[0]
    except (ValueError, struct.error) as error:
        raise CorruptionError(f"a {kind}Value of {TOPICS[of]} is cut short or garbled: {error}") from error
