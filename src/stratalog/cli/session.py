"""One run of a command: which store, which form of output, and the two ways in.

``Session.read()`` opens the store read-only, ``Session.change()`` gives the store itself or, when another
process holds it, a line to that process. ``Session.look()`` gives either for previews and numbers, and
nothing is written. ``@command`` adds the options every command has.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli import guard
from stratalog.config import BrokerConfig
from stratalog.errors import ConfigError, NotFoundError, ReadOnlyError

if TYPE_CHECKING:
    from stratalog.store import AdminClient, Store

ENVIRONMENT = "STRATALOG_DATA"
CONFIG_ENVIRONMENT = "STRATALOG_CONFIG"
READ_ONLY_ENVIRONMENT = "STRATALOG_READ_ONLY"

DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help=f"The store: its log directory; again for each further one. Else ${ENVIRONMENT}, split at ':'.",
        show_default=False,
    ),
]
StoreConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--store-config",
        "-S",
        metavar="NAME=VALUE",
        help="A setting of the store, as programs give it to open(): log.archive.url=s3://bucket/logs; as "
        f"often as needed, or ${CONFIG_ENVIRONMENT}, split at ';'. A program that holds the store has its "
        "own.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")]
ReadOnlyOption = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="Refuse whatever would change a file, or ask a running program to (exit code 7); or "
        f"${READ_ONLY_ENVIRONMENT}=1.",
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True, slots=True)
class Session:
    """What the common options said."""

    given: tuple[str, ...] = ()
    json: bool = False
    settings: tuple[str, ...] = ()
    read_only: bool = False

    @property
    def paths(self) -> list[str]:
        """The log directories: ``--data``, else the environment; a usage error when neither says."""
        paths = list(self.given) or [p for p in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if p]
        if not paths:
            raise typer.BadParameter(
                f"no store given: use --data DIR or set {ENVIRONMENT}", param_hint="--data"
            )
        return paths

    @property
    def config(self) -> dict[str, str] | None:
        """The store's settings over those kept with it: the environment's, then ``--store-config``; checked.

        None when nothing was said.
        """
        told = [pair.strip() for pair in os.environ.get(CONFIG_ENVIRONMENT, "").split(";") if pair.strip()]
        config = parse_pairs(told, CONFIG_ENVIRONMENT) | parse_pairs(self.settings, "--store-config")
        if not config:
            return None
        BrokerConfig.parse(config)
        return self._kept().explicit | config

    @property
    def broker_config(self) -> BrokerConfig:
        """The same as settings: what is kept with the store where nothing was said."""
        config = self.config
        return self._kept() if config is None else BrokerConfig.parse(config)

    def _kept(self) -> BrokerConfig:
        from stratalog.fs import RealFileSystem
        from stratalog.store.settings import remembered

        return remembered(RealFileSystem(), self.paths)

    @contextmanager
    def read(self) -> Iterator[Store]:
        """The store, read-only; beside whoever writes it."""
        self.require_store()
        import stratalog

        with stratalog.open(self.paths, self.config, read_only=True) as store:
            yield store

    @contextmanager
    def change(self, *, create: bool = False) -> Iterator[AdminClient]:
        """The store for changing something, ours or by its holder. Made when missing only if ``create``.

        A holder has settings of its own and cannot be given others.
        """
        self.refuse_read_only()
        if not create:
            self.require_store()
        from stratalog.store import connect

        with connect(self.paths, self.config, create=create, remember=False) as connection:
            self._refuse_settings(connection)
            yield connection

    @contextmanager
    def look(self) -> Iterator[AdminClient]:
        """The store for a preview, a trial run or numbers: what its holder sees, else opened read-only."""
        self.require_store()
        from stratalog.store import connect

        with connect(self.paths, self.config, read_only=True) as connection:
            self._refuse_settings(connection)
            yield connection

    def look_or_change(self, *, only_looks: bool) -> AbstractContextManager[AdminClient]:
        """`look` for what only looks, else `change`."""
        return self.look() if only_looks else self.change()

    def _refuse_settings(self, connection: AdminClient) -> None:
        if self.settings and connection.remote:
            raise typer.BadParameter(
                f"process {connection.pid} holds the store and has its own settings: leave it out",
                param_hint="--store-config",
            )

    @property
    def may_change(self) -> bool:
        """False when nothing may be changed: --read-only or its environment variable."""
        return not self.read_only and os.environ.get(READ_ONLY_ENVIRONMENT, "") in ("", "0")

    def refuse_read_only(self) -> None:
        """Raise ReadOnlyError when nothing may be changed: called before anything could be."""
        if not self.may_change:
            raise ReadOnlyError(
                f"this command may change files: run it without --read-only and {READ_ONLY_ENVIRONMENT}"
            )

    @property
    def exists(self) -> bool:
        """True when there is a store, or a part of it: one of several directories may be missing."""
        from stratalog.fs import RealFileSystem

        return any(map(RealFileSystem().exists, self.paths))

    def require_store(self) -> None:
        """A mistyped path is told, not made."""
        paths = self.paths
        if not self.exists:
            raise NotFoundError(
                f"no store at {paths[0]} — `stratalog topic create NAME --data {paths[0]}` makes one"
            )


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turns ``f(session, …)`` into a command with ``--data``, ``--json`` and ``--debug``."""
    return _common(function, with_json=True)


def silent_command(function: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that has its own idea of ``--json``, or nothing to show."""
    return _common(function, with_json=False)


def _common(function: Callable[..., None], *, with_json: bool) -> Callable[..., None]:
    @functools.wraps(function)
    def run(
        *,
        data: list[str] | None = None,
        store_config: list[str] | None = None,
        json: bool = False,
        read_only: bool = False,
        debug: bool = False,
        **rest: Any,
    ) -> None:
        guard.set_debug(debug)
        parent = _GLOBAL.get("data") or ()
        function(Session(tuple(data or parent), json, tuple(store_config or ()), read_only), **rest)

    # The parser reads the signature with annotations already resolved.
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    common: list[tuple[str, Any, object]] = [
        ("data", DataOption, None),
        ("store_config", StoreConfigOption, None),
    ]
    if with_json:
        common.append(("json", JsonOption, False))
    common.append(("read_only", ReadOnlyOption, False))
    common.append(("debug", DebugOption, False))
    parameters = [parameter.replace(kind=keyword) for parameter in own]
    parameters += [inspect.Parameter(n, keyword, default=d, annotation=a) for n, a, d in common]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__
    return run


def parse_pairs(pairs: Iterable[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` options by name; each name once."""
    given: dict[str, str] = {}
    for pair in pairs or []:
        name, found, value = pair.partition("=")
        if not found:
            raise ConfigError(f"{option} {pair}: write NAME=VALUE")
        if name in given:
            raise ConfigError(f"{option} {name} is given twice")
        given[name] = value
    return given


_GLOBAL: dict[str, tuple[str, ...]] = {}


def set_global_data(paths: list[str] | None) -> None:
    """``--data`` in front of the command: used when the command itself has none."""
    _GLOBAL["data"] = tuple(paths or ())


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topic names for shell completion; silence when there is no store to ask."""
    session = Session(tuple(context.params.get("data") or ()))
    try:
        with session.read() as store:
            return [name for name in store.topics() if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a completion that fails must not disturb the line being typed
        return []


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic, show_default=False)
]
OptionalTopic = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]", help="Only this topic.", autocompletion=complete_topic, show_default=False
    ),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.", autocompletion=complete_topic),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="Only this topic; as often as needed.",
        autocompletion=complete_topic,
        show_default=False,
    ),
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition.")
]
