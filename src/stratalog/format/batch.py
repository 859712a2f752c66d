"""The record batch (Kafka's RecordBatch v2): everything the log needs of it, under one name.

    batch_scan     headers found, checked and tabled; index entries
    batch_decode   records, key hashes, timestamps measured
    batch_produce  ready-made batches: the network's checks, another codec
    batch_encode   records and transaction markers made into batches
    arrow          records as Arrow, and the schema
    batch_arrow    Arrow tables made into batches

Pure functions over buffers; what a crash may leave of a batch is told by ``scan``.
"""

from __future__ import annotations

from typing import Any

from stratalog.format.arrow import COLUMNS, decode_arrow, iter_arrow, schema_for
from stratalog.format.batch_arrow import ArrowRows, encode_arrow
from stratalog.format.batch_decode import (
    MAX_BATCH_BYTES,
    decode_control,
    decode_keys,
    decode_records,
    measure,
)
from stratalog.format.batch_encode import (
    Encoded,
    batch_attributes,
    encode_control,
    encode_one,
    encode_records,
    too_large,
    whole_crc,
    with_codec,
)
from stratalog.format.batch_produce import headers, validate
from stratalog.format.batch_scan import (
    HEADER_SIZE,
    LAYOUT,
    BatchHeader,
    IndexColumns,
    IndexEntry,
    IndexState,
    Peek,
    Scan,
    Stop,
    index_columns,
    index_entries,
    peek,
    scan,
)

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
    "headers",
    "index_columns",
    "index_entries",
    "iter_arrow",
    "measure",
    "peek",
    "scan",
    "schema_for",
    "too_large",
    "validate",
    "whole_crc",
    "with_codec",
]


def __getattr__(name: str) -> Any:
    if name == "SCHEMA":  # needs pyarrow, so it is made when asked for
        return schema_for(COLUMNS)
    raise AttributeError(name)
