"""``stratalog retain``, ``compact`` and ``janitor``: the policies carried out, or previewed.

Each asks the program that holds the store, or opens it for as long as it takes, read-only for a preview.
``--watch`` opens it anew for every round, so that a program can take it in between.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli import guard
from stratalog.cli.console import NamedProgress, bars, note
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.session import (
    PartitionOption,
    Session,
    TopicOption,
    command,
)
from stratalog.cli.steps import facts, outcome, show_report
from stratalog.config.units import format_duration_ms, parse_duration_ms
from stratalog.errors import StratalogError

if TYPE_CHECKING:
    from stratalog.store import AdminClient
    from stratalog.store.lifecycle.reports import LifecycleReport

Round = Callable[["AdminClient", NamedProgress | None], "LifecycleReport"]

LOOK_EVERY_S = 30.0
"""How often ``--watch`` compares the clocks while it waits: the oftener, the better a jump is seen."""

PreviewOption = Annotated[
    bool, typer.Option("--preview", "-n", help="Only show what would be done, when and why.")
]
AcceptClockOption = Annotated[
    bool,
    typer.Option(
        "--accept-clock", help="The wall clock is right: deletion that paused because it jumped goes on."
    ),
]


@command
def retain(
    session: Session,
    topic: TopicOption = None,
    preview: PreviewOption = False,
    accept_clock: AcceptClockOption = False,
) -> None:
    """Delete the segments whose time is up: retention.ms, retention.bytes, retention.segments.

    A preview also shows what goes next, and when.
    """

    def work(client: AdminClient, progress: NamedProgress | None) -> LifecycleReport:
        if accept_clock:
            client.accept_clock()
        return client.retain(topic, preview=preview)

    run_once(session, work, only_looks=preview and not accept_clock)


@command
def compact(
    session: Session,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    preview: PreviewOption = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Whatever can be compacted, however little and however fresh; only min.compaction.lag.ms "
            "holds.",
        ),
    ] = False,
) -> None:
    """Keep the latest record of every key, in topics with cleanup.policy=compact."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")

    def work(client: AdminClient, progress: NamedProgress | None) -> LifecycleReport:
        return client.compact(topic, partition, preview=preview, force=force, progress=progress)

    run_once(session, work, only_looks=preview)


@command
def janitor(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="One round, which is what it does anyway.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Round after round, until stopped.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", "-e", metavar="TIME", help="With --watch: from one round to the next; 5m unless given."
        ),
    ] = None,
    topic: TopicOption = None,
    preview: PreviewOption = False,
    accept_clock: AcceptClockOption = False,
) -> None:
    """One round of everything: retain, compact, archive.

    What stratalog.open(janitor=True) does inside a program. With --watch the store is only held while a round
    runs, --json prints one line a round, and SIGTERM ends it after the round.
    """
    if once and watch:
        raise typer.BadParameter("--once and --watch contradict each other")
    if every is not None and not watch:
        raise typer.BadParameter("--every needs --watch")

    if accept_clock:
        # Once, not with every round; a store that nobody holds begins with a clock it believes anyway.
        with session.change() as client:
            client.accept_clock()

    def work(client: AdminClient, progress: NamedProgress | None) -> LifecycleReport:
        return client.janitor(topic, preview=preview, progress=progress)

    if watch:
        _watch(session, work, parse_duration_ms(every or "5m") / 1000, only_looks=preview)
    else:
        run_once(session, work, only_looks=preview)


def run_once(session: Session, work: Round, *, only_looks: bool) -> None:
    """One round, told, with the exit code it deserves. ``only_looks``: it changes nothing."""
    report = _run(session, work, only_looks=only_looks)
    _tell(session, report, line=False)
    if code := outcome(report):
        raise typer.Exit(code)


def _run(session: Session, work: Round, *, only_looks: bool) -> LifecycleReport:
    with session.look_or_change(only_looks=only_looks) as client, bars() as progress:
        return work(client, progress)


def _tell(session: Session, report: LifecycleReport, *, line: bool) -> None:
    if session.json:
        print(json.dumps(facts(report), indent=None if line else 2, ensure_ascii=False), flush=True)
    else:
        show_report(report, _now_ms())


def _watch(session: Session, work: Round, every_s: float, *, only_looks: bool) -> None:
    """Rounds until stopped; only the first one's error ends it, later ones are told and tried again."""
    from stratalog.log.policy.clock import ClockGuard

    clock = ClockGuard()
    began = False
    with _stopped_by_sigterm() as stopping:
        while not stopping.is_set():
            clock = clock.observe(_now_ms(), time.monotonic())
            started_s = time.monotonic()
            if clock.paused is not None:
                note(f"no round now: {clock.paused}")
            else:
                try:
                    _tell(session, _run(session, work, only_looks=only_looks), line=True)
                except (StratalogError, OSError) as error:
                    if not began or isinstance(error, BrokenPipeError):
                        raise
                    guard.complain(f"{guard.explain(error)}; the next round is in {_span(every_s)}")
                began = True
            # Work that takes long is followed by a rest as long: half of the time belongs to others.
            resting_s = max(every_s, time.monotonic() - started_s)
            until_s = time.monotonic() + resting_s
            while not stopping.is_set() and (left_s := until_s - time.monotonic()) > 0:
                stopping.wait(min(left_s, LOOK_EVERY_S))
                clock = clock.observe(_now_ms(), time.monotonic())
    raise typer.Exit(ExitCode.OK)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets: whoever runs the janitor as a service stops it that way."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)


def _span(seconds: float) -> str:
    return format_duration_ms(round(seconds * 1000))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
