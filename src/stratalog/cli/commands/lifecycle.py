"""The life of segments: ``retain``, ``compact``, ``janitor``, ``archive``, ``erase`` and ``lifecycle``.

Each command asks the program that holds the store, or opens it itself, read-only for a preview. ``--watch``
opens it again for every round, so that another program can take it in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli import guard
from stratalog.cli.commands.append import open_input
from stratalog.cli.console import (
    NamedProgress,
    Table,
    bars,
    counted,
    is_terminal,
    note,
    number,
    progress,
    show,
    show_json,
    warnings,
)
from stratalog.cli.guard import ExitCode, WrongUsage, stopped_by_sigterm
from stratalog.cli.session import (
    OptionalTopic,
    PartitionOption,
    Session,
    TopicArgument,
    TopicOption,
    YesOption,
    command,
    confirm,
    opt,
)
from stratalog.config.units import format_bytes, format_duration_ms, parse_duration_ms
from stratalog.errors import ArchiveError, InvalidArgumentError, StratalogError
from stratalog.model import SegmentState

if TYPE_CHECKING:
    from stratalog.archive import Archive, ArchiveCheck, Manifest
    from stratalog.config import TopicConfig
    from stratalog.log.policy.preview import Step
    from stratalog.store import AdminClient
    from stratalog.store.lifecycle.reports import EraseReport, LifecycleReport, PartitionNumbers

Round = Callable[["AdminClient", NamedProgress | None], "LifecycleReport"]

LOOK_EVERY_S = 30.0
"""How often ``--watch`` compares the clocks while it waits: the more often, the better it sees a jump."""
MOST_ROWS = 40
"""The most rows of a table on a terminal; a pipe gets every row."""
MOST_KEY_BYTES = 6 << 20
"""The keys of one command travel to the holder in one frame."""
_MOST_NAMES = 10

PreviewOption = Annotated[bool, opt("--preview -n", "Only show what would be done, when and why.")]
AcceptClockOption = Annotated[
    bool, opt("--accept-clock", "Trust the wall clock: resume deletion that paused because the clock jumped.")
]


@command
def retain(
    session: Session,
    topic: TopicOption = None,
    preview: PreviewOption = False,
    accept_clock: AcceptClockOption = False,
) -> None:
    """Delete expired segments: retention.ms, retention.bytes, retention.segments.

    A preview also shows which segments are deleted next, and when.
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
        opt(
            "--force", "Compact everything that can be, due or not; only min.compaction.lag.ms still applies."
        ),
    ] = False,
) -> None:
    """Keep the latest record of every key, in topics with cleanup.policy=compact."""
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic")

    def work(client: AdminClient, progress: NamedProgress | None) -> LifecycleReport:
        return client.compact(topic, partition, preview=preview, force=force, progress=progress)

    run_once(session, work, only_looks=preview, why_nothing=lambda: _not_compacted(session, topic))


@command
def janitor(
    session: Session,
    once: Annotated[bool, opt("--once", "Run once (the default).")] = False,
    watch: Annotated[bool, opt("--watch -w", "Run repeatedly until stopped.")] = False,
    every: Annotated[str | None, opt("--every -e TIME", "With --watch: the interval, 5m by default.")] = None,
    topic: TopicOption = None,
    preview: PreviewOption = False,
    accept_clock: AcceptClockOption = False,
) -> None:
    """Run retain, compact and archive once, or repeatedly with --watch.

    The same as stratalog.open(janitor=True) in a program. With --watch the store is only held while a round
    runs, --json prints one line a round, and SIGTERM ends it after the round.
    """
    if once and watch:
        raise WrongUsage("--once and --watch cannot be used together")
    if every is not None and not watch:
        raise WrongUsage("--every needs --watch")

    if accept_clock:
        # Once, not with every round; a store opened here trusts the clock anyway.
        with session.change() as client:
            client.accept_clock()

    def work(client: AdminClient, progress: NamedProgress | None) -> LifecycleReport:
        return client.janitor(topic, preview=preview, progress=progress)

    if watch:
        _watch(session, work, parse_duration_ms(every or "5m") / 1000, only_looks=preview)
    else:
        run_once(session, work, only_looks=preview)


