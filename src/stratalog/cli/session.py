"""One run of a command: which store or cluster, which form of output, and the ways to open it.

``Session.read()`` opens the store read-only, ``Session.change()`` opens it for writing or, if another
process holds it, connects to that process. ``Session.look()`` does either for previews and numbers and
writes nothing. ``Session.reads()`` and ``Session.changes()`` also take a Kafka cluster in the store's place,
for the commands declared with ``@command_anywhere``. ``@command`` adds the options every command has.
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperArgument, TyperOption

from stratalog.cli import guard
from stratalog.cli.console import Table, is_terminal, note, show, show_json, warnings
from stratalog.cli.guard import WrongUsage
from stratalog.config import BrokerConfig
from stratalog.errors import ConfigError, NotFoundError, ReadOnlyError

if TYPE_CHECKING:
    from stratalog.cli.places.cluster import Cluster
    from stratalog.cli.places.contract import Changes, Reads
    from stratalog.store import AdminClient, Store

ENVIRONMENT = "STRATALOG_DATA"
CLUSTER_ENVIRONMENT = "STRATALOG_BOOTSTRAP_SERVER"
CONFIG_ENVIRONMENT = "STRATALOG_CONFIG"
READ_ONLY_ENVIRONMENT = "STRATALOG_READ_ONLY"
FILES_ONLY = "this command works on the files of a store and takes no --bootstrap-server"


def opt(names: str, help: str, **more: Any) -> Any:
    """Return an option for ``Annotated``: ``"--limit -n N"`` are its flags and what stands for its value."""
    flags = [word for word in names.split() if word.startswith("-")]
    metavar = [word for word in names.split() if not word.startswith("-")]
    return typer.Option(*flags, metavar=metavar[0] if metavar else None, help=help, **more)


def _type_shown(option: TyperOption, ctx: Any) -> str | None:
    """Return what stands for an option's value in the help; nothing for a flag, which has none."""
    return "" if option.is_flag else _usual_type(option, ctx)


_usual_type = TyperOption.display_type_rich
TyperOption.display_type_rich = _type_shown  # type: ignore[assignment,method-assign]


