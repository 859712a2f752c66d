"""A dead broker's directory to Parquet, without Kafka and without writing to the directory.

    python examples/dead_broker.py /var/lib/kafka/data OUT [TOPIC ...]

One file for each topic, `OUT/orders.parquet`, written as it is read: memory does not grow with the log. What
cannot be read is named on stderr, and the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow.parquet as pq

import stratalog
from stratalog.errors import StratalogError


def export(topic: stratalog.Topic, path: Path) -> int:
    """Write one topic, partition after partition; return the number of records."""
    count = 0
    with topic.scan() as reader, pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("topics", nargs="*", help="all of them when none is named")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with stratalog.open(options.directory, read_only=True) as store:
        for name in options.topics or store.topics():
            path = options.out / f"{name}.parquet"
            try:
                print(f"{path}: {export(store[name], path)} records")
            except StratalogError as error:
                path.unlink(missing_ok=True)
                print(f"{name}: {error}", file=sys.stderr)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
