"""The record batch (Kafka's RecordBatch v2): everything the log needs of it, under one name.

    header_scan  find, check and tabulate batch headers; index entries
    decode       decode records, key hashes and timestamps
    produce      validate ready-made batches of network producers; change their codec
    encode       encode records and transaction markers as batches
    filter       filter batches for compaction and erasing
    arrow        decode records to Arrow, encode Arrow tables as batches; the schema
    totals       count records and find their first and last offsets and times, decoding as few as possible

Pure functions over buffers; ``scan`` reports what a crash left of a batch.
"""

from __future__ import annotations

from stratalog.format.batch.arrow import (
    COLUMNS,
    ArrowRows,
    decode_arrow,
    encode_arrow,
    iter_arrow,
    schema_for,
)
from stratalog.format.batch.decode import (
    MAX_BATCH_BYTES,
    Bounds,
    decode_control,
    decode_keys,
    decode_records,
    measure,
)
from stratalog.format.batch.encode import (
    BatchOptions,
    Encoded,
    batch_attributes,
    encode_control,
    encode_one,
    encode_records,
    too_large,
    whole_crc,
    with_codec,
)
from stratalog.format.batch.header_scan import (
    CRC_FROM,
    HEADER_SIZE,
    LAYOUT,
    LENGTH_FROM,
    BatchHeader,
    IndexColumns,
    IndexState,
    Peek,
    Scan,
    Stop,
    find_magic,
    has_transactional,
    index_columns,
    peek,
    place,
    read_field,
    scan,
    set_producer,
    size_of,
    write_field,
)
from stratalog.format.batch.produce import headers, validate
from stratalog.format.batch.totals import total

__all__ = [
    "COLUMNS",
    "CRC_FROM",
    "HEADER_SIZE",
    "LAYOUT",
    "LENGTH_FROM",
    "MAX_BATCH_BYTES",
    "ArrowRows",
    "BatchHeader",
    "BatchOptions",
    "Bounds",
    "Encoded",
    "IndexColumns",
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
    "has_transactional",
    "headers",
    "index_columns",
    "iter_arrow",
    "measure",
    "peek",
    "place",
    "read_field",
    "scan",
    "schema_for",
    "set_producer",
    "size_of",
    "too_large",
    "total",
    "validate",
    "whole_crc",
    "with_codec",
    "write_field",
]
