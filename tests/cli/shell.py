"""A store and the command line on it, in this process."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from stratalog.cli.app import app


class Shell:
    """A store and the command line on it."""

    def __init__(self, *paths) -> None:
        self.paths = [str(path) for path in paths]
        self.options = [part for path in self.paths for part in ("--data", path)]

    def __call__(self, *arguments: str, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(app, [*arguments, *self.options], input=stdin)

    def ok(self, *arguments: str, stdin: bytes | str | None = None) -> str:
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, stdin: bytes | str | None = None):
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def lines(self, *arguments: str) -> list[str]:
        return self.ok(*arguments).splitlines()
