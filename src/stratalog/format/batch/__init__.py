"""The record batch (Kafka's RecordBatch v2): everything the log needs of it, under one name.

    header_scan  find, check and tabulate batch headers; index entries
    decode       decode records, key hashes and timestamps
    produce      validate ready-made batches of network producers; change their codec
    encode       encode records and transaction markers as batches
    filter       filter batches for compaction and erasing
    from_arrow   encode Arrow tables as batches
    ../arrow     decode records to Arrow, and the schema

Pure functions over buffers; what a crash may leave of a batch is told by ``scan``.
"""

from __future__ import annotations

from typing import Any

from stratalog.format.arrow import COLUMNS, decode_arrow, iter_arrow, schema_for
from stratalog.format.batch.decode import (
    MAX_BATCH_BYTES,
    decode_control,
    decode_keys,
    decode_records,
    measure,
)
from stratalog.format.batch.encode import (
    Encoded,
    batch_attributes,
    encode_control,
    encode_one,
    encode_records,
    too_large,
    whole_crc,
    with_codec,
)
from stratalog.format.batch.from_arrow import ArrowRows, encode_arrow
from stratalog.format.batch.header_scan import (
    HEADER_SIZE,
    LAYOUT,
    BatchHeader,
    IndexColumns,
    IndexEntry,
    IndexState,
    Peek,
    Scan,
    Stop,
    find_magic,
    index_columns,
    index_entries,
    peek,
    place,
    scan,
    set_producer,
    size_of,
)
from stratalog.format.batch.produce import headers, validate

__all__ = [
    "COLUMNS",
    "HEADER_SIZE",
    "LAYOUT",
    "MAX_BATCH_BYTES",
    "ArrowRows",
    "BatchHeader",
    "Encoded",
    "IndexColumns",
    "IndexEntry",
    "IndexState",
    "Peek",
    "Scan",
    "Stop",
    "batch_attributes",
    "decode_arrow",
    "decode_control",
    "decode_keys",
    "decode_records",
    "encode_arrow",
    "encode_control",
    "encode_one",
    "encode_records",
    "find_magic",
    "headers",
    "index_columns",
    "index_entries",
    "iter_arrow",
    "measure",
    "peek",
    "place",
    "scan",
    "schema_for",
    "set_producer",
    "size_of",
    "too_large",
    "validate",
    "whole_crc",
    "with_codec",
]


def __getattr__(name: str) -> Any:
    if name == "SCHEMA":  # needs pyarrow, so it is made when asked for
        return schema_for(COLUMNS)
    raise AttributeError(name)