def _not_compacted(session: Session, topic: str | None) -> str:
    if topic is None or (config := _settings_of(session, topic)).compact:
        return ""
    return (
        f"{topic} is not compacted, its cleanup.policy is {','.join(sorted(config.cleanup_policy))};"
        f" `stratalog topic alter {topic} --config cleanup.policy=compact` changes that"
    )


def _not_archived(session: Session, topic: str | None) -> str:
    if topic is None or _settings_of(session, topic).remote_storage_enable:
        return ""
    return (
        f"{topic} is not archived, its remote.storage.enable is false;"
        f" `stratalog topic alter {topic} --config remote.storage.enable=true` changes that"
    )


def _settings_of(session: Session, topic: str) -> TopicConfig:
    with session.read() as store:
        return store.topic(topic).config


def run_once(
    session: Session, work: Round, *, only_looks: bool, why_nothing: Callable[[], str] = str
) -> None:
    """Run one round, print its report and exit with its code. ``only_looks``: it changes nothing.

    ``why_nothing`` is asked, when there was nothing to do, for the setting that is the reason.
    """
    report = run_round(session, work, only_looks=only_looks)
    _tell(session, report, line=False)
    if not report.steps and not session.json and (why := why_nothing()):
        note(why)
    if code := outcome(report):
        raise typer.Exit(code)


def run_round(session: Session, work: Round, *, only_looks: bool) -> LifecycleReport:
    warnings.said.clear()  # a round that goes wrong as the one before it says so again
    with warnings.holding() as told:
        with session.look_or_change(only_looks=only_looks) as client, bars() as progress:
            report = work(client, progress)
        told += report.notes
        return report


def _tell(session: Session, report: LifecycleReport, *, line: bool) -> None:
    if session.json:
        print(json.dumps(_facts(report), indent=None if line else 2, ensure_ascii=False), flush=True)
    else:
        show_report(report, now_ms())


def _watch(session: Session, work: Round, every_s: float, *, only_looks: bool) -> None:
    """Run rounds until stopped; an error ends the first round, later ones are reported and tried again."""
    from stratalog.log.policy.clock import ClockGuard

    clock = ClockGuard()
    began = False
    with stopped_by_sigterm() as stopping:
        while not stopping.is_set():
            clock = clock.observe(now_ms(), time.monotonic())
            started_s = time.monotonic()
            if clock.paused is not None:
                note(f"no round now: {clock.paused}")
            else:
                try:
                    _tell(session, run_round(session, work, only_looks=only_looks), line=True)
                except (StratalogError, OSError) as error:
                    if not began or isinstance(error, BrokenPipeError):
                        raise
                    pause = format_duration_ms(round(every_s * 1000))
                    guard.complain(f"{guard.explain(error)}; the next round is in {pause}")
                began = True
            # Long work is followed by a pause as long: half of the time is left to other programs.
            resting_s = max(every_s, time.monotonic() - started_s)
            until_s = time.monotonic() + resting_s
            while not stopping.is_set() and (left_s := until_s - time.monotonic()) > 0:
                stopping.wait(min(left_s, LOOK_EVERY_S))
                clock = clock.observe(now_ms(), time.monotonic())
    raise typer.Exit(ExitCode.OK)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- reports ---------------------------------------------------------------------------------------------

_VERBS = {
    "roll": ("seal {}", "sealed {}", "idle segment"),
    "delete": ("delete {}", "deleted {}", "segment"),
    "drop-local": (
        "remove the local copy of {}, which the archive has",
        "removed the local copy of {}, which the archive has",
        "segment",
    ),
    "drop-archive": ("take {} out of the archive", "took {} out of the archive", "segment"),
    "compact": ("compact {}", "compacted {}", "partition"),
    "archive": ("archive {}", "archived {}", "segment"),
}
_FREEING = frozenset({"delete", "drop-local"})


def _facts(report: LifecycleReport) -> dict[str, Any]:
    """Return a report for JSON."""
    freed = sum(step.size_bytes for step in report.steps if step.due and step.action in _FREEING)
    return {
        "preview": report.preview,
        "steps": [{**step.to_json(), "due": step.due} for step in report.steps],
        "freed_bytes": freed,
        "compactions": [dict(each) for each in report.compactions],
        "notes": list(report.notes),
    }


def outcome(report: LifecycleReport) -> ExitCode:
    """Return the exit code of a run: damage that compaction skipped, unfinished work, or all done."""
    if any(each.get("quarantined") for each in report.compactions):
        return ExitCode.CORRUPTION
    return ExitCode.UNFINISHED if report.notes and not report.preview else ExitCode.OK


