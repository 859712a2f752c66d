"""Consumer groups: committed offsets in `__consumer_offsets`, and consumers that share partitions.

offsets    the records of `__consumer_offsets`, in Kafka's own schema
consumers  named consumers of one process
"""

from __future__ import annotations

from stratalog.store.groups.consumers import Consumer, Groups
from stratalog.store.groups.offsets import CommittedOffset, GroupOffsets

__all__ = ["CommittedOffset", "Consumer", "GroupOffsets", "Groups"]
