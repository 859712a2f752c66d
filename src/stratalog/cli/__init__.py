"""The command line: ``stratalog``.

Data goes to stdout, messages to stderr. Reads open the store read-only; changes go through
``stratalog.store.connect``, which asks the process that holds the store when there is one: every command
works beside a running program. Nothing here touches a file of the store itself.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script. ``--version`` alone is answered without loading the parser."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from stratalog.cli.version import version_line

        print(version_line())
        return
    from stratalog.cli.app import run

    run()
