"""``stratalog dump``: the command line of the dump tool, flag for flag that of kafka-dump-log."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from stratalog.cli.dump.options import (
    DEFAULT_MAX_MESSAGE_SIZE,
    EXIT_PIPE,
    EXIT_USAGE,
    MAX_INT,
    DumpOptions,
)
from stratalog.cli.dump.run import dump_files


def dump_command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Files, or partition directories.", show_default=False),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--files", metavar="FILE,...", help="The same, with commas.", show_default=False),
    ] = None,
    print_data_log: Annotated[
        bool,
        typer.Option("--print-data-log", help="Print keys and payloads. Any decoder implies it."),
    ] = False,
    deep_iteration: Annotated[
        bool,
        typer.Option("--deep-iteration", help="Look into batches. --print-data-log implies it."),
    ] = False,
    verify_index_only: Annotated[
        bool,
        typer.Option("--verify-index-only", help="Verify indexes against their log, print no entries."),
    ] = False,
    index_sanity_check: Annotated[
        bool,
        typer.Option("--index-sanity-check", help="Only the check a broker makes of an index at startup."),
    ] = False,
    max_message_size: Annotated[
        int,
        typer.Option("--max-message-size", min=0, max=MAX_INT, help="Size of the largest batch, in bytes."),
    ] = DEFAULT_MAX_MESSAGE_SIZE,
    max_bytes: Annotated[
        int,
        typer.Option("--max-bytes", min=0, max=MAX_INT, help="Read only this much of each log."),
    ] = MAX_INT,
    skip_record_metadata: Annotated[
        bool,
        typer.Option("--skip-record-metadata", help="Of records, print only keys and payloads."),
    ] = False,
    offsets_decoder: Annotated[
        bool,
        typer.Option("--offsets-decoder", help="Show records of __consumer_offsets as JSON."),
    ] = False,
    transaction_log_decoder: Annotated[
        bool,
        typer.Option("--transaction-log-decoder", help="Show records of __transaction_state as JSON."),
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool,
        typer.Option("--cluster-metadata-decoder", help="Show records of __cluster_metadata as JSON."),
    ] = False,
    share_group_state_decoder: Annotated[
        bool,
        typer.Option("--share-group-state-decoder", help="Show records of __share_group_state as JSON."),
    ] = False,
    remote_log_metadata_decoder: Annotated[
        bool,
        typer.Option("--remote-log-metadata-decoder", help="Not supported: refused with an error."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="It never writes anyway.")] = False,
) -> None:
    """Print what segment files hold, line for line as kafka-dump-log does.

    Exit codes: 0 all was read (wrong checksums and index mismatches are reported in the text),
    1 something was unreadable, 2 usage, 3 a path is not there or holds no segments, 141 the reader of
    the output went away.
    """
    if remote_log_metadata_decoder:
        raise typer.BadParameter("the records of remote log metadata are not decoded; dump them without it")
    wanted = [*(paths or []), *(name for group in files or [] for name in group.split(",") if name)]
    if not wanted:
        typer.echo("Missing files to dump: give paths, or --files.", err=True)
        raise typer.Exit(EXIT_USAGE)
    options = DumpOptions(
        print_data_log=print_data_log,
        deep_iteration=deep_iteration,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        max_message_size=max_message_size,
        max_bytes=max_bytes,
        skip_record_metadata=skip_record_metadata,
        offsets_decoder=offsets_decoder,
        transaction_log_decoder=transaction_log_decoder,
        cluster_metadata_decoder=cluster_metadata_decoder,
        share_group_state_decoder=share_group_state_decoder,
        json=json,
    )
    try:
        code = dump_files(wanted, options, sys.stdout.buffer)
    except BrokenPipeError:
        # `dump … | head`: whatever is still in the stream has no reader either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_PIPE
    raise typer.Exit(code)
