"""Many partitions: log directories, topics, the lock, the background thread, and the control socket.

The names are imported with their first use: a command that only reads loads no more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.log.read.list_offsets import OffsetSpec
    from stratalog.store.admin.admin import AdminClient, connect
    from stratalog.store.groups import Consumer
    from stratalog.store.lifecycle.reports import LogDirInfo, verify
    from stratalog.store.reading import Records
    from stratalog.store.serde import SerializedTopic
    from stratalog.store.store import Store, open_store
    from stratalog.store.topic import Topic
    from stratalog.store.transactions import Transaction

_MODULES = {
    "AdminClient": "stratalog.store.admin.admin",
    "Consumer": "stratalog.store.groups",
    "LogDirInfo": "stratalog.store.lifecycle.reports",
    "OffsetSpec": "stratalog.log.read.list_offsets",
    "Records": "stratalog.store.reading",
    "SerializedTopic": "stratalog.store.serde",
    "Store": "stratalog.store.store",
    "Topic": "stratalog.store.topic",
    "Transaction": "stratalog.store.transactions",
    "connect": "stratalog.store.admin.admin",
    "open_store": "stratalog.store.store",
    "verify": "stratalog.store.lifecycle.reports",
}

__all__ = [
    "AdminClient",
    "Consumer",
    "LogDirInfo",
    "OffsetSpec",
    "Records",
    "SerializedTopic",
    "Store",
    "Topic",
    "Transaction",
    "connect",
    "open_store",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'stratalog.store' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
