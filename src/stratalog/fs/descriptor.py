"""A descriptor with an owner from the moment it exists until the moment it is gone.

Python runs signal handlers between two of its own steps. An exception from one, Ctrl-C for example, between
`os.open` and the assignment of its result would leave a descriptor that nobody closes, and one between an
assignment and `os.close` likewise. Here both steps are one call into C, where no handler runs.
"""

from __future__ import annotations

import os


class Descriptor:
    """An open file of the system; closed at the latest with the last reference to this object."""

    __slots__ = ("_fds",)

    def __init__(self, path: str, flags: int) -> None:
        """Open ``path``, closed in children that run another program. Raises what `os.open` raises."""
        self._fds: list[int] = []
        self._fds.extend(map(os.open, (path,), (flags | os.O_CLOEXEC,), (0o644,)))

    @property
    def fd(self) -> int:
        """The number; -1 when it is closed."""
        fds = self._fds
        return fds[0] if fds else -1

    def close(self) -> None:
        """Close it; several threads may call this, and only one of them does."""
        try:
            next(map(os.close, iter(self._fds.pop, None)))
        except IndexError:
            pass  # it is closed

    def __del__(self) -> None:
        if getattr(self, "_fds", None):
            self.close()
