"""The dump of a list of files: which file is what, in which order, and how it all ends.

Reads through ``fs`` and writes to the stream it is given; never changes a file (Kafka's tool creates
missing index files; this one takes them for empty).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from stratalog.cli.dump.decoders import Decoder, decoder
from stratalog.cli.dump.indexes import IndexDump
from stratalog.cli.dump.logfile import LogDump
from stratalog.cli.dump.options import EXIT_NOT_FOUND, EXIT_OK, EXIT_UNREADABLE, DumpOptions
from stratalog.cli.dump.output import Output, Sink
from stratalog.cli.dump.printer import JsonPrinter, Printer, TextPrinter
from stratalog.cli.dump.problems import Problems
from stratalog.errors import StratalogError
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log.names import parse_partition_dir

SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex", ".checkpoint")
BOOTSTRAP = "bootstrap.checkpoint"
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)
_BASE_OFFSET = re.compile(r"[0-9]{1,19}|[0-9]{20}", re.ASCII)


def expand(fs: FileSystem, paths: Iterable[str], problems: Problems) -> Iterator[str]:
    """Paths as Java writes them; a directory stands for its segment files, in name order."""
    for path in paths:
        path = re.sub("/+", "/", path)
        path = path if path == "/" else path.rstrip("/")
        try:
            names = fs.list_dir(path) if fs.stat(path).is_dir else None
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
            way_out = "" if inside is None else f": a store? give a partition of it, such as {path}/{inside}"
            problems.missing(f"{path}: no segment files in it{way_out}")
        yield from (f"{path}/{name}" for name in found)


class _Dump:
    def __init__(
        self, fs: FileSystem, options: DumpOptions, out: Output, printer: Printer, problems: Problems
    ) -> None:
        self._fs = fs
        self._options = options
        self._out = out
        self._printer = printer
        self._problems = problems
        self._decoder: Decoder | None = decoder(options.decoder) if options.decoder else None
        self._indexes = IndexDump(
            fs,
            printer,
            problems,
            sanity_only=options.index_sanity_check,
            verify_only=options.verify_index_only,
            max_message_size=options.max_message_size,
        )

    def file(self, path: str) -> None:
        self._printer.file(path)
        name = path.rpartition("/")[2]
        suffix = name[name.rfind(".") :] if "." in name else ""
        try:
            if suffix in {".log", ".checkpoint"}:
                self._log(path, name, suffix)
            elif suffix == ".index":
                self._indexes.offset_index(path, base_offset(name))
            elif suffix == ".timeindex":
                self._indexes.time_index(path, base_offset(name))
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
        if suffix == ".log":
            self._printer.log_start(base_offset(name))
        elif name == BOOTSTRAP:
            self._printer.bootstrap_start()
        else:
            match = _CHECKPOINT.fullmatch(name)
            if match is None:
                raise ValueError("not the name of a KRaft snapshot")
            self._printer.snapshot_start(int(match[1]), int(match[2]))
        with self._fs.open(path) as file:
            LogDump(path, file, self._options, self._decoder, self._out, self._printer, self._problems).run()


def base_offset(name: str) -> int:
    """The number a segment file's name begins with."""
    digits = name.split(".")[0]
    if not _BASE_OFFSET.fullmatch(digits) or int(digits) >= 2**63:
        raise ValueError(f'the name begins with "{digits}", not with a base offset')
    return int(digits)


def dump_files(
    paths: Iterable[str],
    options: DumpOptions,
    out: Sink,
    err: TextIO | None = None,
    fs: FileSystem | None = None,
) -> int:
    """Dump files, and directories file by file, to ``out``; problems go to ``err``. Returns an exit code.

    Damage is shown, not raised: what can be read is printed, what cannot is named on ``err``, and the
    code is then 1; with a path that is not there, or holds nothing to dump, it is 3. A wrong checksum or
    an index that disagrees with its log is a finding, and the code 0.
    """
    files = fs if fs is not None else RealFileSystem()
    output = Output(out)
    problems = Problems(err if err is not None else sys.stderr, output.flush)
    printer: Printer = JsonPrinter(output) if options.json else TextPrinter(output)
    dump = _Dump(files, options, output, printer, problems)
    for path in expand(files, paths, problems):
        dump.file(path)
    problems.summary()
    output.flush()
    if problems.failed:
        return EXIT_UNREADABLE
    return EXIT_NOT_FOUND if problems.found_nothing else EXIT_OK
