"""Many partitions: log directories, topics, the lock, the background thread, and the control socket."""

from __future__ import annotations

from stratalog.log.read.list_offsets import OffsetSpec
from stratalog.store.admin.admin import AdminClient, connect
from stratalog.store.groups import Consumer
from stratalog.store.lifecycle.reports import LogDirInfo, verify
from stratalog.store.reading import Records
from stratalog.store.store import Store, open_store
from stratalog.store.topic import Topic

__all__ = [
    "AdminClient",
    "Consumer",
    "LogDirInfo",
    "OffsetSpec",
    "Records",
    "Store",
    "Topic",
    "connect",
    "open_store",
    "verify",
]
