"""The command line: ``stratalog``.

Data goes to stdout, messages to stderr. Reads open the store read-only; changes go through
``stratalog.store.connect``, which asks the process that holds the store, if there is one: every command
works beside a running program. Nothing here touches a file of the store itself.
"""

from __future__ import annotations

import os
import platform
import signal
import sys


def main() -> None:
    """Run the console script. ``--version`` alone is answered without loading the parser."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(version_line())
        return
    _open_what_is_closed()
    # Nothing is open yet: until the parser is loaded Ctrl-C may end the process at once.
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: _leave())
    from stratalog.cli.app import run

    signal.signal(signal.SIGINT, interrupt)
    run()


def _open_what_is_closed() -> None:
    """Give a program that was started without stdin, stdout or stderr (``<&-``) an empty one."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the life of the program
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _leave() -> None:
    os.write(2, b"stratalog: interrupted before anything was done\n")
    os._exit(130)


def version_line() -> str:
    """Return name and version, then the kernel, pyarrow and Python, on one line."""
    from importlib import metadata

    from stratalog import kernel
    from stratalog.version import __version__

    built = "compiled" if kernel.compiled else "interpreted, slower: no C compiler was there at install"
    try:
        arrow = metadata.version("pyarrow")
    except metadata.PackageNotFoundError:
        arrow = "not installed"
    return f"stratalog {__version__} (kernel {built}, pyarrow {arrow}, Python {platform.python_version()})"