class _AsItIs:
    """Takes a value that already has its type, and whole numbers.

    Typer would load pydantic for them, which is slow and explains a wrong number in a parser's words.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        kind, *_ = get_args(param.type_descriptor.annotation) or (param.type_descriptor.annotation,)
        if all(type(each) is kind for each in (value if several else (value,))):
            return value
        if kind is int:
            return [_whole(each, param, ctx) for each in value] if several else _whole(value, param, ctx)
        try:
            return _usual_conversion(param).coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def _whole(text: Any, param: Any, ctx: Any) -> int:
    """Return a whole number within the limits of its option; a usage error says which one it breaks."""
    limits = param.type_descriptor.parameter_info
    try:
        number = int(text)
    except ValueError:
        wrong = "must be a whole number"
    else:
        if limits.min is not None and number < limits.min:
            wrong = f"must be at least {limits.min}"
        elif limits.max is not None and number > limits.max:
            wrong = f"must be at most {limits.max}"
        else:
            return number
    raise typer.BadParameter(f"{wrong}, not {text!r}", ctx=ctx, param=param)


_usual_conversion = TyperOption.get_runtime_param
for _each in (TyperOption, TyperArgument):
    _each.get_runtime_param = lambda parameter: _AsItIs()  # type: ignore[assignment,method-assign,return-value]


def arg(metavar: str, help: str, **more: Any) -> Any:
    """Return an argument for ``Annotated``."""
    return typer.Argument(metavar=metavar, help=help, **more)


DataOption = Annotated[
    list[str] | None,
    opt(
        "--data DIR",
        f"Log directory of the store; repeat for several. Default: ${ENVIRONMENT}, separated by ':'.",
    ),
]
StoreConfigOption = Annotated[
    list[str] | None,
    opt(
        "--store-config -S NAME=VALUE",
        "A setting of the store, as in open(config=...): log.archive.url=s3://bucket/logs; repeatable. "
        f"Default: ${CONFIG_ENVIRONMENT}, separated by ';'. Refused while another program holds the store.",
    ),
]
BootstrapOption = Annotated[
    str | None,
    opt(
        "--bootstrap-server HOST:PORT,...",
        f"A Kafka cluster instead of a store. Default: ${CLUSTER_ENVIRONMENT}. Needs confluent-kafka.",
    ),
]
NoBootstrapOption = Annotated[str | None, opt("--bootstrap-server", "Only for other commands.", hidden=True)]
CommandConfigOption = Annotated[
    str | None,
    opt("--command-config FILE", "With --bootstrap-server: client settings, name=value (TLS, SASL)."),
]
JsonOption = Annotated[bool, opt("--json", "Print JSON to stdout instead of text.")]
ReadOnlyOption = Annotated[
    bool,
    opt(
        "--read-only",
        "Refuse any change, here or through a running program (exit code 7). Also "
        f"${READ_ONLY_ENVIRONMENT}=1.",
    ),
]
DebugOption = Annotated[bool, opt("--debug", "Show the traceback of an error.")]


@dataclass(frozen=True, slots=True)
class Session:
    """The values of the options every command has."""

    given: tuple[str, ...] = ()
    json: bool = False
    settings: tuple[str, ...] = ()
    read_only: bool = False
    bootstrap: str = ""
    """The cluster that the command works on; empty for a store."""
    command_config: str | None = None

    @property
    def paths(self) -> list[str]:
        """The log directories: ``--data``, else the environment; a usage error without either."""
        paths = list(self.given) or _directories_of_environment()
        if not all(paths):
            raise WrongUsage("--data is empty: give the directory of a store")
        if not paths:
            raise WrongUsage(f"no store given: use --data DIR or set {ENVIRONMENT}")
        return paths

    @property
    def named(self) -> dict[str, str]:
        """Settings by name: the environment's, then ``--store-config``."""
        given = [pair.strip() for pair in os.environ.get(CONFIG_ENVIRONMENT, "").split(";") if pair.strip()]
        return parse_pairs(given, CONFIG_ENVIRONMENT) | parse_pairs(self.settings, "--store-config")

    @property
    def config(self) -> dict[str, str] | None:
        """The store's settings over those kept with it: the environment's, then ``--store-config``; checked.

        None when none are given.
        """
        return self.over_kept(self.named)

    def over_kept(self, config: dict[str, str]) -> dict[str, str] | None:
        """Return settings over those kept with the store; checked. None when none are given."""
        if not config:
            return None
        BrokerConfig.parse(config)
        return self._kept().explicit | config

    @property
    def broker_config(self) -> BrokerConfig:
        """The same, parsed; those kept with the store when none are given."""
        config = self.config
        return self._kept() if config is None else BrokerConfig.parse(config)

    def _kept(self) -> BrokerConfig:
        from stratalog.fs import RealFileSystem
        from stratalog.store.settings import remembered

        return remembered(RealFileSystem(), self.paths)

    @contextmanager
    def read(self) -> Iterator[Store]:
        """Open the store read-only, also while another process writes it."""
        self.require_store()
        import stratalog

        with stratalog.open(self.paths, self.config, read_only=True) as store:
            yield store

    @contextmanager
    def reads(self) -> Iterator[Reads]:
        """Open the store read-only, or connect to the cluster."""
        if self.bootstrap:
            yield self._cluster()
            return
        with self.read() as store:
            from stratalog.cli.places.local import StoreReads

            yield StoreReads(store)

    @contextmanager
    def changes(self, *, create: bool = False) -> Iterator[Changes]:
        """Connect to the cluster, or do what `change` does."""
        if self.bootstrap:
            self.refuse_read_only()
            yield self._cluster()
            return
        with self.change(create=create) as client:
            yield client

    def _cluster(self) -> Cluster:
        from stratalog.cli.places.cluster import Cluster

        if self.settings:
            raise WrongUsage("--store-config is for a store: use --command-config with --bootstrap-server")
        return Cluster(self.bootstrap, self.command_config)

    @contextmanager
    def change(self, *, create: bool = False) -> Iterator[AdminClient]:
        """Open the store for writing, or connect to its holder. A missing store is made only if ``create``.

        A holder has its own settings and refuses others.
        """
        self.refuse_read_only()
        if not create:
            self.require_store()
        from stratalog.store import connect

        with ExitStack() as stack:
            with warnings.holding():  # an error that ends the command says the same
                connection = connect(self.paths, self.config, create=create, remember=False)
                stack.enter_context(connection)
            self._refuse_settings(connection)
            yield connection

    @contextmanager
    def look(self) -> Iterator[AdminClient]:
        """Connect to the holder, else open read-only: for a preview, a dry run or numbers."""
        self.require_store()
        from stratalog.store import connect

        with connect(self.paths, self.config, read_only=True) as connection:
            self._refuse_settings(connection)
            yield connection

    def look_or_change(self, *, only_looks: bool) -> AbstractContextManager[AdminClient]:
        """Return `look()` if nothing is changed, else `change()`."""
        return self.look() if only_looks else self.change()

    def _refuse_settings(self, connection: AdminClient) -> None:
        if self.settings and connection.remote:
            raise WrongUsage(
                f"process {connection.pid} holds the store and has its own settings: omit --store-config"
            )

    @property
    def may_change(self) -> bool:
        """False with --read-only or its environment variable."""
        return not self.read_only and os.environ.get(READ_ONLY_ENVIRONMENT, "") in ("", "0")

    def refuse_read_only(self) -> None:
        """Raise ReadOnlyError if nothing may be changed; call it before any change."""
        if not self.may_change:
            raise ReadOnlyError(
                f"this command may change files: run it without --read-only and {READ_ONLY_ENVIRONMENT}"
            )

    @property
    def exists(self) -> bool:
        """True when there is a store, or a part of it: one of several directories may be missing or empty.

        A cluster exists.
        """
        return bool(self.bootstrap) or any(map(_is_of_a_store, self.paths))

    def require_store(self) -> None:
        """Raise NotFoundError if there is no store: a mistyped path or an empty mount point is none."""
        paths = self.paths
        if not self.exists:
            there = next(filter(os.path.lexists, paths), None)
            make = f"`stratalog topic create NAME --data {there or paths[0]}` makes one"
            if there is not None:
                raise NotFoundError(
                    f"no store at {there}: the directory has no meta.properties, no stratalog.settings and"
                    f" no partition — is its disk mounted, is the path right? {make}"
                )
            raise NotFoundError(
                f"no store at {paths[0]}: no such directory — is its disk mounted, is the path right? {make}"
            )

    def tell(self, facts: object, *shown: Table | str) -> None:
        """Print a result: ``facts`` as JSON, or tables on stdout and messages on stderr."""
        if self.json:
            show_json(facts)
            return
        for each in shown:
            if isinstance(each, Table):
                show(each)
            else:
                note(each)


