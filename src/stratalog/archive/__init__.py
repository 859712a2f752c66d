"""The archive: sealed segments in a directory or an object store. The only room that touches an object store.

`objects` holds the requests to a store, `manifest` what is archived and who may change that, `upload` how a
segment gets there, `partition` all of it for one partition, `source` how a segment is read again, through
`cache`. Knows no log.
"""

from __future__ import annotations

from stratalog.archive.archive import Archive, ArchiveCheck, ArchiveOptions, open_archive
from stratalog.archive.cache import BlockCache
from stratalog.archive.manifest import About, Manifest, SegmentEntry
from stratalog.archive.objects import ObjectInfo, Objects, Tagged, directory_of, open_objects
from stratalog.archive.partition import PartitionArchive
from stratalog.archive.upload import SegmentUpload

__all__ = [
    "About",
    "Archive",
    "ArchiveCheck",
    "ArchiveOptions",
    "BlockCache",
    "Manifest",
    "ObjectInfo",
    "Objects",
    "PartitionArchive",
    "SegmentEntry",
    "SegmentUpload",
    "Tagged",
    "directory_of",
    "open_archive",
    "open_objects",
]
