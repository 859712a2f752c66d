"""The tables of Kafka's messages in ``src/stratalog/wire/tables``, made from the schemas in Kafka's own jars.

``python -m tests.interop.message_tables`` writes them again, for a new version of Kafka. `test_wire_tables`
compares them with the jars.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratalog.wire.schema import Versions
from tests.interop.kafka import CACHE, KAFKA_VERSION, ROOT

TABLES = ROOT / "src" / "stratalog" / "wire" / "tables"
NOT_FOR_CLIENTS = {
    "WriteTxnMarkers", "AddRaftVoter", "RemoveRaftVoter", "InitializeShareGroupState", "ReadShareGroupState",
    "WriteShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary",
}  # fmt: skip
"""What brokers and controllers send each other."""


def schemas(jar: str, folder: str = "common/message") -> Iterator[dict[str, Any]]:
    """Yield every message schema of a jar."""
    with zipfile.ZipFile(CACHE / "libs" / f"{jar}-{KAFKA_VERSION}.jar") as archive:
        for name in archive.namelist():
            if name.startswith(f"{folder}/") and name.endswith(".json"):
                found = json.loads(re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE))
                if found["validVersions"] != "none":
                    yield found


def tables() -> dict[str, str]:
    """Return the text of each table by the name of its file."""
    clients = list(schemas("kafka-clients"))
    calls = [
        each
        for each in clients
        if each["type"] in ("request", "response")
        and re.sub(r"(Request|Response)$", "", each["name"]) not in NOT_FOR_CLIENTS
    ]
    served = {each["apiKey"] for each in calls if "broker" in each.get("listeners", ())}
    calls = [each for each in calls if each["apiKey"] in served]
    data = [each for each in clients if each["type"] == "data"]
    protocol = [each for each in data if each["name"].startswith("ConsumerProtocol")]
    control = [each for each in data if each not in protocol] + list(schemas("kafka-raft"))
    found = {
        "requests": sorted(calls, key=lambda each: (each["apiKey"], each["type"])),
        "headers": [each for each in clients if each["type"] == "header"],
        "consumer-protocol": protocol,
        "control": [each for each in control if each["type"] == "data"],
        "offsets": _records("kafka-group-coordinator"),
        "transaction-log": _records("kafka-transaction-coordinator"),
        "share-group-state": _records("kafka-share-coordinator"),
        "cluster-metadata": sorted(
            schemas("kafka-metadata", "common/metadata"), key=lambda each: int(each["apiKey"])
        ),
    }
    return {name: "".join(map(_paragraph, messages)) for name, messages in found.items()}


def _records(jar: str) -> list[dict[str, Any]]:
    return sorted(schemas(jar), key=lambda each: (each["apiKey"], each["type"]))


def _paragraph(schema: dict[str, Any]) -> str:
    number = f" {schema['apiKey']}" if "apiKey" in schema else ""
    head = f"{schema['name']} {schema['validVersions']} {schema['flexibleVersions']}{number}:"
    common = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
    fields = ", ".join(_fields(schema["fields"], Versions.parse(schema["validVersions"]), common, set()))
    return textwrap.fill(f"{head} {fields}", 110, subsequent_indent=" ", break_on_hyphens=False) + "\n"


def _fields(
    fields: list[dict[str, Any]], all_versions: Versions, common: dict[str, Any], seen: set[str]
) -> Iterator[str]:
    for field in fields:
        kind = field["type"].removeprefix("[]")
        versions = Versions.parse(field.get("versions") or field["taggedVersions"])
        words = [field["name"][0].lower() + field["name"][1:], field["type"]]
        nullable = Versions.parse(field.get("nullableVersions", "none"))
        if nullable.low <= nullable.high:
            everywhere = _covers(nullable, versions, all_versions)
            words[-1] += "?" if everywhere else f"?{field['nullableVersions']}"
        if not _covers(versions, all_versions):
            words.append(field.get("versions") or field["taggedVersions"])
        if "tag" in field:
            assert field["taggedVersions"] == field.get("versions", field["taggedVersions"])
            words.append(f"#{field['tag']}")
        if "default" in field:
            words.append(f"={field['default']}")
        if field.get("flexibleVersions") == "none":
            words.append("!")
        inside = field.get("fields") or common.get(kind)
        if inside and kind not in seen:
            seen.add(kind)
            words.append(f"({', '.join(_fields(inside, all_versions, common, seen))})")
        yield " ".join(words)


def _covers(versions: Versions, *ranges: Versions) -> bool:
    """Return True if every version that is in all ``ranges`` is one of ``versions``."""
    low, high = max(each.low for each in ranges), min(each.high for each in ranges)
    return versions.low <= low and high <= versions.high


def main() -> int:
    TABLES.mkdir(exist_ok=True)
    for name, text in tables().items():
        Path(TABLES / f"{name}.txt").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
