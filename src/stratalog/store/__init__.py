"""Many partitions: log directories, topics, the lock, the background thread, and the control socket."""

from __future__ import annotations

from stratalog.log.offsets import OffsetSpec
from stratalog.store.admin import AdminClient, connect
from stratalog.store.numbers import LogDirInfo
from stratalog.store.store import Store, open_store
from stratalog.store.topic import Topic
from stratalog.store.verifying import verify

__all__ = ["AdminClient", "LogDirInfo", "OffsetSpec", "Store", "Topic", "connect", "open_store", "verify"]
