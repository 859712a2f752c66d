"""Copies of a store and of its topics, made beside whoever holds it.

    clone       an instant copy by hard links
    restore     a new store as of a moment, or up to given offsets
    exporting   a topic as one file with checksums
    importing   ... and in again
    graduate    a topic handed to a real Kafka broker's log directory
    adopt       a topic taken over from one
    registry    which copies were made: what `erase` cannot reach

Sealed segments are linked or read, never written; a target appears whole or not at all.
"""

from __future__ import annotations

from stratalog.store.copies.adopt import adopt
from stratalog.store.copies.clone import clone, restore
from stratalog.store.copies.exporting import export_topic
from stratalog.store.copies.graduate import graduate
from stratalog.store.copies.importing import check_export, import_topic
from stratalog.store.copies.registry import CopyEntry, clones
from stratalog.store.copies.reports import (
    CloneReport,
    ExportReport,
    GraduateReport,
    ImportReport,
    PartitionCopy,
    Progress,
    RestoreReport,
)

__all__ = [
    "CloneReport",
    "CopyEntry",
    "ExportReport",
    "GraduateReport",
    "ImportReport",
    "PartitionCopy",
    "Progress",
    "RestoreReport",
    "adopt",
    "check_export",
    "clone",
    "clones",
    "export_topic",
    "graduate",
    "import_topic",
    "restore",
]
