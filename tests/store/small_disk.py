"""A disk so small that it fills up: a tmpfs where one may be mounted, else a quota over a real directory."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stratalog.fs import File, FileSystem, RealFileSystem
from stratalog.fs.contract import Buffer, Mode, os_error, storage_error

PAGE = 4096


@dataclass
class SmallDisk:
    """``path`` lies on it; `leave` fills it up but for so many pages, `free` makes room again."""

    path: Path
    fs: FileSystem
    pages: int

    @property
    def real(self) -> bool:
        """Whether other processes find no room either."""
        return not isinstance(self.fs, _Quota)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    @property
    def log(self) -> Path:
        return self.path / "log"

    def free_pages(self) -> int:
        if isinstance(self.fs, _Quota):
            return self.fs.free_pages()
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize // PAGE

    def leave(self, pages: int) -> None:
        """Fill the disk up with something else, but for so many pages."""
        room = self.free_pages() - pages
        held = self._ballast.stat().st_size if self._ballast.exists() else 0
        if room < 0 and held < -room * PAGE:
            raise AssertionError(f"only {self.free_pages()} pages are free")
        with self._ballast.open("ab") as file:
            if room >= 0:
                file.write(bytes(room * PAGE))
            else:
                file.truncate(held + room * PAGE)
        assert self.free_pages() == pages

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(where: Path, pages: int = 512) -> Iterator[SmallDisk]:
    where.mkdir(parents=True)
    size = f"size={pages * PAGE}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "stratalog-test", str(where)], capture_output=True, check=False
    )
    if mounted.returncode:
        # Nobody else may mount: then the quota plays the disk. For root the real thing is a must.
        assert os.geteuid() != 0, mounted.stderr.decode()
        yield SmallDisk(where, cast(FileSystem, _Quota(where, pages)), pages)
        return
    try:
        yield SmallDisk(where, RealFileSystem(), pages)
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


class _Quota(RealFileSystem):
    """The real filesystem, and no room past so many pages."""

    def __init__(self, root: Path, pages: int) -> None:
        super().__init__()
        self._root, self._pages = root, pages

    def free_pages(self) -> int:
        sizes = [path.stat().st_size for path in self._root.rglob("*") if path.is_file()]
        return self._pages - sum(-(-size // PAGE) for size in sizes)

    def open(self, path: str, mode: Mode = "r") -> File:  # type: ignore[override]
        return cast(File, _QuotaFile(self, super().open(path, mode)))

    def free_bytes(self, path: str) -> int:
        return self.free_pages() * PAGE


class _QuotaFile:
    def __init__(self, fs: _Quota, file: File) -> None:
        self._fs, self._file = fs, file
        self.path = file.path

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __enter__(self) -> _QuotaFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def pwrite(self, data: Buffer, offset: int) -> None:
        size = self._file.size()
        more = -(-max(size, offset + len(data)) // PAGE) - -(-size // PAGE)
        if more > self._fs.free_pages():
            raise storage_error(os_error(errno.ENOSPC, self.path), self.path, "write")
        self._file.pwrite(data, offset)
