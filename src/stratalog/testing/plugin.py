"""The pytest plugin: fixtures with a real broker.

It is loaded in every run of pytest, so it imports nothing until a test asks for a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stratalog.testing.brokers import LocalBroker, ProcessBroker

SCOPES = ("function", "class", "module", "package", "session")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the scope of the fixtures as an option and as a setting in the ini file."""
    text = "how long one broker is shared: " + ", ".join(SCOPES)
    parser.getgroup("stratalog").addoption("--stratalog-broker-scope", choices=SCOPES, help=text)
    parser.addini("stratalog_broker_scope", text, default="function")


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    del fixture_name  # both have the same scope
    scope = config.getoption("stratalog_broker_scope") or config.getini("stratalog_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"stratalog_broker_scope: {scope!r} is none of {', '.join(SCOPES)}")
    return scope


@pytest.fixture(scope=_scope)
def stratalog_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a Kafka broker in a thread, on a free port and an empty directory."""
    from stratalog.testing.brokers import LocalBroker

    with LocalBroker(tmp_path_factory.mktemp("stratalog-broker") / "data") as broker:
        yield broker


@pytest.fixture(scope=_scope)
def stratalog_broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBroker]:
    """Run a Kafka broker in a process of its own, which can be killed."""
    from stratalog.testing.brokers import ProcessBroker

    with ProcessBroker(tmp_path_factory.mktemp("stratalog-broker") / "data") as broker:
        yield broker
