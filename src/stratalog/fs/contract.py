"""What the rest of Stratalog may ask of a disk, and what it is promised in return.

Every byte to and from a disk goes through a :class:`FileSystem`. There are three: the real one, one in
memory that can be crashed at any call, and a wrapper that fails on request. All keep this contract, and
one conformance suite checks them.

Durability, in three sentences. ``pwrite``, ``truncate`` and every change of a directory survive the death
of the process as soon as the call returns. They survive a power cut only after ``File.sync`` (contents and
size of that file) and ``sync_dir`` (the names in that directory, not those in its parents). Before that a
power cut may keep any part of them, in any order, with two exceptions: bytes come from what was written or
are zero, and a rename happens wholly or not at all.

Errors: FileNotFoundError, FileExistsError and NotADirectoryError pass as they are. No room (ENOSPC, EDQUOT)
is DiskFullError, a failed fsync is SyncFailedError, anything else the system refuses is StorageError with
path and reason, chained to the OSError.

Concurrency: every method of a filesystem may be called from any thread. A file may be read, written and
synced by several threads at once; writes that overlap have no order. Closing a file while another thread is
inside one of its methods is forbidden, because its descriptor may by then belong to another file
(``HandleCache`` pins files for that reason). Paths use ``/`` and are compared as given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias

from stratalog.errors import DiskFullError, StorageError, SyncFailedError

Mode: TypeAlias = Literal["r", "w", "x", "a"]
"""r: read. w: read and write what exists. x: create, FileExistsError when there. a: as w or create."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to write; a memoryview must be contiguous with items of one byte."""

LockInfo: TypeAlias = dict[str, object]
"""What a lock's holder says about itself: ``pid``, ``control``, ``started`` by convention; JSON values."""

READ_FILE_LIMIT_BYTES = 64 * 2**20
"""How large a file ``read_file`` takes into memory by default."""


class FileStat(NamedTuple):
    """What ``stat`` says of a name; ``inode`` stays with a file through renames.

    The number of an inode is used again after its file is removed. ``changed_ns`` tells the two files apart:
    it moves with every write, rename and link, and cannot be set. It is 0 where no number is used again.
    """

    size: int
    mtime_ns: int
    is_dir: bool
    inode: int
    changed_ns: int = 0

    @property
    def identity(self) -> tuple[int, int, int]:
        """What no other file, and no other state of this one, has."""
        return self.inode, self.changed_ns, self.size


class File(Protocol):
    """One open file, addressed by position. There is no cursor, so threads do not disturb each other."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """``size`` bytes from ``offset`` on; fewer only where the file ends."""

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` on; the number of bytes read, short only where the file ends."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data`` at ``offset``, or raise. After a failure the file may hold any part of it.

        A gap between the old end of the file and ``offset`` reads as zeros. Visible to every reader of
        the file on return, durable only after ``sync``.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size`` bytes; durable only after ``sync``."""

    def reserve(self, offset: int, size: int) -> bool:
        """Ask for disk space for the bytes from ``offset`` on, so that writing there is cheaper later.

        A hint: it never raises and changes nothing that can be read, ``size()`` included. False when it had
        no effect (no such thing here, or no room), and then asking again for this file is of no use. A
        ``truncate`` to the file's own size gives back what was not used; until then it stays taken.
        """

    def sync(self) -> None:
        """Return only when the contents and size of this file, whoever wrote them, survive a power cut.

        Covers every write that returned before this call began. The file's *name* is not covered: see
        ``FileSystem.sync_dir``. A failure raises SyncFailedError, and from then on so does every sync of
        this file, through any handle of this filesystem: the kernel drops the pages it could not write
        and would report success for a second try.
        """

    def size(self) -> int:
        """Return the current size in bytes."""

    def fileno(self) -> int:
        """Return the descriptor, for maps and ``sendfile``; -1 where there is none (in memory)."""

    def close(self) -> None:
        """Give the handle back. Says nothing about durability. Closing twice is fine."""

    def __enter__(self) -> File: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lock(Protocol):
    """An exclusive lock, held until ``release`` or the end of the process."""

    path: str

    def update(self, info: Mapping[str, object]) -> None:
        """Replace what the lock says about its holder."""

    def release(self) -> None:
        """Let others in; the lock file stays. Releasing twice is fine; in a forked child it does nothing."""


