"""The tables that ``export`` and ``materialize`` write, and the work on the executors that fills them.

`table` is the contract: an output holds each partition up to an offset, and one commit of the output adds
files and moves that offset. `delta`, `iceberg` and `parquet_files` keep it by the means of their format;
there is no commit log of ours. `plan` says what is new, `work` reads it on the executors, `files` and
`payload` make Parquet of it, `places` is a directory or an object store. For ``materialize``, `as_of` says up
to where to read, and `latest` reduces a partition to its keys.
"""
