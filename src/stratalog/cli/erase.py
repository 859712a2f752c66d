"""``stratalog erase``: every record of a key, gone."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from stratalog.cli.console import Column, Table, bars, note, show, show_json
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.session import Session, TopicArgument, command
from stratalog.cli.topics import confirm
from stratalog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from stratalog.store.lifecycle.reports import EraseReport

MOST_KEY_BYTES = 6 << 20
"""The keys of one command travel to the holder in one frame."""
_MOST_NAMES = 10


@command
def erase(
    session: Session,
    topic: TopicArgument,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", help="A key, as text; as often as needed.", show_default=False),
    ] = None,
    key_hex: Annotated[
        list[str] | None,
        typer.Option(
            "--key-hex", metavar="HEX", help="A key in hexadecimal; as often as needed.", show_default=False
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="FILE", help="A file with one key a line; - is stdin."),
    ] = None,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="The keys in FILE are hexadecimal.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why, for the audit file.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only count what would be erased, and where.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove every record of a key for good; no other record moves.

    Covers the active segment, sealed and archived ones, indexes, and what crashes and deletions left. Lists
    the copies of the store that it cannot reach, and writes what it did to an audit file.
    """
    if hexadecimal and keys is None:
        raise typer.BadParameter("--hex needs --keys FILE")
    wanted = _keys(key or [], key_hex or [], keys, hexadecimal=hexadecimal)
    if not wanted:
        raise typer.BadParameter("no key given: use --key K, --key-hex HEX or --keys FILE")
    if not dry_run and not yes and keys == "-":
        raise typer.BadParameter("the keys come from stdin, so nobody can be asked: add --yes")
    count = f"{len(wanted):,} key{'' if len(wanted) == 1 else 's'}"
    with session.look_or_change(only_looks=dry_run) as client:
        if not dry_run and not yes:
            with bars() as progress:
                found = client.erase(topic, wanted, reason=reason, dry_run=True, progress=progress)
            if found.records:
                records = f"{found.records:,} record{'' if found.records == 1 else 's'}"
                confirm(f"Erase {records} of {count} from {topic} for good?", yes)
        with bars() as progress:
            report = client.erase(topic, wanted, reason=reason, dry_run=dry_run, progress=progress)
    if session.json:
        show_json(report.to_json())
    else:
        _show(report, count)
    if report.quarantined:
        raise typer.Exit(ExitCode.CORRUPTION)
    if report.notes and not report.dry_run:
        raise typer.Exit(ExitCode.UNFINISHED)


def _show(report: EraseReport, count: str) -> None:
    """Where records went from on stdout; what is left to do on stderr."""
    table = Table([Column("what"), Column("where", fold=True)])
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
        note("damaged segments may still hold the keys: `stratalog repair` them, then erase again")
    if report.clones:
        some = ", ".join(report.clones[:_MOST_NAMES])
        more = f" and {len(report.clones) - _MOST_NAMES} more" if len(report.clones) > _MOST_NAMES else ""
        note(f"copies of this store may still hold the keys, erase them there too: {some}{more}")
    records = f"{report.records:,} record{'' if report.records == 1 else 's'}"
    said = f"{'would erase' if report.dry_run else 'erased'} {records} of {count} from {report.topic}"
    note(said + (f"; written down in {report.audit}" if report.audit else ""))


def _keys(texts: list[str], hexes: list[str], file: str | None, *, hexadecimal: bool) -> list[bytes]:
    """Every key asked for, once, in the order given."""
    found = [text.encode("utf-8", "surrogateescape") for text in texts]
    found += [_from_hex(text, f"--key-hex {text}") for text in hexes]
    if file is not None:
        with _opened(file) as stream:
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


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb")
