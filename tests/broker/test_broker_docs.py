"""The page of the broker lists what is served."""

from __future__ import annotations

from pathlib import Path

from stratalog import Broker

PAGE = Path(__file__).parents[2] / "docs" / "BROKER.md"


def test_the_table_of_apis_is_that_of_the_code(broker: Broker) -> None:
    rows = [
        f"| {api.request.name.removesuffix('Request')} | {key} | {api.versions.low}–{api.versions.high} |"
        for key, api in sorted(broker.apis.items())
    ]
    table = PAGE.read_text().partition("<!-- apis -->")[2].split("\n\n")[1]
    assert table.splitlines()[2:] == rows