def _is_of_a_store(path: str) -> bool:
    """Return False if a directory is missing or holds nothing of a store; True if it cannot be listed."""
    from stratalog.format.metadata import META_PROPERTIES
    from stratalog.format.settings import FILE_NAME
    from stratalog.log.names import is_partition_file, parse_partition_dir

    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if any(name in (META_PROPERTIES, FILE_NAME) or is_partition_file(name) for name in names):
        return True
    for name in filter(parse_partition_dir, names):
        try:
            if any(map(is_partition_file, os.listdir(os.path.join(path, name)))):
                return True
        except NotADirectoryError:
            continue
        except OSError:
            return True
    return False


def option(
    names: str, kind: Any, default: object, help: str, *, name: str = "", **more: Any
) -> inspect.Parameter:
    """Return an option as a parameter for `declare`, called ``name``, by default as its first flag."""
    name = name or names.split()[0].partition("/")[0].strip("-").replace("-", "_")
    return parameter(name, Annotated[kind, opt(names, help, **more)], default)


def parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    """Return a keyword parameter, for `declare`."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def declare(function: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Give a function that takes ``**options`` the signature that the parser reads; return it."""
    signature = inspect.Signature([*parameters])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return function


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function or class, annotations resolved."""
    found = inspect.signature(function, eval_str=True).parameters.values()
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found]


def _with_groups(
    function: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> tuple[Callable[..., None], list[inspect.Parameter]]:
    """Replace each parameter whose type is a dataclass by options, one for each field.

    Return the parameters, and a function that takes these options.
    """
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for each in parameters:
        if isinstance(each.annotation, type) and is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            options += _parameters(each.annotation)
        else:
            options.append(each)

    def call(session: Session, **given: Any) -> None:
        made = {
            name: kind(**{x.name: given.pop(x.name) for x in fields(kind)}) for name, kind in groups.items()
        }
        function(session, **given, **made)

    return call, options


def command_anywhere(function: Callable[..., None]) -> Callable[..., None]:
    """Turn ``f(session, …)`` into a command that works on a store or on a Kafka cluster."""
    return command(function, anywhere=True)


def command(
    function: Callable[..., None],
    parameters: Iterable[inspect.Parameter] | None = None,
    *,
    anywhere: bool = False,
) -> Callable[..., None]:
    """Turn ``f(session, …)`` into a command with the options that every command has.

    A parameter whose type is a dataclass stands for several options: its fields.
    """
    call, options = _with_groups(function, _parameters(function)[1:] if parameters is None else parameters)

    @functools.wraps(function)
    def run(
        *,
        data: list[str] | None,
        bootstrap_server: str | None,
        store_config: list[str] | None,
        json: bool,
        read_only: bool,
        debug: bool,
        command_config: str | None = None,
        **rest: Any,
    ) -> None:
        if debug:
            guard.set_debug(True)
        given = tuple(data or _GLOBAL.get("data") or ())
        bootstrap = _cluster_of(given, bootstrap_server) if anywhere else ""
        if bootstrap_server is not None and not anywhere:
            raise WrongUsage(FILES_ONLY)
        if command_config is not None and not bootstrap:
            raise WrongUsage("--command-config needs --bootstrap-server")
        settings = tuple(store_config or ())
        call(Session(given, json, settings, read_only, bootstrap, command_config), **rest)

    del run.__wrapped__
    cluster = [
        parameter("bootstrap_server", BootstrapOption, None),
        parameter("command_config", CommandConfigOption, None),
    ]
    common = [
        parameter("data", DataOption, None),
        *(cluster if anywhere else [parameter("bootstrap_server", NoBootstrapOption, None)]),
        parameter("store_config", StoreConfigOption, None),
        parameter("json", JsonOption, False),
        parameter("read_only", ReadOnlyOption, False),
        parameter("debug", DebugOption, False),
    ]
    return declare(run, [*options, *common])


def _directories_of_environment() -> list[str]:
    return [path for path in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if path]


def _cluster_of(data: tuple[str, ...], bootstrap_server: str | None) -> str:
    """Return the cluster's address: the option's, else the environment's; empty when a store is meant."""
    if bootstrap_server is not None:
        if data:
            raise WrongUsage("--data and --bootstrap-server cannot be used together")
        if not bootstrap_server.strip():
            raise WrongUsage("--bootstrap-server is empty: write HOST:PORT")
        return bootstrap_server
    address = os.environ.get(CLUSTER_ENVIRONMENT, "").strip()
    if not address or data:
        return ""
    if _directories_of_environment():
        raise WrongUsage(
            f"{ENVIRONMENT} and {CLUSTER_ENVIRONMENT} are both set: give --data or --bootstrap-server"
        )
    return address


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; without one, ``--yes`` must be given."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise WrongUsage("stdin is not a terminal: pass --yes to confirm")
    typer.confirm(question, abort=True, err=True)


