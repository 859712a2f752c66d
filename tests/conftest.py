"""Rules for the whole test run: no deadline on a shared machine, no luck with the names of directories,
checked locks, and in CI a skipped test is a failed run."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stratalog import locks
from stratalog.testing.locks import LockChecker
from tests.slow import SLOW

settings.register_profile(
    "stratalog", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("quick", settings.get_profile("stratalog"), max_examples=20)  # for `make check`
settings.load_profile("stratalog")


def pytest_configure() -> None:
    """Keep temporary directories below names that a store uses itself; let children be interrupted.

    A test whose pattern is meant for a partition or segment, and matches the directories above it too, fails
    on every machine, not on some. Workers of xdist get their directory from the process that started them.
    A shell starts what runs in the background with SIGINT ignored, and every child would inherit that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        root = Path(tempfile.gettempdir(), f"orders-0.log-{os.getuid()}", "t-0")
        root.mkdir(parents=True, exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(root)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make check` leaves out."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def lock_checker() -> Iterator[LockChecker]:
    """Check the order of locks, and the I/O under them, for the whole run."""
    with LockChecker().active() as checker:
        yield checker


@pytest.fixture(autouse=True)
def locks_in_order(lock_checker: LockChecker) -> Iterator[None]:
    """Fail a test in which a lock was misused, on whatever thread."""
    yield
    violations = list(lock_checker.violations)
    lock_checker.violations.clear()
    assert not violations, "\n".join(violations)


@pytest.fixture
def plain_locks() -> Iterator[None]:
    """For tests that interrupt: no warnings in the report, and locks that are not Python code."""
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    before = locks.use(locks.PLAIN)
    yield
    locks.use(before)
    logger.setLevel(level)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CI=true nothing may be skipped: a slice that did not run proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"CI=true: {len(skipped)} skipped test(s) fail the run", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
