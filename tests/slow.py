"""The tests that `make check` leaves out: they take seconds, wait, or start processes. `make test` runs them.

A directory or a module. `make check` names the slowest tests that it ran: what takes seconds belongs here.
"""

from __future__ import annotations

SLOW = (
    "tests/archive/test_archive_s3_store.py",
    "tests/cli/test_cli_janitor.py",
    "tests/cli/test_cli_processes.py",
    "tests/crash",
    "tests/fs/test_fs_power_cut.py",
    "tests/log/test_bitflips.py",
    "tests/log/test_interrupts.py",
    "tests/log/test_repair.py",
    "tests/log/test_swap.py",
    "tests/store/copies/test_copies_restore.py",
    "tests/store/test_claims.py",
    "tests/store/test_extremes.py",
    "tests/store/test_lifecycle_beside.py",
    "tests/store/test_loans.py",
    "tests/store/test_preview.py",
    "tests/store/test_reopened_keys.py",
    "tests/store/test_tiering_kills.py",
    "tests/test_demo.py",
    "tests/test_machine.py",
)
