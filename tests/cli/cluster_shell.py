"""The command line on a cluster, in this process."""

from __future__ import annotations

from tests.cli.shell import Shell


class ClusterShell(Shell):
    """The command line with ``--bootstrap-server``."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__()
        self.options = ["--bootstrap-server", bootstrap_servers]