def show_report(report: LifecycleReport, now_ms: int) -> None:
    """Print the steps and compactions on stdout, notes and a summary on stderr."""
    steps = [step for step in report.steps if report.preview or step.due or step.action == "skip"]
    if steps:
        show(steps_table(steps, report, now_ms))
    if report.compactions:
        if steps:
            print()
        show(compactions_table(report.compactions))
    for line in report.notes:
        note(f"note: {line}")
    for each in report.compactions:
        for damage in each.get("quarantined", ()):
            note(f"damaged, compaction skipped it: {damage['path']} ({damage['reason']})")
    note(summary(report, now_ms))


def steps_table(steps: Sequence[Step], report: LifecycleReport, now_ms: int) -> Table:
    """Return the steps as a table, with the first offset lost to each."""
    table = Table("*partition", "what", "->offsets", "-->size", "--->when", "--->lost from", "~why")
    shown = steps
    if is_terminal(sys.stdout) and len(steps) > MOST_ROWS + 5:
        shown = steps[:MOST_ROWS]
        table.footer = f"and {len(steps) - MOST_ROWS:,} more; --json lists them all"
    for step in shown:
        table.add(
            f"{step.topic}-{step.partition}",
            step.action,
            f"{step.base_offset}-{max(step.base_offset, step.next_offset - 1)}",
            format_bytes(step.size_bytes),
            _when(step, report, now_ms),
            "" if step.first_offset_lost is None else str(step.first_offset_lost),
            step.why,
        )
    return table


def compactions_table(compactions: Sequence[Any]) -> Table:
    """Return each compacted partition, before and after."""
    columns = (">segments", ">records", ">size", ">tombstones dropped", ">passes", ">took")
    table = Table("*partition", *columns)
    for each in compactions:
        table.add(
            f"{each['topic']}-{each['partition']}",
            f"{number(each['segments_before'])} → {number(each['segments_after'])}",
            f"{number(each['records_before'])} → {number(each['records_after'])}",
            f"{format_bytes(each['bytes_before'])} → {format_bytes(each['bytes_after'])}",
            each["tombstones_dropped"],
            str(each["passes"]),
            format_duration_ms(round(each["seconds"] * 1000)),
        )
    return table


def summary(report: LifecycleReport, now_ms: int) -> str:
    """Return one line: ``deleted 3 segments (1.2 GiB), compacted 1 partition (4.0 GiB)``."""
    due = [step for step in report.steps if step.due]
    if not due:
        skipped = sum(step.action == "skip" for step in report.steps)
        return f"nothing to do now{f', {skipped} put off' if skipped else ''}{_coming(report, now_ms)}"
    parts = []
    sure = due if report.preview else [step for step in due if not _noted(step, report)]
    for action, (would, did, thing) in _VERBS.items():
        chosen = [step for step in sure if step.action == action]
        if chosen:
            size = format_bytes(sum(step.size_bytes for step in chosen))
            count = f"{counted(len(chosen), thing)} ({size})"
            parts.append((would if report.preview else did).format(count))
    done = ", ".join(parts)
    if report.preview:
        return f"would {done}; preview, nothing was changed"
    open_ends = len(
        {(step.topic, step.partition) for step in report.steps if step.due and _noted(step, report)}
    )
    left = f"{counted(open_ends, 'partition')} not finished, see the notes"
    return ", ".join(part for part in (done, left if open_ends else "") if part)


def _when(step: Step, report: LifecycleReport, now_ms: int) -> str:
    if step.action == "skip":
        return "not now"
    if step.when_ms is not None:
        return f"in {format_duration_ms(max(0, step.when_ms - now_ms) // 1000 * 1000)}"
    if report.preview:
        return "now"
    return "see note" if _noted(step, report) else "done"


def _noted(step: Step, report: LifecycleReport) -> bool:
    """Return True if a note says how far this partition came: a round goes on when one of them fails."""
    name = f"{step.topic}-{step.partition}: "
    return any(line.startswith(name) for line in report.notes)


def _coming(report: LifecycleReport, now_ms: int) -> str:
    later = [step for step in report.steps if step.when_ms is not None and step.action != "skip"]
    if not later:
        return ""
    first = min(later, key=lambda step: step.when_ms or 0)
    return (
        f"; next deletion: {first.topic}-{first.partition} up to offset {first.next_offset - 1} "
        f"({format_bytes(first.size_bytes)}), {_when(first, report, now_ms)}"
    )


