"""The tables of Kafka's messages are those of its jars."""

from __future__ import annotations

import pytest

from tests.interop.message_tables import TABLES, tables

pytestmark = pytest.mark.interop


def test_the_tables_are_those_of_the_jars() -> None:
    """``python -m tests.interop.message_tables`` writes them again."""
    assert {path.stem: path.read_text() for path in TABLES.iterdir()} == tables()
