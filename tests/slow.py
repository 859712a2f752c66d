"""The tests that `make check` leaves out: they take seconds, wait, or start processes. `make test` runs them.

A directory or a module. `make check` names the slowest tests that it ran: what takes seconds belongs here.
"""

from __future__ import annotations

SLOW = (
    "tests/archive/test_archive_objects.py",
    "tests/archive/test_archive_partition.py",
    "tests/archive/test_archive_s3_store.py",
    "tests/cli/test_cli_full_disk.py",
    "tests/cli/test_cli_janitor.py",
    "tests/cli/test_cli_lifecycle.py",
    "tests/cli/test_cli_processes.py",
    "tests/cli/test_cli_reports_write_nothing.py",
    "tests/cli/test_cli_verify_archive.py",
    "tests/crash",
    "tests/explore",
    "tests/fs/test_fs_power_cut.py",
    "tests/interop/test_interop_swap.py",
    "tests/kernel/test_kernel_equal.py",
    "tests/log/test_bitflips.py",
    "tests/log/test_interrupts.py",
    "tests/log/test_lookups_beside_appends.py",
    "tests/log/test_point.py",
    "tests/log/test_repair.py",
    "tests/log/test_swap.py",
    "tests/log/test_writer_interrupted.py",
    "tests/store/copies",
    "tests/store/test_bookkeeping_interrupted.py",
    "tests/store/test_claims.py",
    "tests/store/test_control_hostile.py",
    "tests/store/test_delete_topic.py",
    "tests/store/test_extremes.py",
    "tests/store/test_forked.py",
    "tests/store/test_full_disk.py",
    "tests/store/test_lifecycle_beside.py",
    "tests/store/test_loans.py",
    "tests/store/test_missing_directory.py",
    "tests/store/test_move_beside_lookups.py",
    "tests/store/test_move_interrupted.py",
    "tests/store/test_preview.py",
    "tests/store/test_reopened_keys.py",
    "tests/store/test_tiering_kills.py",
    "tests/test_demo.py",
    "tests/test_docs.py",
    "tests/test_machine.py",
)