# -- lifecycle -------------------------------------------------------------------------------------------

_ORDER = {str(state): at for at, state in enumerate(SegmentState)}


@command
def lifecycle(session: Session, topic: OptionalTopic = None) -> None:
    """Show segments, bytes and files of each partition by state, and segments past their retention.

    If a partition stays past due, or its deleted files stay, no janitor is running.
    """
    with session.look() as client:
        numbers = client.lifecycle()
    if topic is not None:
        known = {each.topic for each in numbers}
        numbers = [each for each in numbers if each.topic == topic]
        if not numbers:
            from stratalog.store.catalog import no_topic

            raise no_topic(topic, known)
    notes = []
    for each in numbers:
        name = f"{each.topic}-{each.partition}"
        if each.torn_files:
            notes.append(
                f"{name}: {counted(each.torn_files, '.torn file')}, what recovery after a crash or a repair"
                " cut off: keep them until you know the cause, then remove them"
            )
        notes += [
            f"{name}: compaction skips {path}, which is damaged; see `stratalog repair {each.topic}`"
            for path in each.quarantined
        ]
    session.tell([each.to_json() for each in numbers], _numbers_table(numbers), *notes)


def _numbers_table(numbers: Sequence[PartitionNumbers]) -> Table:
    """Return a row for each partition and state; past due stands in the partition's first row."""
    columns = ("state", ">segments", ">size", ">files", ">oldest deletable", ">past due")
    table = Table("*topic", ">partition", *columns)
    for each in numbers:
        due = "" if each.oldest_deletable is None else str(each.oldest_deletable)
        late = "" if each.overdue_ms is None else format_duration_ms(each.overdue_ms)
        for state, row in sorted(each.states.items(), key=lambda item: _ORDER.get(item[0], 99)):
            size = format_bytes(row.size_bytes)
            table.add(each.topic, str(each.partition), state, row.segments, size, row.files, due, late)
            due = late = ""
    here = [row for each in numbers for state, row in each.states.items() if state != SegmentState.ARCHIVED]
    there = [each.states[SegmentState.ARCHIVED] for each in numbers if SegmentState.ARCHIVED in each.states]
    size = format_bytes(sum(row.size_bytes for row in here))
    files = sum(row.files for row in here)
    table.footer = (
        f"{counted(sum(row.segments for row in here), 'segment')}, {size}, {counted(files, 'file')}"
    )
    if there:
        size = format_bytes(sum(row.size_bytes for row in there))
        table.footer += f"; {sum(row.segments for row in there):,} more, {size}, only in the archive"
    waiting = sum(each.oldest_deletable is not None for each in numbers)
    if waiting:
        table.footer += f"; {counted(waiting, 'partition')} past due: `stratalog retain --preview`"
    return table


# -- archive ---------------------------------------------------------------------------------------------


@command
def archive(
    session: Session,
    topic: TopicOption = None,
    preview: PreviewOption = False,
    contents: Annotated[bool, opt("--list -l", "Only list what the archive holds.")] = False,
    verify: Annotated[
        bool, opt("--verify", "Only read the whole archive back and check every byte (exit code 5).")
    ] = False,
    take_over: Annotated[
        bool,
        opt("--take-over", "First make this store the permanent writer of the archive of --topic."),
    ] = False,
) -> None:
    """Copy sealed segments to the archive, and remove local copies that have expired.

    For topics with remote.storage.enable. A local file is removed after its copy was read back and verified.
    """
    if contents + verify + preview + take_over > 1:
        raise WrongUsage("--preview, --list, --verify and --take-over cannot be used together")
    if take_over and topic is None:
        raise WrongUsage("--take-over needs --topic")
    if contents:
        with _archive_of(session) as opened:
            _list(session, opened, topic)
            missing = _missing(session, opened)
        for line in missing:
            note(line)
        if missing:
            raise typer.Exit(ExitCode.CORRUPTION)
    elif verify:
        if topic is not None:
            raise WrongUsage("--verify checks the whole archive: omit --topic")
        with _archive_of(session) as opened, progress("verifying the archive") as bar:
            check = opened.verify(progress=lambda done, total, what: bar(done, total))
            check.problems += [line for line in _missing(session, opened) if line not in check.problems]
        _verified(session, check)
    else:

        def work(client: AdminClient, report: NamedProgress | None) -> LifecycleReport:
            if take_over and topic is not None:
                client.take_over_archive(topic)
            done = client.archive(topic, preview=preview, progress=report)
            if client.remote:
                return done  # the holder has its own archive
            missing: list[str] = []
            passed_over = [] if preview and done.steps else [ArchiveError]
            with contextlib.suppress(*passed_over), _archive_of(session) as opened:
                if preview:
                    _look_at(opened)
                missing = [line for line in _missing(session, opened) if not _told(done, line)]
            return replace(done, notes=(*done.notes, *missing))

        run_once(session, work, only_looks=preview, why_nothing=lambda: _not_archived(session, topic))