class FileSystem(Protocol):
    """A tree of files. See the module's text for durability, errors and threads."""

    def absolute(self, path: str) -> str:
        """Return the path that names the same from any working directory; a slash at its end goes."""

    def open(self, path: str, mode: Mode = "r") -> File:
        """Open a file (never a directory); not inherited by programs this process starts."""

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def stat(self, path: str) -> FileStat:
        """Size, time, kind and inode of what ``path`` names."""

    def exists(self, path: str) -> bool:
        """Return True if ``path`` names anything."""

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set when a file was last changed, in nanoseconds since 1970; the next write moves it on.

        After a power cut it may be any time the file has had: a hint, never a promise.
        """

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents; fine when it is there, FileExistsError when a file is.

        Each level that was created is durable only after ``sync_dir`` of the directory above it.
        """

    def rename(self, src: str, dst: str) -> None:
        """Move a name, replacing ``dst`` in one step: at any moment, also after a power cut, each of the
        two names is as before or as after. Durable after ``sync_dir`` of the directory (both, when two).
        """

    def link(self, src: str, dst: str) -> None:
        """Create a second name for a file; FileExistsError if ``dst`` exists. Durable after ``sync_dir``."""

    def remove(self, path: str) -> None:
        """Remove a file's name; open handles stay usable. Durable after ``sync_dir``."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory. Durable after ``sync_dir`` of the directory above."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it, in no promised order; not atomic; symlinks are not followed."""

    def sync_dir(self, path: str) -> None:
        """Return only when every name created, renamed or removed in this directory so far is durable.

        Says nothing about the contents of the files named, nor about the directory's own name in its parent.
        A failure raises SyncFailedError, then on every later call for this directory too.
        """

    def free_bytes(self, path: str) -> int:
        """Room left for this process on the filesystem that holds ``path``."""

    def read_file(self, path: str, limit: int = READ_FILE_LIMIT_BYTES) -> bytes:
        """Return the whole file; StorageError when it is larger than ``limit`` bytes."""

    def write_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        """Make ``data`` the contents of ``path`` in place; a crash may leave any mixture of old and new.

        With ``sync`` the contents are durable on return; a newly created name is not.
        """

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace ``path`` so that at any moment, also after a power cut, it is wholly old or wholly new.

        Durable on return, name and contents. Writes ``path + ".tmp"`` on the way, which a crash may leave
        behind; two threads must not write the same path at once.
        """

    def lock(self, path: str, info: Mapping[str, object]) -> Lock:
        """Take the lock named by the file ``path`` (created when missing); ``info`` is for others to read.

        Never waits for the holder: StoreLockedError, with its pid and control address where known, in
        well under 100 ms.
        """

    def lock_holder(self, path: str) -> LockInfo | None:
        """Return what the holder says about itself, without taking the lock; None when it is free.

        ``{}`` or only ``pid`` when the holder says nothing (a Java broker does not).
        """


class OpenFile:
    """Close a file at the end of a ``with`` block: the same for every `File`."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self: File, *_: object) -> None:
        self.close()


class ComposedOperations:
    """Operations made of other operations of the same `FileSystem`.

    Each single step is a place to crash in the filesystem in memory, and a step to fail in the failing one.
    """

    def exists(self: FileSystem, path: str) -> bool:
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_file(self: FileSystem, path: str, limit: int = READ_FILE_LIMIT_BYTES) -> bytes:
        with self.open(path) as file:
            # A huge file is refused by its size, before it is read. It may also grow during the read.
            size = file.size()
            if size > limit:
                raise StorageError(f"{path}: {size} bytes where at most {limit} were expected")
            data = file.pread(size, 0)
            while more := file.pread(min(limit + 1 - len(data), 65536), len(data)):
                data += more
                if len(data) > limit:
                    raise StorageError(f"{path}: grew past {limit} bytes while it was read")
            return data

    def write_file(self: FileSystem, path: str, data: Buffer, *, sync: bool) -> None:
        with self.open(path, "a") as file:
            file.pwrite(data, 0)
            if file.size() != len(data):
                file.truncate(len(data))
            if sync:
                file.sync()

    def write_atomic(self: FileSystem, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        try:
            self.write_file(temporary, data, sync=True)
            self.rename(temporary, path)
        except (StorageError, OSError):
            # A full disk must not keep the half-written copy; if even this fails, the next write reuses it.
            with contextlib.suppress(StorageError, OSError):
                self.remove(temporary)
            raise
        self.sync_dir(posixpath.dirname(path) or ".")


PLAIN = (FileNotFoundError, FileExistsError, NotADirectoryError)
"""Errors that are raised as they are, not ``from`` themselves: that is a cycle, which keeps frames alive."""


def storage_error(error: OSError, path: str, action: str) -> Exception:
    """Return the error to raise ``from`` an OSError, by the rules of this contract (sync failures aside)."""
    if isinstance(error, PLAIN):
        return error
    reason = os.strerror(error.errno) if error.errno else str(error)
    message = f"{path}: cannot {action}: {reason}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(message)
    return StorageError(message)


DEVICE_FAILURES = frozenset(
    {errno.EIO, errno.ENXIO, errno.ENODEV, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN}
)
"""Errors of a disk as a whole; every other one is about one file."""


SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Errors of a process that is short of something for a moment; the disk is well."""

REFUSALS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def has_errno(error: BaseException | None, numbers: Collection[int]) -> bool:
    """Return True if an error, or one of its causes, has one of these errnos."""
    while error is not None:
        if getattr(error, "errno", None) in numbers:
            return True
        error = None if error.__cause__ is error else error.__cause__  # an error that was raised as it is
    return False


def is_device_failure(error: BaseException) -> bool:
    """Return True for an error of the disk: a failed sync, or an errno in `DEVICE_FAILURES`."""
    return isinstance(error, SyncFailedError) or has_errno(error, DEVICE_FAILURES)


def is_shortage(error: BaseException) -> bool:
    """Return True if a call failed for want of descriptors or memory: it may be tried again."""
    return not isinstance(error, SyncFailedError) and has_errno(error, SHORTAGES)


def is_refusal(error: BaseException | None) -> bool:
    """Return True for an error that says we may not write here: a read-only mount."""
    return has_errno(error, REFUSALS)


def os_error(code: int, path: str) -> OSError:
    """Return an OSError as the system would raise it, for filesystems that are not the system's."""
    return OSError(code, os.strerror(code), path)
