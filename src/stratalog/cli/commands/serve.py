"""``stratalog serve``: a store for Kafka clients, until it is stopped."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.console import note, warnings
from stratalog.cli.guard import hinting, stopped_by_sigterm
from stratalog.cli.session import Session, command, opt
from stratalog.errors import ConfigError, NotFoundError, StoreLockedError

if TYPE_CHECKING:
    from stratalog.broker.operations.settings import ServeSettings
    from stratalog.broker.server import Address

LISTEN = "127.0.0.1:9092"
SETTINGS_ARE_IN = "`stratalog config` lists the settings of the store, docs/BROKER.md those of the broker"
SWITCH_INTERVAL_S = 0.0005
"""How long another Python thread (the janitor, a sync) keeps the interpreter from the loop at most: Python's
own 5 ms would be most of what a small request takes."""
MOST_FILES = 1 << 16
"""File descriptors that are asked for: one for each connection, and those of segments."""


@command
def serve(
    session: Session,
    listen: Annotated[
        str | None,
        opt("--listen -l HOST:PORT", f"Where to listen; port 0 takes a free one. Default: {LISTEN}."),
    ] = None,
    advertise: Annotated[
        str | None,
        opt("--advertise HOST:PORT", "The address that clients connect to, if it is not --listen."),
    ] = None,
    auto_create: Annotated[
        bool | None,
        opt(
            "--auto-create/--no-auto-create",
            "Create a topic when a client asks for one that does not exist. Default: yes.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        opt("--metrics-listen HOST:PORT", "Answer GET /metrics there, for Prometheus. Default: do not."),
    ] = None,
    config: Annotated[
        Path | None,
        opt("--config FILE", "Settings by the names of Kafka's server.properties, one NAME=VALUE per line."),
    ] = None,
    janitor: Annotated[
        bool, opt("--janitor/--no-janitor", "Also run retention, compaction and archiving.")
    ] = True,
) -> None:
    """Serve the store to Kafka clients until SIGTERM or Ctrl-C; make it if there is none.

    Give settings of the broker (max.connections) and of the store in a file with --config, in
    $STRATALOG_CONFIG or with --store-config; the last one wins, and options override all of them. There are
    no passwords: listen only where every client may do everything.
    """
    began_s = time.monotonic()
    gc.disable()  # until it is ready: all that is made before stays
    session.refuse_read_only()
    with hinting(ConfigError, SETTINGS_ARE_IN):
        settings = _settings(session, config)
    host, port = (
        settings.listener or _address("--listen", LISTEN) if listen is None else _address("--listen", listen)
    )
    told = None if metrics is None else _address("--metrics-listen", metrics)
    advertised = settings.advertised if advertise is None else _address("--advertise", advertise)
    if settings.log_dirs and not session.given:
        session = replace(session, given=settings.log_dirs)
    import stratalog
    from stratalog.broker import Broker

    _allow_files()
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    with (
        warnings.service(),
        hinting(StoreLockedError, "one process at a time writes or serves a store: stop that one first"),
        stopped_by_sigterm() as stopping,
        stratalog.open(
            session.paths, session.over_kept(settings.store), janitor=janitor, remember=False
        ) as store,
        Broker(
            store,
            host,
            port,
            advertised=advertised,
            limits=settings.limits,
            auto_create_topics=settings.auto_create_topics if auto_create is None else auto_create,
        ) as broker,
        contextlib.ExitStack() as beside,
    ):
        facts: dict[str, object] = {"bootstrap_servers": broker.bootstrap_servers, "pid": os.getpid()}
        if told is not None:
            from stratalog.broker.operations.metrics import PATH, MetricsServer

            counted = beside.enter_context(MetricsServer(broker, told.host, told.port))
            facts["metrics"] = "http://{}:{}{}".format(*counted.address, PATH)
        gc.freeze()  # the collector need not look at partitions while clients wait
        gc.enable()
        ready_s = round(time.monotonic() - began_s, 3)
        facts["ready_s"] = ready_s
        if session.json:
            print(json.dumps(facts), flush=True)
        else:
            note(f"ready: {broker.bootstrap_servers}, process {os.getpid()}, after {ready_s:.2f} s")
            if told is not None:
                note(f"metrics: {facts['metrics']}")
        with contextlib.suppress(KeyboardInterrupt):
            stopping.wait()


def _allow_files() -> None:
    """Raise the soft limit of file descriptors, often 1,024, as far as the hard one lets, as a JVM does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MOST_FILES:
        more = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def _settings(session: Session, path: Path | None) -> ServeSettings:
    """Return the settings of the file, the environment and ``--store-config``."""
    from stratalog.broker.operations.settings import Given, parse, read_properties

    given: dict[str, Given] = {}
    if path is not None:
        try:
            given = read_properties(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            raise NotFoundError(f"--config {path}: no such file") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"--config {path}: {error}") from None
    named = {name: Given(value, "a setting given by name") for name, value in session.named.items()}
    return parse(given | named)


def _address(option: str, text: str) -> Address:
    from stratalog.broker.operations.settings import parse_listener

    try:
        return parse_listener(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