def _look_at(opened: Archive) -> None:
    """Raise ArchiveError if the archive cannot be read; one that does not exist yet may be made."""
    from stratalog.archive import directory_of

    place = directory_of(opened.url)
    if place is not None and os.path.lexists(place) and not os.path.isdir(place):
        raise ArchiveError(f"{place} is not a directory", url=opened.url)
    opened.manifests()


def _told(report: LifecycleReport, line: str) -> bool:
    """Return True if the report has a note on the partition that a line begins with."""
    name = line.partition(": ")[0] + ": "
    return any(note.startswith(name) for note in report.notes)


@contextlib.contextmanager
def _archive_of(session: Session) -> Iterator[Archive]:
    """Open the archive to look at: no store is opened, nothing is changed."""
    from stratalog.archive import ArchiveOptions, open_archive
    from stratalog.fs import RealFileSystem

    options = ArchiveOptions.of(session.broker_config, session.paths[0].rstrip("/"))
    with open_archive(options, RealFileSystem(), store_id="stratalog archive") as opened:
        yield opened


def _missing(session: Session, opened: Archive) -> list[str]:
    """Return what only the archive should have, by the store's own files, and has not."""
    from stratalog.fs import RealFileSystem
    from stratalog.store.tier.tiers import missing_in

    return missing_in(RealFileSystem(), session.paths, opened)


def _list(session: Session, opened: Archive, topic: str | None) -> None:
    manifests = [each for each in opened.manifests() if topic in (None, each.topic)]
    manifests.sort(key=lambda each: (each.topic, each.partition))
    columns = (">first offset", ">next offset", ">segments", ">records", ">size", ".topic id")
    table = Table("*partition", *columns, footer="" if manifests else f"nothing in {opened.url}")
    rows = [_manifest_facts(each) for each in manifests]
    for each, facts in zip(manifests, rows, strict=True):
        table.add(
            f"{each.topic}-{each.partition}" + (" (deleted)" if each.deleted else ""),
            str(each.segments[0].base_offset if each.segments else each.log_start_offset),
            str(each.next_offset),
            facts["segments"],
            "" if facts["records"] is None else facts["records"],
            format_bytes(facts["size_bytes"]),
            facts["topic_id"],
        )
    session.tell(rows, table)


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    from stratalog.format.metadata import id_to_text

    counts = [entry.records for entry in manifest.segments]
    return {
        "topic": manifest.topic,
        "topic_id": id_to_text(manifest.topic_id),
        "partition": manifest.partition,
        "owner": manifest.owner,
        "log_start_offset": manifest.log_start_offset,
        "next_offset": manifest.next_offset,
        "segments": len(manifest.segments),
        "records": None if None in counts else sum(count for count in counts if count is not None),
        "size_bytes": sum(entry.stored_bytes for entry in manifest.segments),
        "config": dict(manifest.config),
        "deleted": manifest.deleted,
    }


def _verified(session: Session, check: ArchiveCheck) -> None:
    if session.json:
        show_json({"ok": check.ok, **check.to_json()})
    else:
        for problem in check.problems:
            print(problem)
        checked = f"{counted(check.segments, 'segment')}, {format_bytes(check.bytes)} in {check.url}"
        problems = counted(len(check.problems), "problem") if check.problems else "no damage"
        note(f"{problems} in {checked}")
        if check.orphans:
            count = counted(len(check.orphans), "object")
            note(f"{count} that no manifest names: the store's janitor removes such objects")
    if not check.ok:
        raise typer.Exit(ExitCode.CORRUPTION)


# -- erase -----------------------------------------------------------------------------------------------