def parse_pairs(pairs: Iterable[str] | None, option: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` options by name; each name may be given once."""
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
    """Set ``--data`` given in front of the command, for commands that have none themselves."""
    _GLOBAL["data"] = tuple(paths or ())


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return topic names for shell completion; none if there is no store. A cluster is not asked."""
    if context.params.get("bootstrap_server"):
        return []
    session = Session(tuple(context.params.get("data") or ()))
    try:
        with session.read() as store:
            return [name for name in store.topics() if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a completion that fails must not disturb the line being typed
        return []


TopicArgument = Annotated[str, arg("TOPIC", "The topic.", autocompletion=complete_topic)]
OptionalTopic = Annotated[str | None, arg("[TOPIC]", "Only this topic.", autocompletion=complete_topic)]
TopicOption = Annotated[
    str | None, opt("--topic -t TOPIC", "Only this topic.", autocompletion=complete_topic)
]
TopicsOption = Annotated[
    list[str] | None,
    opt("--topic -t TOPIC", "Only this topic; repeatable.", autocompletion=complete_topic),
]


class Isolation(enum.StrEnum):
    """Kafka's isolation levels."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


IsolationOption = Annotated[
    Isolation, opt("--isolation", "read_committed hides aborted and open transactions.")
]
PartitionOption = Annotated[int | None, opt("--partition -p N", "Only this partition.", min=0)]
YesOption = Annotated[bool, opt("--yes -y", "Do not ask for confirmation.")]
