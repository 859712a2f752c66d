"""The paths a caller gives: checked, and absolute from the moment they are given.

A process may change its working directory while a store is open. Touches no file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from stratalog.archive.objects import absolute_url
from stratalog.errors import InvalidArgumentError
from stratalog.fs import FileSystem
from stratalog.log.arguments import check_mapping

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def path_of(fs: FileSystem, path: str | os.PathLike[str], what: str = "log directory") -> str:
    """Return one path, absolute; InvalidArgumentError when it names nothing."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a {what} is a path, not {name!r}")
    if not name or "\0" in name:
        raise InvalidArgumentError(f"{name!r} names no {what}; '.' is the working directory")
    return fs.absolute(name)


def path_list(fs: FileSystem, paths: Paths) -> list[str]:
    """Return the log directories of a store, absolute; at least one, and none of them twice."""
    several = isinstance(paths, Sequence) and not isinstance(paths, str | bytes)
    names = [path_of(fs, each) for each in (paths if several else (paths,))]  # type: ignore[union-attr, arg-type]
    if not names:
        raise InvalidArgumentError("a store needs at least one log directory")
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"the same log directory is given twice: {', '.join(names)}")
    return names


def absolute_places(config: Mapping[str, object]) -> dict[str, object]:
    """Return broker settings in which a local archive and its cache are absolute.

    They are kept with the store, and the next open may come from another working directory.
    """
    places = dict(check_mapping("config", config))
    url, cache = places.get("log.archive.url"), places.get("log.archive.cache.dir")
    if isinstance(url, str):
        places["log.archive.url"] = absolute_url(url)
    if isinstance(cache, str) and cache:
        places["log.archive.cache.dir"] = os.path.abspath(cache)
    return places
