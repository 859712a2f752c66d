"""The dump tool: segment files as text, line for line as Kafka's own tool prints them, or as JSON.

Reads files through ``fs`` and changes nothing. ``dump_command`` is the command, ``dump_files`` the same
for programs.
"""

from __future__ import annotations

from stratalog.cli.commands.dump.command import (
    EXIT_NOT_FOUND,
    EXIT_OK,
    EXIT_PIPE,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    dump_command,
    dump_files,
)
from stratalog.cli.commands.dump.output import DumpOptions

__all__ = [
    "EXIT_NOT_FOUND",
    "EXIT_OK",
    "EXIT_PIPE",
    "EXIT_UNREADABLE",
    "EXIT_USAGE",
    "DumpOptions",
    "dump_command",
    "dump_files",
]
