"""Operations made of other operations, the same on every filesystem.

They are built from the filesystem's own single steps on purpose: in the crashable filesystem each step is a
place to crash, in the failing one each step can fail. What each promises after a crash is in the contract.
"""

from __future__ import annotations

import contextlib
import posixpath
from abc import ABC, abstractmethod

from stratalog.errors import StorageError
from stratalog.fs.contract import READ_FILE_LIMIT_BYTES, Buffer, File, FileStat, Mode


class ComposedOperations(ABC):
    """Whole-file reads and writes on top of ``open``, ``rename``, ``remove`` and ``sync_dir``."""

    @abstractmethod
    def open(self, path: str, mode: Mode = "r") -> File: ...

    @abstractmethod
    def stat(self, path: str) -> FileStat: ...

    @abstractmethod
    def rename(self, src: str, dst: str) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None: ...

    @abstractmethod
    def sync_dir(self, path: str) -> None: ...

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_file(self, path: str, limit: int = READ_FILE_LIMIT_BYTES) -> bytes:
        with self.open(path) as file:
            # The size is asked first so that a huge file costs nothing; the read may still find more, as
            # the file may grow meanwhile.
            size = file.size()
            if size > limit:
                raise StorageError(f"{path}: {size} bytes where at most {limit} were expected")
            data = file.pread(size, 0)
            while more := file.pread(min(limit + 1 - len(data), 65536), len(data)):
                data += more
                if len(data) > limit:
                    raise StorageError(f"{path}: grew past {limit} bytes while it was read")
            return data

    def write_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        with self.open(path, "a") as file:
            file.pwrite(data, 0)
            if file.size() != len(data):
                file.truncate(len(data))
            if sync:
                file.sync()

    def write_atomic(self, path: str, data: Buffer) -> None:
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
