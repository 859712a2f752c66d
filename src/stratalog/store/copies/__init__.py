"""Copies of a store and of its topics, made beside the program that holds it.

    clone       an instant copy by hard links; a new store as of a moment, or up to given offsets
    topic_file  a topic as one file with checksums: exported, checked, imported
    kafka       a topic handed to a Kafka broker's log directory, or taken over from one
    clones      which copies were made: those that `erase` cannot reach
    source      what copies are made from
    building    a new partition directory, filled from a source
    cutting     where a log ended at some time, and a batch cut at an offset

Sealed segments are linked or read, never written; a target appears whole or not at all.
"""

from __future__ import annotations

from stratalog.store.copies.building import PartitionCopy, Progress
from stratalog.store.copies.clone import CloneReport, RestoreReport, clone, restore
from stratalog.store.copies.clones import CopyEntry, clones
from stratalog.store.copies.kafka import GraduateReport, adopt, graduate
from stratalog.store.copies.topic_file import (
    ExportReport,
    ImportReport,
    check_export,
    export_topic,
    import_topic,
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
