"""Which partition a sidecar belongs to: topic id and partition number, as seal and tail carry them.

A sidecar that was restored into the wrong directory, or renamed with it, must not be believed there. A topic
of a Kafka before 2.8 has no id, and sidecars of older versions name nothing: an unknown part matches
everything. Touches no disk.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from stratalog.format.metadata import id_to_text

NO_TOPIC_ID = bytes(16)
NO_PARTITION = -1


class PartitionId(NamedTuple):
    """A topic id (16 bytes, zeros when there is none) and a partition number (-1 when it is not known)."""

    topic_id: bytes = NO_TOPIC_ID
    partition: int = NO_PARTITION

    def __str__(self) -> str:
        return f"partition {self.partition} of the topic with id {id_to_text(uuid.UUID(bytes=self.topic_id))}"

    def matches(self, other: PartitionId) -> bool:
        """Return False when both are known and differ."""
        ids, partitions = (self.topic_id, other.topic_id), (self.partition, other.partition)
        return (ids[0] == ids[1] or NO_TOPIC_ID in ids) and (
            partitions[0] == partitions[1] or NO_PARTITION in partitions
        )


UNKNOWN_PARTITION = PartitionId()
