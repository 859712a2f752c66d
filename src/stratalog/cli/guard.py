"""Where errors end: one clear line on stderr, with the way out, and an exit code that means something.

A traceback is shown only with ``--debug``. A reader that went away (``| head``) and Ctrl-C end the
program quietly.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from stratalog import errors
from stratalog.cli.exit_codes import ExitCode, exit_code
from stratalog.fs.contract import is_refusal

_debug = False


def set_debug(value: bool) -> None:
    """``--debug`` was given: let tracebacks through."""
    global _debug
    _debug = _debug or value


def clear_debug() -> None:
    """Each run of the program starts without ``--debug``."""
    global _debug
    _debug = False


def debugging() -> bool:
    """Whether ``--debug`` was given."""
    return _debug


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Runs a command; every error leaves as ``SystemExit`` with its line already printed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        raise SystemExit(ExitCode.BROKEN_PIPE) from None
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None
    except (errors.StratalogError, OSError) as error:
        if _debug:
            raise
        complain(explain(error))
        raise SystemExit(exit_code(error)) from None
    except Exception as error:
        if _debug or _is_parsers(error):
            raise
        complain(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)")
        raise SystemExit(ExitCode.FAILURE) from None


def complain(message: str) -> None:
    """One line on stderr, whatever is in the message."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    print(f"stratalog: {line}", file=sys.stderr)


def silence_stdout() -> None:
    """Nobody reads stdout any more: point it at nothing so that the interpreter's last flush is quiet."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def explain(error: BaseException) -> str:
    """What happened and, where there is one, the way out."""
    text = (error.message if isinstance(error, errors.StratalogError) else str(error)) or type(error).__name__
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        text = f"{error.filename}: no such file or directory"
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    hint = _way_out(error)
    return f"{text} — {hint}" if hint else text


@contextlib.contextmanager
def hinting(kind: type[BaseException], hint: str) -> Iterator[None]:
    """Give the errors of a kind a way out that fits the command better than the usual one."""
    try:
        yield
    except kind as error:
        error.add_note(hint)
        raise


def _way_out(error: BaseException) -> str:
    told: list[str] = getattr(error, "__notes__", [])
    if told:
        return told[-1]
    if is_refusal(error):
        return "commands that only read work here; to write, check the mount, the owner and the mode"
    if isinstance(error, errors.OffsetOutOfRangeError):
        return (
            f"the log holds offsets {error.first} to {error.end - 1}"
            if error.end > error.first
            else "it is empty"
        )
    if isinstance(error, errors.StoreLockedError):
        return _locked(error)
    for kind, hint in _HINTS:
        if isinstance(error, kind):
            return hint
    return ""


def _locked(error: errors.StoreLockedError) -> str:
    if error.pid is None:
        return "stop that process, or only read"
    if error.control is None:
        return "it takes no commands from others: stop it, or only read"
    return "it did not answer: try again, or stop it"


_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.UnknownTopicError, "`stratalog topic list` shows the topics"),
    (errors.UnknownPartitionError, "`stratalog topic describe TOPIC` shows the partitions"),
    (errors.InvalidTopicError, "use up to 249 letters, digits, '.', '_' and '-'"),
    (errors.ConfigError, "`stratalog config` lists the settings"),
    (
        errors.RecordTooLargeError,
        "`stratalog topic alter TOPIC --config max.message.bytes=…` raises the limit",
    ),
    (
        errors.CorruptionError,
        "`stratalog verify` names every damaged range, `stratalog repair` what can be done",
    ),
    (errors.UnsupportedFormat, "not damage: another version wrote it"),
    (errors.DiskFullError, "make room; the log takes writes again by itself"),
    (
        errors.SyncFailedError,
        "what was appended since may be lost: check the disk, then open the store again",
    ),
    (
        errors.ArchiveConflictError,
        "one store writes an archive: stop the other one, or give this one an archive of its own",
    ),
    (errors.ArchiveError, "nothing here is lost: what is not in the archive stays local; try again"),
    (errors.ControlError, "`stratalog log-dirs` shows who holds the store"),
)


def _is_parsers(error: BaseException) -> bool:
    """Usage errors, ``Exit`` and ``Abort`` of the command-line parser: it deals with those itself."""
    return any(base.__module__.partition(".")[0] in ("typer", "click") for base in type(error).__mro__)
