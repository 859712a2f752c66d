"""The broker settings that were said last: kept in the settings file, for opens that say nothing.

Without this a command line that opens the store by itself would go by the defaults, and delete by a default
retention what a program means to keep.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.config import BrokerConfig
from stratalog.errors import ConfigError, FormatError, StorageError
from stratalog.format.settings import FILE_NAME, newest, parse
from stratalog.fs import FileSystem
from stratalog.log.context import logger


def remembered(fs: FileSystem, paths: Sequence[str]) -> BrokerConfig:
    """The settings kept in the log directories; the defaults where there are none.

    One that this version does not know is left out, with a warning: a newer one wrote it.
    """
    found = []
    for path in paths:
        try:
            found.append(parse(fs.read_file(f"{path}/{FILE_NAME}")))
        except (FileNotFoundError, NotADirectoryError, FormatError, StorageError):
            continue  # opening will say what is wrong with it
    kept = newest(found)
    said = dict(kept.store) if kept is not None else {}
    try:
        return BrokerConfig.parse(said)
    except ConfigError:
        known = {}
        for name, value in said.items():
            try:
                BrokerConfig.parse({name: value})
                known[name] = value
            except ConfigError as error:
                logger.warning("a setting kept with the store is left out: %s", error)
        return BrokerConfig.parse(known)
