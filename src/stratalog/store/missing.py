"""Files that are gone under an open store: another program removed, renamed or unmounted them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.errors import StorageError, StratalogError
from stratalog.log.names import parse_partition_dir
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.registry import View


def missing(view: View, error: FileNotFoundError) -> StratalogError:
    """Build the error for a file of a partition that is not there, naming the directory and the way out.

    Where the topic was deleted meanwhile it is the error for that.
    """
    directory = view.directory
    if isinstance(view, PartitionWriter) and view.deleted is not None:
        return view.deleted
    if view.context.fs.exists(directory):
        path = error.filename or (error.args[0] if error.args else directory)
        return StorageError(
            f"{path} is gone, but the log needs it: another program removed it; put it back, or see"
            f" `stratalog repair`"
        )
    parsed = parse_partition_dir(directory.rsplit("/", 1)[-1])
    given_up = "" if parsed is None else f" {parsed.topic} --partition {parsed.partition}"
    return StorageError(
        f"{directory} is gone: another program removed, renamed or unmounted it; put it back and open the"
        f" store again, or give the partition up with `stratalog repair{given_up} --action drop-damaged`"
    )


@contextmanager
def or_missing(view: View) -> Iterator[None]:
    """Around work on a partition: a file that is not there is a `StorageError` that says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise missing(view, error) from error
