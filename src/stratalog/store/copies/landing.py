"""Where a topic comes in: an open store, a store that another process holds, or one that nobody has open.

Partitions are staged in the log directories themselves and taken in by whoever holds the store (see
`stratalog.store.arriving`); when something fails on the way, what was staged is removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeAlias

from stratalog.config import BrokerConfig, check_names, parse_overrides
from stratalog.errors import ConfigError, ReadOnlyError, StorageError
from stratalog.format.metadata import id_to_text
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.context import Clock, LogContext, SystemClock
from stratalog.store import arriving
from stratalog.store.admin.admin import AdminClient, connect
from stratalog.store.arriving import Staged
from stratalog.store.copies.building import PartitionBuilder
from stratalog.store.copies.reports import PartitionCopy
from stratalog.store.paths import Paths, path_list
from stratalog.store.store import Store, open_store

Target: TypeAlias = Store | AdminClient | Paths


class Landing:
    """A place to bring a topic to. Made by `landing`."""

    def __init__(
        self,
        client: AdminClient | None,
        broker: BrokerConfig,
        context: LogContext,
        paths: Sequence[str] = (),
        topics: Sequence[str] = (),
    ) -> None:
        self._client = client
        self.paths = paths
        """The target's log directories, where they are known."""
        self.topics = topics
        """Its topics, where it is open."""
        self.broker = broker
        self.context = context
        self.read_fs = context.fs

    def now_ms(self) -> int:
        return self.context.clock.now_ms()

    def settings(
        self, found: Mapping[str, str], given: Mapping[str, object] | None
    ) -> tuple[dict[str, str], list[str]]:
        """The settings a topic came with, less those this version does not know, and what was asked for."""
        known: dict[str, object] = {}
        notes = []
        for name, value in found.items():
            try:
                check_names([name])
                parse_overrides({name: value})
            except ConfigError as error:
                notes.append(f"the setting {name}={value} was left behind: {error}")
                continue
            known[name] = value
        return parse_overrides({**known, **(given or {})}), notes

    @contextmanager
    def staging(self, name: str, partitions: int) -> Iterator[list[str]]:
        """Directories to build in; removed again unless they were taken in."""
        staged = self._way_in().stage_topic(name, partitions)
        try:
            yield staged
        finally:
            for directory in staged:
                if self.context.fs.exists(directory):
                    with suppress(StorageError, FileNotFoundError):
                        self.context.fs.remove_tree(directory)

    def take_in(
        self,
        name: str,
        topic_id: uuid.UUID,
        config: Mapping[str, str],
        copies: Sequence[PartitionCopy],
        builders: Sequence[PartitionBuilder],
    ) -> None:
        """The last step: from here on the topic is there."""
        staged = []
        for copy, builder in zip(copies, builders, strict=True):
            arriving.mark(self.context.fs, builder.directory, name, copy.partition)
            staged.append(Staged(builder.directory, copy.log_start_offset, builder.segments[0].base_offset))
        roots = {each.directory.rpartition("/")[0] for each in staged}
        for root in roots:
            self.context.fs.sync_dir(root)
        self.context.handles.close()
        self._way_in().take_in_topic(name, id_to_text(topic_id), config, staged)

    def _way_in(self) -> AdminClient:
        if self._client is None:
            raise ReadOnlyError("this is a trial run: nothing comes in")
        return self._client


@contextmanager
def landing(target: Target, fs: FileSystem | None = None, *, only_looks: bool = False) -> Iterator[Landing]:
    """A way into the target, whoever has it open; with ``only_looks`` a path is not opened."""
    with ExitStack() as stack:
        clock: Clock = SystemClock()
        broker = BrokerConfig.parse(None)
        client: AdminClient | None = None
        paths: Sequence[str] = ()
        topics: Sequence[str] = ()
        if isinstance(target, AdminClient):
            client, paths = target, target.paths
        elif isinstance(target, Store):
            client = AdminClient.of(target)
            inside = target.partitions.context
            fs, clock, broker = inside.fs, inside.clock, target.config
            paths, topics = [each.path for each in target.partitions.dirs.all], target.topics()
        elif only_looks:
            paths = path_list(fs or RealFileSystem(), target)
        elif fs is not None and not isinstance(fs, RealFileSystem):
            store = stack.enter_context(open_store(target, create=True, fs=fs, background=False))
            client = AdminClient.of(store)
        else:
            client = stack.enter_context(connect(target, create=True))
        fs = fs or RealFileSystem()
        handles = HandleCache(fs)
        stack.callback(handles.close)
        yield Landing(client, broker, LogContext(fs, handles, clock), paths, topics)
