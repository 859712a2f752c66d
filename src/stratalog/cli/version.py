"""``stratalog --version``: what is running."""

from __future__ import annotations

import platform

from stratalog.version import __version__


def version_line() -> str:
    """Name and version, then the kernel, pyarrow and Python, on one line."""
    return (
        f"stratalog {__version__} "
        f"(kernel {_kernel()}, pyarrow {_installed('pyarrow')}, Python {platform.python_version()})"
    )


def _installed(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _kernel() -> str:
    from stratalog import kernel

    return "compiled" if kernel.compiled else "interpreted, slower: no C compiler was there at install"
