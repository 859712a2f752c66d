"""``stratalog dump``: segment files as text, flag for flag and line for line as kafka-dump-log prints them.

Reads through ``fs`` and never changes a file (Kafka's tool creates missing index files; this one takes them
for empty).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TextIO

import typer

from stratalog.cli import guard
from stratalog.cli.commands.dump.decoders import decoder
from stratalog.cli.commands.dump.indexes import IndexDump
from stratalog.cli.commands.dump.logfile import LogDump
from stratalog.cli.commands.dump.output import (
    DEFAULT_MAX_MESSAGE_SIZE,
    MAX_INT,
    DumpOptions,
    Output,
    Printer,
    Problems,
    Sink,
)
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import FILES_ONLY, NoBootstrapOption, declare, option, parameter
from stratalog.errors import StratalogError
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log.names import parse_partition_dir

EXIT_OK = 0  # every file was read to its end; bad checksums and index mismatches are text, as in Kafka's tool
EXIT_UNREADABLE = 1  # something could not be read or decoded; stderr names it, the rest was dumped
EXIT_USAGE = 2  # wrong command line
EXIT_NOT_FOUND = 3  # a path does not exist, or a directory has no segment files; the rest was dumped
EXIT_PIPE = 141  # the reader of our output went away: what a shell shows for SIGPIPE

SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex", ".checkpoint")
BOOTSTRAP = "bootstrap.checkpoint"
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)
_BASE_OFFSET = re.compile(r"[0-9]{1,19}|[0-9]{20}", re.ASCII)


_FLAGS = {
    "--print-data-log": "Print keys and payloads. Any decoder implies it.",
    "--deep-iteration": "Look into batches. --print-data-log implies it.",
    "--verify-index-only": "Verify indexes against their log, print no entries.",
    "--index-sanity-check": "Only the check a broker makes of an index at startup.",
    "--skip-record-metadata": "Of records, print only keys and payloads.",
    "--offsets-decoder": "Show records of __consumer_offsets as JSON.",
    "--transaction-log-decoder": "Show records of __transaction_state as JSON.",
    "--cluster-metadata-decoder": "Show records of __cluster_metadata as JSON.",
    "--share-group-state-decoder": "Show records of __share_group_state as JSON.",
    "--remote-log-metadata-decoder": "Not supported: refused with an error.",
    "--json": "One JSON object a line.",
    "--read-only": "Accepted for scripts: dump never writes.",
}
_SIZES = {
    "--max-message-size": (DEFAULT_MAX_MESSAGE_SIZE, "Size of the largest batch, in bytes."),
    "--max-bytes": (MAX_INT, "Read only this much of each log."),
}


def dump_command(
    *,
    paths: list[str] | None,
    files: list[str] | None,
    remote_log_metadata_decoder: bool,
    read_only: bool,
    bootstrap_server: str | None,
    **options: Any,
) -> None:
    """Print the contents of segment files in the format of kafka-dump-log.

    Exit codes: 0 everything was read (wrong checksums and index mismatches are reported in the text),
    1 something was unreadable, 2 usage, 3 a path does not exist or holds no segments, 141 the reader of
    the output went away.
    """
    if bootstrap_server is not None:
        raise WrongUsage(FILES_ONLY)
    if remote_log_metadata_decoder:
        raise WrongUsage("records of remote log metadata cannot be decoded: dump them without it")
    wanted = [*(paths or []), *(name for group in files or [] for name in group.split(",") if name)]
    if not wanted:
        typer.echo("Missing files to dump: give paths, or --files.", err=True)
        raise typer.Exit(EXIT_USAGE)
    try:
        code = dump_files(wanted, DumpOptions(**options), sys.stdout.buffer)
    except BrokenPipeError:
        # `dump … | head`: nothing reads the rest of the stream.
        guard.silence_stdout()
        code = EXIT_PIPE
    raise typer.Exit(code)


_PATHS = typer.Argument(metavar="[PATH]...", help="Files, or partition directories.")
declare(
    dump_command,
    [
        parameter("paths", Annotated[list[str] | None, _PATHS], None),
        option("--files FILE,...", list[str] | None, None, "The same, with commas."),
        parameter("bootstrap_server", NoBootstrapOption, None),
        *(option(name, bool, False, text) for name, text in _FLAGS.items()),
        *(option(name, int, size, text, min=0, max=MAX_INT) for name, (size, text) in _SIZES.items()),
    ],
)


def dump_files(
    paths: Iterable[str],
    options: DumpOptions,
    out: Sink,
    err: TextIO | None = None,
) -> int:
    """Dump files, and directories file by file, to ``out``; problems go to ``err``. Return an exit code.

    Damage is shown, not raised: what can be read is printed, what cannot is named on ``err``, and the
    code is then 1; with a path that does not exist, or holds nothing to dump, it is 3. A wrong checksum or
    an index that disagrees with its log is a finding, and the code 0.
    """
    dump = _Dump(RealFileSystem(), options, out, err or sys.stderr)
    for path in dump.expand(paths):
        dump.file(path)
    return dump.end()


class _Dump:
    def __init__(self, fs: FileSystem, options: DumpOptions, sink: Sink, err: TextIO) -> None:
        self._fs = fs
        self._options = options
        self._out = Output(sink)
        self._problems = Problems(err, self._out.flush)
        self._printer = Printer(self._out, options.json)
        self._decoder = decoder(options.decoder) if options.decoder else None
        self._indexes = IndexDump(fs, options, self._printer, self._problems)

    def expand(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield paths as Java writes them; a directory stands for its segment files, in name order."""
        problems = self._problems
        for path in paths:
            path = re.sub("/+", "/", path)
            path = path if path == "/" else path.rstrip("/")
            try:
                names = self._fs.list_dir(path) if self._fs.stat(path).is_dir else None
            except FileNotFoundError:
                problems.missing(f"{path}: no such file or directory")
                continue
            except (OSError, StratalogError) as error:
                problems.fail(str(error) if path in str(error) else f"{path}: {error}")
                continue
            if names is None:
                yield path
                continue
            found = [name for name in sorted(names) if name.endswith(SUFFIXES)]
            if not found:
                inside = next((name for name in sorted(names) if parse_partition_dir(name) is not None), None)
                hint = "" if inside is None else f": a store? give a partition of it, such as {path}/{inside}"
                problems.missing(f"{path}: no segment files in it{hint}")
            yield from (f"{path}/{name}" for name in found)

    def file(self, path: str) -> None:
        self._printer.show("file", f"Dumping {path}", path=path)
        name = path.rpartition("/")[2]
        suffix = name[name.rfind(".") :] if "." in name else ""
        try:
            if suffix in {".log", ".checkpoint"}:
                self._log(path, name, suffix)
            elif suffix == ".index":
                self._indexes.offset_index(path, _base_offset(name))
            elif suffix == ".timeindex":
                self._indexes.time_index(path, _base_offset(name))
            elif suffix == ".snapshot":
                self._indexes.producer_snapshot(path)
            elif suffix == ".txnindex":
                self._indexes.txn_index(path)
            else:
                self._problems.note(f"Ignoring unknown file {path}")
        except BrokenPipeError:
            raise
        except OSError as error:
            self._problems.fail(f"{error.filename or path}: {error.strerror or error}")
        except (StratalogError, ValueError) as error:
            self._problems.fail(str(error) if path in str(error) else f"{path}: {error}")

    def _log(self, path: str, name: str, suffix: str) -> None:
        show = self._printer.show
        if suffix == ".log":
            base = _base_offset(name)
            show("log", f"Log starting offset: {base}", baseOffset=base)
        elif name == BOOTSTRAP:
            show("bootstrapSnapshot", "KRaft bootstrap snapshot")
        else:
            match = _CHECKPOINT.fullmatch(name)
            if match is None:
                raise ValueError("not the name of a KRaft snapshot")
            end, epoch = int(match[1]), int(match[2])
            show("snapshot", f"Snapshot end offset: {end}, epoch: {epoch}", endOffset=end, epoch=epoch)
        with self._fs.open(path) as file:
            LogDump(path, file, self._options, self._decoder, self._out, self._printer, self._problems).run()

    def end(self) -> int:
        self._problems.summary()
        self._out.flush()
        if self._problems.failed:
            return EXIT_UNREADABLE
        return EXIT_NOT_FOUND if self._problems.found_nothing else EXIT_OK


def _base_offset(name: str) -> int:
    """Return the number a segment file's name begins with."""
    digits = name.split(".")[0]
    if not _BASE_OFFSET.fullmatch(digits) or int(digits) >= 2**63:
        raise ValueError(f'the name begins with "{digits}", not with a base offset')
    return int(digits)