@command
def erase(
    session: Session,
    topic: TopicArgument,
    key: Annotated[list[str] | None, opt("--key -k", "A key, as text; repeatable.")] = None,
    key_hex: Annotated[list[str] | None, opt("--key-hex HEX", "A key in hexadecimal; repeatable.")] = None,
    keys: Annotated[str | None, opt("--keys FILE", "A file with one key per line; - is stdin.")] = None,
    hexadecimal: Annotated[bool, opt("--hex", "The keys in FILE are hexadecimal.")] = False,
    reason: Annotated[str, opt("--reason -r TEXT", "The reason, for the audit file.")] = "",
    dry_run: Annotated[bool, opt("--dry-run -n", "Only count what would be erased, and where.")] = False,
    yes: YesOption = False,
) -> None:
    """Remove every record of a key permanently; other records keep their offsets.

    Covers active, sealed and archived segments, indexes, and files left by crashes and deletions. Lists
    the copies of the store that it cannot reach, and writes an audit file.
    """
    if hexadecimal and keys is None:
        raise WrongUsage("--hex needs --keys FILE")
    wanted = _keys(key or [], key_hex or [], keys, hexadecimal=hexadecimal)
    if not wanted:
        raise WrongUsage("no key given: use --key K, --key-hex HEX or --keys FILE")
    if not dry_run and not yes and keys == "-":
        raise WrongUsage("the keys come from stdin: pass --yes to confirm")
    count = counted(len(wanted), "key")
    with session.look_or_change(only_looks=dry_run) as client:
        if not dry_run and not yes:
            with bars() as progress:
                found = client.erase(topic, wanted, reason=reason, dry_run=True, progress=progress)
            if found.records:
                confirm(f"Erase {counted(found.records, 'record')} of {count} from {topic} permanently?", yes)
        with bars() as progress:
            report = client.erase(topic, wanted, reason=reason, dry_run=dry_run, progress=progress)
    if session.json:
        show_json(report.to_json())
    else:
        _show_erased(report, count)
    if report.quarantined:
        raise typer.Exit(ExitCode.CORRUPTION)
    if report.notes and not report.dry_run:
        raise typer.Exit(ExitCode.UNFINISHED)


def _show_erased(report: EraseReport, count: str) -> None:
    """Print where records were removed on stdout, and what is left to do on stderr."""
    table = Table("what", "~where")
    for what, names in (
        ("rewritten", report.segments),
        ("rewritten in the archive", report.archived),
        ("leftover removed", report.leftovers),
        ("not reached: copy", report.clones),
        ("not reached: damaged", report.quarantined),
    ):
        for name in names:
            table.add(what, name)
    if table.rows:
        show(table)
    for line in report.notes:
        note(f"note: {line}")
    if report.quarantined:
        note("damaged segments may still hold the keys: run `stratalog repair`, then erase again")
    if report.clones:
        some = ", ".join(report.clones[:_MOST_NAMES])
        more = f" and {len(report.clones) - _MOST_NAMES} more" if len(report.clones) > _MOST_NAMES else ""
        note(f"clones of this store may still hold the keys; erase them there, too: {some}{more}")
    verb, records = "would erase" if report.dry_run else "erased", counted(report.records, "record")
    audit = f"; recorded in {report.audit}" if report.audit else ""
    note(f"{verb} {records} of {count} from {report.topic}{audit}")


def _keys(texts: list[str], hexes: list[str], file: str | None, *, hexadecimal: bool) -> list[bytes]:
    """Return every given key once, in order."""
    found = [text.encode("utf-8", "surrogateescape") for text in texts]
    found += [_from_hex(text, f"--key-hex {text}") for text in hexes]
    if file is not None:
        with open_input(file) as stream:
            data = stream.read(2 * MOST_KEY_BYTES + 1)
        for number, line in enumerate(data.split(b"\n"), 1):
            line = line.removesuffix(b"\r")
            if line:
                where = f"{file} line {number}"
                found.append(_from_hex(line.decode("latin-1"), where) if hexadecimal else line)
    keys = list(dict.fromkeys(found))
    if sum(map(len, keys)) > MOST_KEY_BYTES:
        raise InvalidArgumentError(
            f"more than {MOST_KEY_BYTES >> 20} MiB of keys; erase them in several commands"
        )
    return keys


def _from_hex(text: str, where: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgumentError(f"{where}: not hexadecimal") from None
