"""The page of the broker lists what is served."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from stratalog import Broker
from stratalog.broker.operations.settings import NAMES
from stratalog.broker.server import Limits
from tests.interop.client_programs import PROGRAMS
from tests.interop.connector import CONNECTOR_VERSION

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "BROKER.md"


def test_the_table_of_apis_is_that_of_the_code(broker: Broker) -> None:
    rows = [
        f"| {api.request.name.removesuffix('Request')} | {key} | {api.versions.low}–{api.versions.high} |"
        for key, api in sorted(broker.apis.items())
    ]
    table = PAGE.read_text().partition("<!-- apis -->")[2].split("\n\n")[1]
    assert table.splitlines()[2:] == rows


def test_the_table_of_settings_is_that_of_the_code() -> None:
    table = PAGE.read_text().partition("| setting | default | |\n")[2].split("\n\n")[0]
    told = dict(re.findall(r"^\| `([a-z.]+)` \| *`?([^`|]*?)`? *\|", table, re.MULTILINE))
    assert set(told) | {"log.dir"} == set(NAMES)
    for each in dataclasses.fields(Limits):
        value: object = each.default
        default = ",".join(value) if isinstance(value, tuple) else str(value)
        assert told[each.name.replace("_", ".")] == default, each.name


def test_the_table_of_clients_has_the_versions_that_are_tested() -> None:
    """And a dash where a program has no such scenario. What tests kcat looks at its version."""
    table = PAGE.read_text().partition("<!-- clients -->")[2].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    told = {row[0].split(" (")[0]: row for row in rows}
    pins = (ROOT / "requirements" / "dev.txt").read_text()
    locked = dict(re.findall(r"^([a-z-]+)==([\d.]+)", pins, re.MULTILINE))
    versions = {name: locked[name] for name in ("confluent-kafka", "aiokafka", "kafka-python")}
    versions |= {program.name: program.version for program in PROGRAMS}
    versions["Spark's Kafka connector"] = CONNECTOR_VERSION
    assert {name: row[1] for name, row in told.items() if name != "kcat"} == versions
    columns = ("records", "times", "groups", "newer-groups", "static", "admin", "transactions")
    for program in PROGRAMS:
        passed = {name for name, cell in zip(columns, told[program.name][2:], strict=False) if cell != "–"}
        assert passed == set(program.scenarios), program.name
