"""Topics that come in whole: imported, adopted. Their partitions are built beside, then taken in at once.

    1  `stage` chooses a directory for each partition: `<topic>-<partition>.<unique>-future`, where the next
       start would sweep it
    2  somebody fills and syncs them (see `copies`), each with a mark, `stratalog.arriving`, that holds the
       name it is to have
    3  `take_in` writes the topic to the settings: from here on it is there
    4  every directory gets its name, and the partitions are opened

A crash before 3 leaves `-future` directories, which the next start removes; after 3 the next start finishes
(`finish`): a marked directory whose topic id is that of the topic in the settings gets its name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.config import parse_overrides
from stratalog.errors import InvalidArgumentError, ReadOnlyError, StorageError, TopicExistsError
from stratalog.format.settings import newest
from stratalog.fs import FileSystem
from stratalog.log.arguments import check_number
from stratalog.log.names import collides, parse_partition_dir, partition_dir, validate_topic
from stratalog.store.catalog import MAX_PARTITIONS, TopicEntry
from stratalog.store.logdir import LogDir
from stratalog.store.partitions import Partitions

ARRIVING = "stratalog.arriving"
LONGEST_NAME = 255


class Staged(NamedTuple):
    """A partition that waits: its directory, where its log starts, and the base of its first segment."""

    directory: str
    log_start_offset: int
    first_base_offset: int


def stage(partitions: Partitions, name: str, count: int) -> list[str]:
    """Where to build the partitions of a topic that is to come in, one path for each."""
    if partitions.read_only:
        raise ReadOnlyError("this store was opened with read_only=True; open it without to change it")
    partitions.check_open()
    count = check_number("partitions", count, 1, MAX_PARTITIONS)
    _check_free(partitions, name)
    found = []
    for number, where in enumerate(partitions.opening.spread(count)):
        tail = f"-{number}.{uuid.uuid4().hex}-future"
        found.append(f"{where.path}/{name[: LONGEST_NAME - len(tail)]}{tail}")
    return found


def mark(fs: FileSystem, directory: str, topic: str, partition: int) -> None:
    """Say which name a staged directory is to have. The last thing written there."""
    fs.write_atomic(f"{directory}/{ARRIVING}", f"{partition_dir(topic, partition)}\n".encode())


def take_in(
    partitions: Partitions,
    name: str,
    topic_id: uuid.UUID,
    config: Mapping[str, object],
    staged: Sequence[Staged],
) -> TopicEntry:
    """Make staged directories a topic of the store. It appears whole or, on an error, not at all."""
    context = partitions.context
    check_number("partitions", len(staged), 1, MAX_PARTITIONS)
    with partitions.changes.of(name):
        _check_free(partitions, name)
        known = partitions.registry.topic_by_id(topic_id)
        if known is not None:
            raise TopicExistsError(f"topic {known.name} has the id of the one that is to come in")
        entry = TopicEntry(name, topic_id, len(staged), parse_overrides(config))
        entry.config(partitions.config)
        places = [_place(partitions, each.directory) for each in staged]
        for number, (each, where) in enumerate(zip(staged, places, strict=True)):
            if not context.fs.exists(f"{each.directory}/{ARRIVING}"):
                raise StorageError(
                    f"{each.directory} is not there any more: the store was opened anew meanwhile; start over"
                )
            partitions.settings.mark_dirty(where)
            _set_log_start(where, name, number, each)
        partitions.settings.save_topic(entry)
        entry = entry.placed(
            {
                number: (where, _name_it(where, each.directory, partition_dir(name, number)))
                for number, (each, where) in enumerate(zip(staged, places, strict=True))
            }
        )
        return partitions.opening.open_and_publish(
            entry, {number: each.log_start_offset for number, each in enumerate(staged)}
        )


def finish(dirs: Sequence[LogDir]) -> None:
    """At a start, before leftovers are swept: name the directories that a crash kept from their names."""
    settings = None
    for each in dirs:
        for directory in each.leftovers():
            fs = each.context.fs
            if not directory.endswith("-future"):
                continue
            try:
                final = fs.read_file(f"{directory}/{ARRIVING}").decode().strip()
            except (FileNotFoundError, UnicodeDecodeError):
                continue
            settings = settings or newest(
                found for found in (one.read_settings() for one in dirs) if found is not None
            )
            parsed = parse_partition_dir(final)
            known = settings.topics.get(parsed.topic) if settings is not None and parsed is not None else None
            if known is None or known.id != each.read_topic_id(directory):
                continue
            if not any(fs.exists(one.file(final)) for one in dirs):
                _name_it(each, directory, final)


def _name_it(where: LogDir, directory: str, name: str) -> str:
    fs, final = where.context.fs, where.file(name)
    fs.rename(directory, final)
    fs.sync_dir(where.path)
    fs.remove(f"{final}/{ARRIVING}")
    return final


def _set_log_start(where: LogDir, name: str, number: int, staged: Staged) -> None:
    """The root checkpoints speak of this partition, and no longer of one of its name that lived here."""
    where.checkpoints.forget([(name, number)])
    if staged.log_start_offset > staged.first_base_offset:
        where.checkpoints.log_start.put((name, number), staged.log_start_offset)


def _place(partitions: Partitions, directory: str) -> LogDir:
    root, _, name = directory.rpartition("/")
    parsed = parse_partition_dir(name)
    for each in partitions.dirs.online():
        if root == each.path and parsed is not None and parsed.state == "future":
            return each
    raise InvalidArgumentError(f"{directory} is not a staged directory of this store")


def _check_free(partitions: Partitions, name: str) -> None:
    validate_topic(name)
    for known in partitions.entries:
        if known == name:
            raise TopicExistsError(f"topic {name} already exists; choose another name, or delete it first")
        if collides(known, name):
            raise TopicExistsError(f"topic {name} differs from {known} only in '.' and '_'")


__all__ = ["ARRIVING", "Staged", "finish", "mark", "stage", "take_in"]
