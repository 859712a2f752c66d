"""The tables that ``export`` and ``materialize`` write.

`tables` is the contract: an output holds each partition up to an offset, and one commit of the output adds
files and moves that offset. `delta`, `iceberg` and `parquet_files` implement it by the means of their format;
there is no commit log of ours. `files` makes Parquet of records, in a directory or an object store.
"""
