"""``python -m stratalog.cli.docs`` prints docs/CLI.md from the commands themselves."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import typer

from stratalog.cli.app import ORDER, app
from stratalog.cli.guard import ExitCode

_HEAD = """\
# The command line

Made from the commands by `python -m stratalog.cli.docs`; a test keeps it current.

```console
$ export STRATALOG_DATA=data
$ stratalog topic create orders --partitions 4 --config retention.ms=7d --if-not-exists
$ printf 'order-1:created\\norder-2:created\\n' | stratalog append orders --key-delimiter :
$ stratalog read orders --from -10m --format '%p:%o %k=%s\\n'
$ stratalog read orders --key order-1 --json
$ stratalog read orders --follow
$ stratalog segments orders
$ stratalog janitor --preview
$ stratalog verify
```

- The store is `--data DIR` (repeat it for several log directories), or `STRATALOG_DATA`, several directories
  separated by `:`. `--data` and `--debug` may come before the command; all other options come after it.
- `topic` (but not `move`), `group`, `append`, `read` and `config` also work on a Kafka cluster:
  `--bootstrap-server HOST:PORT`, or `STRATALOG_BOOTSTRAP_SERVER`, in the place of `--data`, with client
  settings (TLS, SASL) from `--command-config FILE`; see
  [The command line on a cluster](BROKER.md#the-command-line-on-a-cluster).
- Settings that a program gives to `open(config=…)`, such as `log.archive.url` or `log.retention.ms`, are kept
  with the store, and the command line uses them. `--store-config NAME=VALUE`, or `STRATALOG_CONFIG`, several
  separated by `;`, sets others for one command. A program that holds the store has its own settings: a
  command that must ask it (every change, preview and count) refuses `--store-config` and ignores
  `STRATALOG_CONFIG`.
- Data goes to stdout, messages and progress to stderr. Progress bars and colour appear only on a terminal;
  `NO_COLOR` is respected. In a pipe tables are plain aligned columns.
- Every command works while a program holds the store: reads open it read-only, changes are sent to
  the program that holds it.
- `--json` prints one JSON document, or for records one JSON object per line.
- An error is one line on stderr and an exit code; `--debug` shows where it came from. On a terminal wrong
  arguments (exit code 2) are several lines: the usage, and what is wrong.
- `stratalog --install-completion` sets up the shell: commands, options, topics and settings are completed.

## Positions and times

`--from` and `--to` take `earliest`, `latest`, an offset (`1234`), the last N records of each partition
(`-5`), a time ago (`-10m`, `-1h30m`, `-7d`), an ISO time (`2026-01-01`, `2026-01-01T12:00:00Z`; UTC without a
zone), `now`, or `@` with epoch milliseconds. An offset means one partition: a topic with several also needs
`--partition`. `--since` and `--until` are other names of the two. Ranges include their start but not their
end. A time range selects the records whose own timestamp is in it, regardless of the order in which they
were appended.

## Formats

`read` prints values, one per line, into a pipe, and offset, time, key and value on a terminal, where
control characters are shown escaped. `--format` is kcat's: `%s` value, `%S` its length (-1 for null), `%k`
key, `%K` its length, `%o` offset, `%p` partition, `%t` topic, `%T` timestamp in ms, `%h` headers, `%%`, and
`\\n` `\\t` `\\r` `\\0` `\\\\` `\\xNN`. `--json` prints what `append --jsonl` takes back: bytes that are not
UTF-8 are in `key_base64` and `value_base64`.
"""


_COMMANDS = """\
## Commands

In addition to its own options every command except `dump` has `--data DIR`, `--store-config NAME=VALUE`,
`--json`, `--read-only` (a command that may change a file is refused with exit code 7, as with
`STRATALOG_READ_ONLY=1` in the environment) and `--debug`. Those that work on a Kafka cluster have
`--bootstrap-server HOST:PORT` and `--command-config FILE`. Every `pipeline` command also has `--archive URL`
(the archive, with `--data` or instead of it), `--master URL` (where Spark runs; `local[*]` by default)
and `--conf NAME=VALUE` (a setting of Spark, repeatable).
"""
_COMMON = frozenset(
    {"--help", "--data", "--store-config", "--debug", "--json", "--read-only"}
    | {"--bootstrap-server", "--command-config"}
)
_SPARK = frozenset({"--archive", "--master", "--conf"})


def render() -> str:
    """Return the whole page."""
    root: Any = typer.main.get_command(app)
    parts = [_HEAD, _codes(), _COMMANDS]
    for name in ORDER:
        found = root.get_command(typer.Context(root), name)
        if hasattr(found, "list_commands"):
            inside = typer.Context(found)
            nested = {inner: found.get_command(inside, inner) for inner in found.list_commands(inside)}
            parts += [_section(f"{name} {inner}", each) for inner, each in nested.items()]
        else:
            parts.append(_section(name, found))
    return "\n".join(parts)


def _codes() -> str:
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""])


def _section(name: str, found: Any) -> str:
    arguments = [p for p in found.params if p.param_type_name == "argument"]
    common = {"--help", "--bootstrap-server"} if name == "dump" else _COMMON
    common |= _SPARK if name.startswith("pipeline ") else set()
    options = [p for p in found.params if p.param_type_name == "option" and not common & set(p.opts)]
    usage = " ".join(["stratalog", name, *(_metavar(p) for p in arguments), "[OPTIONS]"])
    lines = [f"### `stratalog {name}`", "", inspect.cleandoc(found.help or ""), "", "```", usage, "```", ""]
    lines += ["| option | |", "|---|---|"] if options else []
    for option in options:
        names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
        lines.append(f"| {names} | {_escape(option.help or '')} |")
    return "\n".join(lines) + "\n"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
