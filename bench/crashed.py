"""A store that nobody closed: this process appends without a sync and then kills itself with SIGKILL.

``python -m bench.crashed DIRECTORY BYTES RECORDS_PER_BATCH``; run by the recovery section.
"""

from __future__ import annotations

import os
import signal
import sys

import stratalog
from bench.records import rows
from bench.systems.ours import TOPIC

_BLOCK = 20_000


def main() -> None:
    path, size_bytes, per_batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    topic = stratalog.open(path).create_topic(TOPIC)
    ready = [stratalog.Record(row.value, row.key) for row in rows(0, _BLOCK)]
    lists = [ready[at : at + per_batch] for at in range(0, len(ready), per_batch)]
    while topic.size_bytes() < size_bytes:
        if per_batch == 1:
            for record in ready:
                topic.append(record.value, record.key)
        else:
            for records in lists:
                topic.append_many(records)
    print(topic.log_end_offset(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
