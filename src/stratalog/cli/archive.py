"""``stratalog archive``: sealed segments to the archive, and a look at what the archive holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Column, NamedProgress, Table, note, progress, show, show_json
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.janitor import PreviewOption, run_once
from stratalog.cli.session import Session, TopicOption, command
from stratalog.config.units import format_bytes

if TYPE_CHECKING:
    from stratalog.archive import Archive, ArchiveCheck, Manifest
    from stratalog.store import AdminClient
    from stratalog.store.lifecycle.reports import LifecycleReport


@command
def archive(
    session: Session,
    topic: TopicOption = None,
    preview: PreviewOption = False,
    contents: Annotated[bool, typer.Option("--list", "-l", help="Only list what the archive holds.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Only read the whole archive back and check every byte (exit code 5)."),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="First make this store the one that writes the archive of --topic, for good."
        ),
    ] = False,
) -> None:
    """Copy sealed segments to the archive, and let local copies go whose time is up.

    For topics with remote.storage.enable. A local file goes only after its copy was read back and verified.
    """
    if contents + verify + preview + take_over > 1:
        raise typer.BadParameter("--preview, --list, --verify and --take-over contradict each other")
    if take_over and topic is None:
        raise typer.BadParameter("--take-over wants to know which archive: give --topic")
    if contents:
        with _opened(session) as opened:
            _list(session, opened, topic)
    elif verify:
        if topic is not None:
            raise typer.BadParameter("--verify checks the whole archive: leave --topic out")
        with _opened(session) as opened, progress("verifying the archive") as bar:
            check = opened.verify(progress=lambda done, total, what: bar(done, total))
        _verified(session, check)
    else:

        def work(client: AdminClient, report: NamedProgress | None) -> LifecycleReport:
            if take_over and topic is not None:
                client.take_over_archive(topic)
            return client.archive(topic, preview=preview, progress=report)

        run_once(session, work, only_looks=preview)


@contextlib.contextmanager
def _opened(session: Session) -> Iterator[Archive]:
    """The archive to look at: no store is opened, nothing is changed."""
    from stratalog.archive import ArchiveOptions, open_archive
    from stratalog.fs import RealFileSystem

    options = ArchiveOptions.of(session.broker_config, session.paths[0].rstrip("/"))
    with open_archive(options, RealFileSystem(), store_id="stratalog archive") as opened:
        yield opened


def _list(session: Session, opened: Archive, topic: str | None) -> None:
    manifests = [each for each in opened.manifests() if topic in (None, each.topic)]
    manifests.sort(key=lambda each: (each.topic, each.partition))
    if session.json:
        show_json([manifest_facts(each) for each in manifests])
        return
    table = Table(
        [
            Column("partition", style="bold"),
            Column("first offset", right=True),
            Column("next offset", right=True),
            Column("segments", right=True),
            Column("records", right=True),
            Column("size", right=True),
            Column("topic id", style="dim"),
        ],
        footer="" if manifests else f"nothing in {opened.url}",
    )
    for each in manifests:
        facts = manifest_facts(each)
        table.add(
            f"{each.topic}-{each.partition}" + (" (deleted)" if each.deleted else ""),
            str(each.segments[0].base_offset if each.segments else each.log_start_offset),
            str(each.next_offset),
            f"{facts['segments']:,}",
            "" if facts["records"] is None else f"{facts['records']:,}",
            format_bytes(facts["size_bytes"]),
            facts["topic_id"],
        )
    show(table)


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """A partition of the archive for programs."""
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
        checked = f"{check.segments:,} segments, {format_bytes(check.bytes)} in {check.url}"
        note(
            f"{len(check.problems):,} problems in {checked}" if check.problems else f"no damage in {checked}"
        )
        if check.orphans:
            note(f"{len(check.orphans):,} objects that no manifest names; the store's janitor sweeps them")
    if not check.ok:
        raise typer.Exit(ExitCode.CORRUPTION)
