"""Stratalog: the segmented commit log you can pip install.

with stratalog.open("data") as store:
    orders = store.create_topic("orders", partitions=4, if_not_exists=True)
    orders.append(b"created", key=b"order-1")
    for record in orders.read():
        print(record.offset, record.value)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog import errors
from stratalog.model import Appended, AppendedRange, OffsetRange, Record, SegmentInfo, SegmentState
from stratalog.version import __version__

if TYPE_CHECKING:
    from stratalog.broker import Broker, serve
    from stratalog.store import (
        AdminClient,
        Consumer,
        LogDirInfo,
        OffsetSpec,
        Records,
        SerializedTopic,
        Store,
        Topic,
        Transaction,
        connect,
        verify,
    )
    from stratalog.store import open_store as open

_FROM_STORE = {
    "AdminClient": "AdminClient",
    "Consumer": "Consumer",
    "LogDirInfo": "LogDirInfo",
    "OffsetSpec": "OffsetSpec",
    "Records": "Records",
    "SerializedTopic": "SerializedTopic",
    "Store": "Store",
    "Topic": "Topic",
    "Transaction": "Transaction",
    "connect": "connect",
    "open": "open_store",
    "verify": "verify",
}

__all__ = [
    "AdminClient",
    "Appended",
    "AppendedRange",
    "Broker",
    "Consumer",
    "LogDirInfo",
    "OffsetRange",
    "OffsetSpec",
    "Record",
    "Records",
    "SegmentInfo",
    "SegmentState",
    "SerializedTopic",
    "Store",
    "Topic",
    "Transaction",
    "__version__",
    "connect",
    "errors",
    "open",
    "serve",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import the store with its first use: the command line starts faster without it."""
    if name in ("Broker", "serve"):
        from stratalog import broker

        return getattr(broker, name)
    if name in _FROM_STORE:
        from stratalog import store

        return getattr(store, _FROM_STORE[name])
    raise AttributeError(f"module 'stratalog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
