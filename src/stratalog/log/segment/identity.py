"""Which partition a directory is, for the sidecars that name theirs: read from its `partition.metadata`."""

from __future__ import annotations

from stratalog.errors import FormatError
from stratalog.format.identity import NO_TOPIC_ID, PartitionId
from stratalog.format.metadata import parse_partition_metadata
from stratalog.fs import FileSystem
from stratalog.log.names import PARTITION_METADATA


def owner_of(fs: FileSystem, directory: str, partition: int) -> PartitionId:
    """Return the identity of a partition directory; its topic id is zero when the directory names none.

    Read at each call: a topic may be deleted and created again under the same name while readers look on.
    """
    try:
        topic_id = parse_partition_metadata(fs.read_file(f"{directory}/{PARTITION_METADATA}")).bytes
    except (FileNotFoundError, NotADirectoryError, FormatError):
        topic_id = NO_TOPIC_ID
    return PartitionId(topic_id, partition)
