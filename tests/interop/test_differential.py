"""The same requests to us and to Kafka: every served API in every version, good requests and bad ones.

What differs is in one table, with its reason. A difference that is not there fails the test; so does a row
that no longer differs.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest

import stratalog
from tests.interop.differential import Server, cases, differences, shape
from tests.interop.kafka import KafkaBroker

pytestmark = pytest.mark.interop

OURS = "stratalog has settings of its own; see docs/SETTINGS.md"
ELR = "Kafka 4.3 keeps min.insync.replicas as a dynamic setting of the cluster"
NAMES = "stratalog tells the name that sets the default here; Kafka the one in hours, or none"
FIXED = "settings of the broker are given when its store is opened"
QUORUM = "stratalog keeps its topics in a file: no metadata log, and no controller's listener"
LISTED = "what is not served is not advertised"

DIFFERENCES: tuple[tuple[str, str, str, str], ...] = (
    # API, what the request is about, path in the answer (with * and []), reason
    ("CreateTopics", "*", "topics[].configs.#", OURS),
    ("CreateTopics", "*", "topics[].configs[]", OURS),
    ("CreateTopics", "*", "topics[].configs[].config_source", ELR),
    ("CreateTopics", "*", "topics[].topic_id", "a topic that is only checked has no id"),
    ("DescribeConfigs", "*", "results[].configs.#", OURS),
    ("DescribeConfigs", "*", "results[].configs[]", OURS),
    ("DescribeConfigs", "*", "results[].configs[].config_source", ELR),
    ("DescribeConfigs", "*", "results[].configs[].synonyms.#", NAMES),
    ("DescribeConfigs", "*", "results[].configs[].synonyms[]", NAMES),
    ("DescribeConfigs", "some keys of the broker", "results[].configs[].value", NAMES),
    ("DescribeConfigs", "some keys of the broker", "results[].configs[].read_only", FIXED),
    ("IncrementalAlterConfigs", "a bad operation", "responses[].error_code", "Kafka fails unexpectedly"),
    ("Produce", "two batches", "*", "stratalog takes several batches for a partition"),
    ("Produce", "no key where it is needed", "*", "stratalog names the first bad record, Kafka all of them"),
    ("DescribeLogDirs", "*", "results[].total_bytes", "stratalog knows the free bytes alone"),
    ("DescribeQuorum", "the metadata", "*", QUORUM),
    ("ConsumerGroupDescribe", "*", "groups[].group_state", "a group that is not there: Dead, or no state"),
    ("ConsumerGroupDescribe", "*", "groups[].members[].subscribed_topic_regex", "none: null, or empty"),
    ("Produce", "a gap in it", "*.log_start_offset", "stratalog tells the log's start with no error"),
    ("ListTransactions", "old ones", "transaction_states*", "in Kafka an id with nothing open is the oldest"),
    ("ApiVersions", "a client", "api_keys*", LISTED),
    ("ApiVersions", "a client", "*_features*", LISTED),
    ("ApiVersions", "a client", "finalized_features_epoch", "stratalog does not count changes of features"),
)


def test_we_answer_as_kafka_does(tmp_path: Path) -> None:
    unexplained: dict[str, list[Any]] = {}
    used = set()
    with (
        KafkaBroker(tmp_path / "kafka", {"log.initial.task.delay.ms": 600_000}) as kafka,
        stratalog.open(tmp_path / "data") as store,
        stratalog.serve(store, auto_create_topics=False) as broker,
    ):
        host, port = kafka.bootstrap.split(":")
        ours, theirs = Server(broker.address), Server((host, int(port)))
        served = {api.request.name: api.versions for api in broker.apis.values()}
        tried = set()
        try:
            for case in cases():
                versions = served[f"{case.api}Request"]
                for version in case.versions or range(versions.low, versions.high + 1):
                    tried.add((case.api, version))
                    for path, mine, other in differences(case, version, ours, theirs):
                        rows = [row for row in DIFFERENCES if _is_row_of(row, case.api, case.label, path)]
                        used.update(rows)
                        if not rows:
                            what = f"{case.api} v{version}, {case.label}: {path}"
                            unexplained[what] = [mine, other]
        finally:
            ours.close()
            theirs.close()
    assert not unexplained, "\n".join(f"{what}: {found}" for what, found in unexplained.items())
    unused = set(DIFFERENCES) - used
    assert not unused, "these do not differ any more"
    every = {
        (name.removesuffix("Request"), version)
        for name, versions in served.items()
        for version in range(versions.low, versions.high + 1)
    }
    assert not every - tried, "served, and not tried here"


def _is_row_of(row: tuple[str, str, str, str], api: str, label: str, path: str) -> bool:
    pattern = re.escape(row[2]).replace(r"\*", ".*")
    return row[0] == api and fnmatch.fnmatch(label, row[1]) and re.fullmatch(pattern, shape(path)) is not None
