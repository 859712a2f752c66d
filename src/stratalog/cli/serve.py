"""``stratalog serve``: a store for Kafka clients, until it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Annotated

import typer

from stratalog.cli.console import note
from stratalog.cli.lifecycle import stopped_by_sigterm
from stratalog.cli.session import Session, command, opt

LISTEN = "127.0.0.1:9092"
SWITCH_INTERVAL_S = 0.0005
"""How long another Python thread (the janitor, a sync) keeps the interpreter from the loop at most: Python's
own 5 ms would be most of what a small request takes."""


@command
def serve(
    session: Session,
    listen: Annotated[
        str, opt("--listen -l HOST:PORT", "Where to listen; port 0 takes a free one.")
    ] = LISTEN,
    advertise: Annotated[
        str | None, opt("--advertise HOST:PORT", "What clients are told to connect to, if it is another.")
    ] = None,
    auto_create: Annotated[
        bool,
        opt("--auto-create/--no-auto-create", "Create a topic when a client asks for one that is not there."),
    ] = True,
    janitor: Annotated[
        bool, opt("--janitor/--no-janitor", "Carry out retention, compaction and archiving meanwhile.")
    ] = True,
) -> None:
    """Serve the store to Kafka clients until SIGTERM or Ctrl-C; make it if there is none.

    Clients produce, fetch, look up offsets, share topics as consumer groups and manage topics. Transactions
    are not served yet. No password is asked for: listen only where every client may do everything.
    """
    session.refuse_read_only()
    host, port = _address("--listen", listen)
    advertised = None if advertise is None else _address("--advertise", advertise)
    import stratalog
    from stratalog.broker import Broker

    sys.setswitchinterval(SWITCH_INTERVAL_S)

    with (
        stopped_by_sigterm() as stopping,
        stratalog.open(session.paths, session.config, janitor=janitor, remember=False) as store,
        Broker(store, host, port, advertised=advertised, auto_create_topics=auto_create) as broker,
    ):
        if session.json:
            print(json.dumps({"bootstrap_servers": broker.bootstrap_servers, "pid": os.getpid()}), flush=True)
        else:
            note(f"ready: {broker.bootstrap_servers}, process {os.getpid()}")
        with contextlib.suppress(KeyboardInterrupt):
            stopping.wait()


def _address(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT, such as {LISTEN}", param_hint=option)
    return host.strip("[]"), int(port)
