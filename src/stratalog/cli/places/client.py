"""librdkafka for the command line: its settings, its errors as ours, and waits that end.

The package confluent-kafka is imported with the first use of a cluster. Every wait is finite and can be
interrupted: librdkafka itself would try a broker that is gone for ever, and Ctrl-C is only noticed between
two of its calls.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stratalog.analysis.packages import needed
from stratalog.errors import (
    ClusterError,
    ConfigError,
    GroupInUseError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTopicError,
    NotFoundError,
    RecordTooLargeError,
    StratalogError,
    TopicExistsError,
    UnknownTopicError,
)

T = TypeVar("T")

CONTACT_S = 15.0
"""How long the first answer of a cluster may take."""
REFUSED_S = 2.0
"""How long an address is tried that refuses connections: a name may have several addresses."""
ANSWER_S = 30.0
"""How long a request may take, and how long a cluster may be silent while records are read or written."""
SLICE_S = 0.5
"""How long one call into librdkafka may take: Ctrl-C waits for its end."""

OURS: dict[str, Callable[[str], StratalogError]] = {
    "UNKNOWN_TOPIC_OR_PART": UnknownTopicError,
    "UNKNOWN_TOPIC_ID": UnknownTopicError,
    "_UNKNOWN_TOPIC": UnknownTopicError,
    "TOPIC_ALREADY_EXISTS": TopicExistsError,
    "TOPIC_EXCEPTION": InvalidTopicError,
    "INVALID_CONFIG": ConfigError,
    "INVALID_PARTITIONS": InvalidArgumentError,
    "INVALID_REPLICATION_FACTOR": ConfigError,
    "POLICY_VIOLATION": ConfigError,
    "MSG_SIZE_TOO_LARGE": RecordTooLargeError,
    "RECORD_LIST_TOO_LARGE": RecordTooLargeError,
    "INVALID_RECORD": InvalidRecordError,
    "INVALID_TIMESTAMP": InvalidRecordError,
    "GROUP_ID_NOT_FOUND": NotFoundError,
}
SILENT = frozenset(
    {"_TIMED_OUT", "_TRANSPORT", "_RESOLVE", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_WAIT_COORD"}
)
"""Errors that mean that no broker answered."""
FINAL = frozenset({"_AUTHENTICATION", "_SSL", "_FATAL"})
"""Errors of a connection that trying again does not mend."""
IN_USE = frozenset({"NON_EMPTY_GROUP", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"})
"""What a broker answers when the offsets of a group are changed that has members."""

_quiet = logging.getLogger("librdkafka")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())
"""What librdkafka would print on stderr; errors say what matters."""

_JAAS = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)')")
_WHERE = re.compile(r"^(?:\[thrd:[^]]*\]: )?(?:\S+/(?:bootstrap|\d+): )?")
_AFTER = re.compile(r" \((?:after|_)[^()]*\)$")


class Client:
    """The settings of one cluster, what its connections last complained of, and what waits for it."""

    def __init__(self, address: str, config_file: str | None) -> None:
        self.kafka = needed("confluent_kafka", "--bootstrap-server", "'stratalog[kafka]'")
        self.admin_package = needed("confluent_kafka.admin", "--bootstrap-server", "'stratalog[kafka]'")
        self.address = address
        self._given = {} if config_file is None else read_config(config_file)
        self._file = config_file
        self._complaint = ""
        self._final = False
        self._down = False

    def make(self, kind: Callable[..., T], settings: dict[str, object]) -> T:
        """Make a client of librdkafka; what the file says goes over ``settings``."""
        common = {"client.id": "stratalog", "bootstrap.servers": self.address, "error_cb": self._complain}
        try:
            return kind(
                {**common, **settings, **self._given, "bootstrap.servers": self.address}, logger=_quiet
            )
        except (self.kafka.KafkaException, TypeError, ValueError) as error:
            text = error.args[0].str() if isinstance(error, self.kafka.KafkaException) else str(error)
            raise ConfigError(f"{self._file or self.address}: {text}") from error

    def _complain(self, error: Any) -> None:
        name = error.name()
        if name == "_ALL_BROKERS_DOWN":
            self._down = True
            return
        self._complaint = _AFTER.sub("", _WHERE.sub("", error.str()))
        self._final = self._final or name in FINAL

    # -- waiting -------------------------------------------------------------------------------------------

    def metadata(self, client: Any, patience_s: float | None = None) -> Any:
        """Fetch the cluster's metadata; ClusterError if no broker answers.

        ``client`` is polled, so it must not be a consumer. ``patience_s`` is for a cluster that answered
        before and may be restarting.
        """
        began_s = time.monotonic()
        while True:
            try:
                found = client.list_topics(timeout=SLICE_S)
            except self.kafka.KafkaException as error:
                client.poll(0)  # for what it complains of
                waited_s = time.monotonic() - began_s
                refused = self.looks_down and waited_s >= REFUSED_S and patience_s is None
                if self._final or refused or waited_s >= (patience_s or CONTACT_S):
                    raise self.silent() from error
                if error.args[0].name() not in SILENT:
                    raise self.ours(error, "the cluster") from error
            else:
                self.answered()
                return found

    @property
    def looks_down(self) -> bool:
        """True if every broker has refused or dropped its connection since one of them last answered."""
        return self._down or self._final

    def answered(self) -> None:
        """Note that a broker answered."""
        self._down, self._complaint = False, ""

    def result(self, future: Any, about: str) -> Any:
        """Return the result of a request; ``about`` names its subject in an error."""
        try:
            return future.result(timeout=ANSWER_S + SLICE_S)
        except self.kafka.KafkaException as error:
            raise self.ours(error, about) from error
        except TimeoutError:
            raise self.silent() from None

    # -- errors --------------------------------------------------------------------------------------------

    def silent(self) -> ClusterError:
        """Return the error for a cluster that does not answer, with what its connections complained of."""
        return ClusterError(
            f"no broker answered at {self.address}" + (f": {self._complaint}" if self._complaint else "")
        )

    def ours(self, error: Any, about: str) -> StratalogError:
        """Return the error of this package for one of librdkafka or of a broker."""
        found = error.args[0] if isinstance(error, self.kafka.KafkaException) else error
        name, text = found.name(), found.str().removeprefix("Broker: ")
        if name in SILENT:
            return self.silent()
        if name in IN_USE:
            return GroupInUseError(f"{about} has members: stop its consumers first")
        kind = OURS.get(name, ClusterError)
        return kind(f"no {about} at {self.address}" if kind is UnknownTopicError else f"{about}: {text}")


def read_config(path: str) -> dict[str, object]:
    """Return client settings from a file of ``name=value`` lines, such as Kafka's tools take.

    Two of Java's settings are translated: the user and password of ``sasl.jaas.config``, and a trust store
    of type PEM. All others are librdkafka's, which has most names in common.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"{path} line {number}: write name=value")
        found[name.strip()] = value.strip()
    jaas = found.pop("sasl.jaas.config", None)
    if jaas is not None:
        options = {name: double or single for name, double, single in _JAAS.findall(jaas)}
        for name in ("username", "password"):
            if name not in options:
                raise ConfigError(
                    f"{path}: sasl.jaas.config has no {name}: set sasl.username and sasl.password"
                )
            found.setdefault(f"sasl.{name}", re.sub(r"\\(.)", r"\1", options[name]))
    if found.get("ssl.truststore.type", "").upper() == "PEM" and "ssl.truststore.location" in found:
        del found["ssl.truststore.type"]
        found["ssl.ca.location"] = found.pop("ssl.truststore.location")
    return dict(found)
