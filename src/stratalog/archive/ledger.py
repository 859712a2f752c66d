"""The manifest object of one partition, and the right to change it.

One writer. The manifest names the store that owns it and the session, one process of that store, that may
change it; every change is a conditional put on the very manifest it was made from. Whoever loses looks again:
it goes on when the manifest is its own, and raises ArchiveConflictError when somebody else is the writer now.
A process becomes the session before it puts its first object; from then on nobody can commit what an
earlier one had begun.

Crash policy: a put may have happened although its answer never came. The token in the manifest tells.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from stratalog import locks
from stratalog.archive import manifest as manifests
from stratalog.archive.manifest import Manifest
from stratalog.archive.objects import Objects
from stratalog.errors import ArchiveConflictError, ArchiveError

ATTEMPTS = 20
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class About:
    """What a rebuilt store must know of the topic; goes into every manifest that is written."""

    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: tuple[tuple[int, int], ...] = ((0, 0),)


class Ledger:
    """Reads the manifest at any time; changes it for a caller that takes care to be the only one here."""

    def __init__(
        self, objects: Objects, key: str, blank: tuple[str, uuid.UUID, int], store_id: str, session: str
    ) -> None:
        self.url = objects.url_of(key)
        self.about: About | None = None
        """None leaves in the manifest what it says."""
        self._objects = objects
        self._key = key
        self._blank = blank
        self._store_id = store_id
        self._session = session
        self._mutex = locks.lock("archive.manifest")
        self._known: tuple[Manifest, str] | None = None
        self._fresh = False
        self._claimed = False

    def read(self, *, refresh: bool = False) -> Manifest | None:
        """What the archive holds; None when it holds nothing of this partition, not even a claim."""
        known = self._fetch() if refresh or not self._fresh else self._known
        return None if known is None else known[0]

    def _fetch(self) -> tuple[Manifest, str] | None:
        self._fresh = False
        known: tuple[Manifest, str] | None = None
        try:
            found = self._objects.get(self._key)
            known = manifests.parse(found.data, self.url), found.tag
        except FileNotFoundError:
            pass
        with self._mutex:
            self._known, self._fresh = known, True
        return known

    def claim(self, *, take_over: bool = False) -> Manifest:
        """Become the writer. ``take_over`` takes the archive away from the store that owns it.

        ArchiveConflictError when another store owns it, or when a later process of this store does.
        """
        known = self._known if self._claimed and self._fresh else self._fetch()
        if known is None:
            try:
                return self._put(self._stamped(Manifest(*self._blank, self._store_id)), None)
            except _Lost:
                known = self._known
        if known is not None and self._is_mine(known[0]):
            self._claimed = True
            return known[0]
        return self.change(lambda current: current, take_over=take_over)

    def _is_mine(self, manifest: Manifest) -> bool:
        return (manifest.owner, manifest.session) == (self._store_id, self._session)

    def change(self, change: Callable[[Manifest], Manifest], *, take_over: bool = False) -> Manifest:
        """Commit a change: applied to the newest manifest until that is the one which was changed."""
        for attempt in range(ATTEMPTS):
            known = self._known if self._fresh else self._fetch()
            if known is None:
                raise ArchiveError("the manifest is gone", url=self.url)
            current, tag = known
            fenced = self._claimed and not self._is_mine(current)
            if not take_over and (current.owner != self._store_id or fenced):
                raise self._conflict(current)
            try:
                return self._put(self._stamped(change(current)), tag)
            except _Lost:
                time.sleep(_PAUSE_S * attempt * secrets.randbelow(100) / 100)
        raise ArchiveConflictError("lost every race for the manifest", url=self.url)

    def forget(self) -> None:
        """The manifest was removed: a new one would begin from nothing."""
        with self._mutex:
            self._known, self._fresh, self._claimed = None, False, False

    def _conflict(self, manifest: Manifest) -> ArchiveConflictError:
        if manifest.owner == self._store_id:
            reason = "another process with the id of this store writes to this archive; only one may"
        else:
            reason = f"this archive belongs to the store {manifest.owner}; take it over if that one is gone"
        return ArchiveConflictError(reason, url=self.url, owner=manifest.owner)

    def _stamped(self, manifest: Manifest) -> Manifest:
        about = self.about or About(manifest.partitions, manifest.config, manifest.leader_epochs)
        return replace(
            manifest,
            owner=self._store_id,
            session=self._session,
            generation=manifest.generation + 1,
            token=secrets.token_hex(8),
            partitions=about.partitions,
            config=dict(about.config),
            leader_epochs=about.leader_epochs,
        )

    def _put(self, wanted: Manifest, tag: str | None) -> Manifest:
        """One conditional put; ``_Lost`` when another was first, and then the newest manifest is known."""
        data = manifests.pack(wanted)
        self._fresh = False
        try:
            if tag is None:
                put = self._objects.put_if_absent(self._key, data)
            else:
                put = self._objects.put_if_match(self._key, data, tag)
        except ArchiveError:
            # It may have happened all the same.
            if not self._happened(wanted):
                raise
            return wanted
        if put is None:
            if not self._happened(wanted):
                raise _Lost
            return wanted
        with self._mutex:
            self._known, self._fresh, self._claimed = (wanted, put), True, True
        return wanted

    def _happened(self, wanted: Manifest) -> bool:
        known = self._fetch()
        if known is None or known[0].token != wanted.token:
            return False
        self._claimed = True
        return True


class _Lost(Exception):  # noqa: N818 - not an error: the race goes on
    """Another conditional put was first."""
