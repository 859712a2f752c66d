"""A reader beside a compaction whose new file got the inode number of the old one."""

from __future__ import annotations

import stratalog
from stratalog import Record
from stratalog.fs import FileStat, MemoryFileSystem

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "cleaner.min.segment.age.ms": 0}


class FewInodes(MemoryFileSystem):
    """Gives every file the same number, as a disk does that has only one to give."""

    def stat(self, path: str) -> FileStat:
        found = super().stat(path)
        return found if found.is_dir else found._replace(inode=7, changed_ns=found.inode)


def test_a_replaced_segment_is_noticed() -> None:
    fs = FewInodes()
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t", config=COMPACTED)
        for round_of in range(3):
            topic.append_many([Record(b"%d" % round_of, b"k%d" % at, (), 1000) for at in range(20)])
            topic.roll()
        with stratalog.open("/d", fs=fs, read_only=True) as beside:
            reader = beside.topic("t")
            assert len(list(reader.read())) == 60
            assert reader.scan().read_all().num_rows == 60
            for _ in range(2):
                topic.append_many([Record(b"new", b"k1", (), 2000)])
                topic.roll()
                store.compact("t", force=True)
                expected = [(record.offset, record.value) for record in topic.read()]
                assert [(record.offset, record.value) for record in reader.read()] == expected
                assert reader.scan().read_all().num_rows == len(expected)
                assert len(expected) < 25
