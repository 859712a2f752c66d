"""The command line on a Kafka cluster (``--bootstrap-server``): the same commands, answers and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import stratalog
from stratalog import Broker, Record, Store
from stratalog.cli.app import ORDER, app
from stratalog.cli.guard import ExitCode
from stratalog.cli.places import client, cluster_reading
from stratalog.cli.places.client import Client, read_config
from stratalog.cli.places.cluster import Cluster
from stratalog.errors import ClusterError, ConfigError
from tests.cli.cluster_shell import ClusterShell
from tests.cli.shell import Shell

BASE = 1_790_000_000_000
UNKNOWN = {"segments", "size_bytes", "directory", "committed_ms", "id"}
"""What a cluster does not tell, and what is never the same twice."""
COMMAND = [sys.executable, "-m", "stratalog"]
WITH_CTRL_C = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from stratalog.cli import main; main()"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "served") as store:
        yield store


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    with stratalog.serve(store) as broker:
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> ClusterShell:
    return ClusterShell(broker.bootstrap_servers)


@pytest.fixture
def both(cluster: ClusterShell, tmp_path: Path) -> list[Shell]:
    """A store of its own, and another one behind a broker."""
    return [Shell(tmp_path / "local"), cluster]


def shape(value: Any) -> Any:
    """Return JSON without what only the files can tell."""
    if isinstance(value, list):
        return [shape(each) for each in value]
    if isinstance(value, dict):
        return {name: "?" if name in UNKNOWN else shape(each) for name, each in value.items()}
    return value


def same(both: list[Shell], *arguments: str, stdin: str | None = None) -> Any:
    """Run a command on the store and on the cluster; return the JSON of both, which must be the same."""
    told = [shell.json(*arguments, stdin=stdin) for shell in both]
    assert shape(told[0]) == shape(told[1])
    return told[0]


def test_topics_are_created_shown_changed_and_deleted(both: list[Shell]) -> None:
    settings = ["-c", "segment.bytes=64MiB", "--profile", "streaming"]
    assert same(both, "topic", "create", "t", "-p", "3", *settings[:2]) == {"topic": "t", "created": True}
    assert not same(both, "topic", "create", "t", "--if-not-exists")["created"]
    same(both, "topic", "create", "one")
    described = same(both, "topic", "describe", "t")
    assert described["config"] == {"segment.bytes": {"value": "67108864", "source": "topic"}}
    assert [row["log_end_offset"] for row in described["details"]] == [0, 0, 0]
    same(both, "topic", "alter", "t", "-c", "retention.ms=1d", "--unset", "segment.bytes", "-p", "4")
    assert [row["name"] for row in same(both, "config", "t", "--changed")] == ["retention.ms"]
    assert [(row["topic"], row["partitions"]) for row in same(both, "topic", "list")] == [
        ("one", 1),
        ("t", 4),
    ]
    assert same(both, "topic", "delete", "t", "one", "--yes") == {"deleted": ["t", "one"]}
    assert same(both, "topic", "delete", "t", "--yes", "--if-exists") == {"deleted": []}
    both[1].ok("topic", "create", "p", *settings)
    found = {row["name"]: row["value"] for row in both[1].json("config", "p", "--changed")}
    assert found["segment.bytes"] == "67108864"
    assert "stratalog.profile" not in found, "Kafka does not know it: its settings are sent"


def test_a_topic_has_the_id_that_kafka_writes(cluster: ClusterShell, store: Store) -> None:
    for number in range(30):  # some of them have characters that base64 writes in two ways
        name = f"t{number}"
        store.create_topic(name)
        assert cluster.json("topic", "describe", name)["id"] == store[name].id


def test_every_setting_of_a_topic_is_shown_as_a_store_shows_it(cluster: ClusterShell, store: Store) -> None:
    store.create_topic("t", config={"retention.ms": 1000})
    given = ["--store-config", "log.segment.bytes=1048576"]
    local = Shell(*[each.rpartition("/")[0] for each in [store["t"].segments(0)[0].path.rpartition("/")[0]]])
    here = {row["name"]: row for row in local.json("config", "t")}
    assert {row["name"]: row for row in cluster.json("config", "t")} == here
    assert cluster("config", "t", *given).exit_code == ExitCode.USAGE
    assert "retention.ms" in cluster.ok("config", "t", "--find", "retention.ms")


def test_records_are_appended_and_read(both: list[Shell]) -> None:
    for shell in both:
        shell.ok("topic", "create", "t", "-p", "3")
    rows = [
        {
            "key": f"k{n % 7}",
            "value": f"v{n}",
            "timestamp": BASE + (n * 37 % 60) * 1000,
            "headers": {"h": str(n)},
        }
        for n in range(60)
    ]
    rows += [{"key": None, "value": None, "timestamp": BASE + 60_000, "partition": 2}]
    rows += [{"key": "", "value": "", "timestamp": BASE + 61_000, "partition": 2, "headers": [["h", None]]}]
    appended = same(both, "append", "t", "--jsonl", stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert appended["records"] == 62
    for arguments in (
        [],
        ["-p", "1"],
        ["-p", "1", "-p", "2"],
        ["-p", "1", "--from", "3", "--to", "5"],
        ["--from", "-4"],
        ["--to", "-4"],
        ["--limit", "7"],
        ["--limit", "0"],
        ["--from", "latest"],
        ["--from", f"@{BASE + 20_000}", "--to", f"@{BASE + 40_000}"],
        ["--from", f"@{BASE + 999_000}"],
        ["--key", "k3"],
        ["--key", "k3", "--last"],
        ["--key", "k3", "--from", f"@{BASE + 20_000}"],
        ["--isolation", "read_committed"],
    ):
        told = [shell.ok("read", "t", "--json", *arguments) for shell in both]
        assert told[0] == told[1], arguments
        assert told[0] or set(arguments) & {"0", "latest", f"@{BASE + 999_000}"}, arguments
    for arguments in (["--format", "%p:%o %T %k=%s %h %S %K\\n"], ["--value-hex", "--json"]):
        assert len({shell.ok("read", "t", *arguments) for shell in both}) == 1, arguments


def test_values_are_chosen_decoded_and_written_to_a_file(both: list[Shell], tmp_path: Path) -> None:
    for shell in both:
        shell.ok("topic", "create", "t")
        shell.ok("append", "t", "--timestamp", str(BASE), stdin='{"n":1}\n{"n":5}\n{"n":7}\n')
        assert shell.ok("read", "t", "--where", "n > 4") == '{"n":5}\n{"n":7}\n'
        rows = shell.ok("read", "t", "--json", "--value-format", "json").splitlines()
        assert [json.loads(row)["value"]["n"] for row in rows] == [1, 5, 7]
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for shell, file in zip(both, files, strict=True):
        told = shell.json("read", "t", "--out", str(file))
        assert (told["topic"], told["records"]) == ("t", 3)
    assert files[0].read_text() == files[1].read_text()


def test_groups_are_listed_described_reset_and_deleted(both: list[Shell]) -> None:
    for shell in both:
        shell.ok("topic", "create", "t", "-p", "2")
        lines = "".join(
            json.dumps({"value": "x", "partition": n % 2, "timestamp": BASE + n}) + "\n" for n in range(20)
        )
        shell.ok("append", "t", "--jsonl", stdin=lines)
    assert same(both, "group", "list") == []
    assert same(both, "group", "reset-offsets", "g", "-t", "t", "--to", "-3", "--dry-run")["dry_run"]
    assert same(both, "group", "list") == [], "--dry-run commits nothing"
    for to, offsets in [
        ("-3", [7, 7]),
        ("earliest", [0, 0]),
        ("latest", [10, 10]),
        (f"@{BASE + 10}", [5, 5]),
    ]:
        same(both, "group", "reset-offsets", "g", "-t", "t", "--to", to, "--yes")
        rows = same(both, "group", "describe", "g")["partitions"]
        assert [row["offset"] for row in rows] == offsets
        assert [row["lag"] for row in rows] == [10 - offset for offset in offsets]
    same(both, "group", "reset-offsets", "g", "-t", "t", "-p", "1", "--to", "3", "--yes")
    (listed,) = same(both, "group", "list")
    assert (listed["group"], listed["partitions"], listed["lag"], listed["topics"]) == ("g", 2, 12, ["t"])
    assert "g" in both[1].ok("group", "list")
    assert both[1].json("group", "describe", "g")["partitions"][0]["committed_ms"] is None
    same(both, "group", "delete", "g", "--dry-run")
    assert same(both, "group", "delete", "g", "--yes")["deleted"] == ["t-0", "t-1"]
    assert [row["partitions"] for row in both[1].json("group", "list")] in ([], [0])


def test_a_group_that_is_in_use_is_left_alone(cluster: ClusterShell, broker: Broker, store: Store) -> None:
    from confluent_kafka import Consumer

    store.create_topic("t").append_many([Record(b"x")] * 5)
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    member = Consumer(settings)
    member.subscribe(["t"])
    deadline_s = time.monotonic() + 60
    while member.poll(1) is None:
        assert time.monotonic() < deadline_s
    try:
        for arguments in (["reset-offsets", "g", "-t", "t", "--to", "earliest"], ["delete", "g"]):
            result = cluster("group", *arguments, "--yes")
            assert result.exit_code == ExitCode.CLUSTER, result.output
            assert "group g has members: stop its consumers first" in result.stderr
    finally:
        member.close()
    cluster.ok("group", "reset-offsets", "g", "-t", "t", "--to", "earliest", "--yes")
    result = cluster("group", "delete", "g", "--topic", "t", "--yes")
    assert (result.exit_code, result.stdout) == (0, "")
    cluster.ok("group", "reset-offsets", "h", "-t", "t", "--to", "latest", "--yes")
    store.create_topic("u")
    cluster.ok("group", "reset-offsets", "h", "-t", "u", "--to", "latest", "--yes")
    result = cluster("group", "delete", "h", "--topic", "t", "--yes")
    assert result.exit_code == ExitCode.USAGE
    assert "omit --topic" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["topic", "describe", "nope"], None, ExitCode.NOT_FOUND),
        (["topic", "alter", "nope", "-c", "retention.ms=1"], None, ExitCode.NOT_FOUND),
        (["topic", "delete", "nope", "--yes"], None, ExitCode.NOT_FOUND),
        (["topic", "delete", "t"], None, ExitCode.USAGE),
        (["topic", "create", "t"], None, ExitCode.TOPIC_EXISTS),
        (["topic", "create", "a b"], None, ExitCode.USAGE),
        (["topic", "create", "x", "-c", "segment.bytes=1"], None, ExitCode.USAGE),
        (["topic", "create", "x", "-c", "no.such.setting=1"], None, ExitCode.USAGE),
        (["topic", "alter", "t", "-p", "1"], None, ExitCode.USAGE),
        (["config", "nope"], None, ExitCode.NOT_FOUND),
        (["append", "nope"], "", ExitCode.NOT_FOUND),
        (["append", "t", "-p", "7"], "x\n", ExitCode.NOT_FOUND),
        (["append", "t"], "y" * 2000 + "\n", ExitCode.RECORD_REFUSED),
        (["read", "nope"], None, ExitCode.NOT_FOUND),
        (["read", "t", "-p", "7"], None, ExitCode.NOT_FOUND),
        (["read", "t", "-p", "0", "--from", "99"], None, ExitCode.OFFSET_OUT_OF_RANGE),
        (["read", "t", "--key", "nobody"], None, ExitCode.NOT_FOUND),
        (["group", "describe", "nobody"], None, ExitCode.NOT_FOUND),
        (["group", "delete", "nobody", "--yes"], None, ExitCode.NOT_FOUND),
        (["group", "reset-offsets", "nobody", "--to", "latest", "--yes"], None, ExitCode.NOT_FOUND),
        (["group", "reset-offsets", "g", "-t", "nope", "--to", "latest", "--yes"], None, ExitCode.NOT_FOUND),
    ],
)
def test_errors_have_the_same_exit_codes(
    both: list[Shell], arguments: list[str], stdin: str | None, code: ExitCode
) -> None:
    for shell in both:
        shell.ok("topic", "create", "t", "-p", "2", "-c", "max.message.bytes=1000")
        result = shell(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("stratalog: ")
        assert result.stderr.count("\n") == 1


def test_an_append_that_fails_halfway_names_the_line_and_tells_the_rest(
    cluster: ClusterShell, store: Store
) -> None:
    store.create_topic("t", 1, {"max.message.bytes": 1000})
    lines = [b"%d" % number for number in range(200)]  # more than one batch of 1000 bytes
    told = json.loads(cluster.ok("append", "t", "--json", stdin=b"\n".join(lines)))
    assert told["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 199, "records": 200}]
    assert [record.value for record in store["t"].read()] == lines
    result = cluster("append", "t", "-", stdin=b"good\n" + b"b" * 2000 + b"\n")
    assert result.exit_code == ExitCode.RECORD_REFUSED
    assert "stdin line 2: " in result.stderr
    there = len(list(store["t"].read())) - 200
    assert (f"before the error appended {there} record" in result.stderr) == (there > 0)


def test_keys_go_to_the_partitions_that_kafka_chooses(both: list[Shell]) -> None:
    lines = "".join(f"key-{number}:x\n" for number in range(200))
    for shell in both:
        shell.ok("topic", "create", "t", "-p", "8")
        shell.ok("append", "t", "-K", ":", stdin=lines)
    told = [sorted(shell.lines("read", "t", "--format", "%k %p\\n")) for shell in both]
    assert told[0] == told[1]


def test_many_partitions_are_merged_in_bounded_memory(
    cluster: ClusterShell, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition is far ahead of the other in time: it is paused and goes on."""
    monkeypatch.setattr(cluster_reading, "AHEAD_BYTES", 20_000)
    topic = store.create_topic("t", 2)
    topic.append_many([Record(b"%d" % n, timestamp=BASE + 10_000 + n) for n in range(5000)], partition=0)
    topic.append_many([Record(b"%d" % n, timestamp=BASE + n) for n in range(5000)], partition=1)
    lines = cluster.lines("read", "t", "--format", "%p %T %s\\n")
    assert lines == [f"1 {BASE + n} {n}" for n in range(5000)] + [
        f"0 {BASE + 10_000 + n} {n}" for n in range(5000)
    ]


def test_gaps_and_markers_at_the_end_do_not_hold_a_reading_up(cluster: ClusterShell, store: Store) -> None:
    topic = store.create_topic("t", 1)
    for decide in ("commit", "abort"):
        with contextlib.suppress(ZeroDivisionError), store.transaction("id") as transaction:
            transaction.append("t", decide.encode())
            if decide == "abort":
                raise ZeroDivisionError
    assert topic.log_end_offset() == 4
    assert cluster.lines("read", "t", "--isolation", "read_committed") == ["commit"]
    assert cluster.lines("read", "t") == ["commit", "abort"]
    topic.delete_records(0, 3)
    assert cluster.lines("read", "t") == []


def test_a_reader_follows_until_it_is_interrupted(broker: Broker, store: Store) -> None:
    """Also into partitions that are added."""
    topic = store.create_topic("t", 1)
    topic.append(b"old")
    follow = ["read", "t", "--follow", "--from", "earliest"]
    with started(*follow, "--bootstrap-server", broker.bootstrap_servers) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"old\n"
        topic.append(b"new")
        assert process.stdout.readline() == b"new\n"
        store.add_partitions("t", 2)
        topic.append(b"added", partition=1)
        assert process.stdout.readline() == b"added\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ExitCode.INTERRUPTED
        assert process.stderr is not None
        assert process.stderr.read() == b""


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose Ctrl-C works, however the tests themselves were started."""
    command = [sys.executable, "-c", WITH_CTRL_C, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_ends_a_wait_for_a_broker_that_does_not_answer() -> None:
    """It takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with started("topic", "list", "--bootstrap-server", address) as process:
            silent.settimeout(60)
            taken, _ = silent.accept()
            with taken:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == ExitCode.INTERRUPTED


def test_an_address_where_nobody_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for arguments in (["topic", "list"], ["append", "t"], ["read", "t"], ["group", "list"]):
        result = ClusterShell(f"127.0.0.1:{port}")(*arguments, stdin="x\n")
        assert result.exit_code == ExitCode.CLUSTER
        assert result.stderr.startswith(f"stratalog: no broker answered at 127.0.0.1:{port}: ")
        assert "refused" in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_broker_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONTACT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = ClusterShell(address)("topic", "list")
    assert result.exit_code == ExitCode.CLUSTER
    assert result.stderr.startswith(f"stratalog: no broker answered at {address}")


def test_a_reading_whose_broker_goes_away_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reading, "ANSWER_S", 1.0)
    store.create_topic("t", 1).append(b"old")
    with stratalog.serve(store) as broker:
        address = broker.bootstrap_servers
        records = Cluster(address).topic("t").read(follow=True)
        assert next(records).value == b"old"
    with pytest.raises(ClusterError, match=f"no broker answered at {address}"):
        next(records)


# -- which store or cluster --------------------------------------------------------------------------------


def test_a_store_or_a_cluster_is_chosen(
    cluster: ClusterShell, broker: Broker, tmp_path: Path, monkeypatch
) -> None:
    local = Shell(tmp_path / "local")
    local.ok("topic", "create", "here")
    cluster.ok("topic", "create", "there")
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    anywhere = Shell()
    assert [row["topic"] for row in anywhere.json("topic", "list")] == ["there"]
    assert [row["topic"] for row in local.json("topic", "list")] == ["here"], "--data wins"
    result = anywhere("verify")
    assert result.exit_code == ExitCode.USAGE
    assert "no store given" in result.stderr
    monkeypatch.setenv("STRATALOG_DATA", str(tmp_path / "local"))
    result = anywhere("topic", "list")
    assert result.exit_code == ExitCode.USAGE
    assert "STRATALOG_DATA and STRATALOG_BOOTSTRAP_SERVER are both set" in result.stderr
    assert [row["topic"] for row in cluster.json("topic", "list")] == ["there"]
    assert anywhere("verify").exit_code == 0, "works on files alone"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topic", "list", "--data", "d"], "--data and --bootstrap-server cannot be used together"),
        (["topic", "list", "--store-config", "log.segment.bytes=1MiB"], "--store-config is for a store"),
        (["read", "t", "--skip-damaged"], "--skip-damaged reads the files of a store"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(
    cluster: ClusterShell, store: Store, arguments: list[str], words: str
) -> None:
    store.create_topic("t")
    result = cluster(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_command_config_needs_a_cluster(tmp_path: Path) -> None:
    result = Shell(tmp_path / "d")("topic", "list", "--command-config", "f")
    assert result.exit_code == ExitCode.USAGE
    assert "--command-config needs --bootstrap-server" in result.stderr


def test_commands_on_files_say_so(cluster: ClusterShell) -> None:
    """Every command either works on a cluster or says in one line that it does not."""
    root = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name in ORDER:
        each = root.get_command(typer.Context(root), name)  # type: ignore[attr-defined]
        if hasattr(each, "list_commands"):
            inside = typer.Context(each)
            found |= {
                f"{name} {inner}": each.get_command(inside, inner) for inner in each.list_commands(inside)
            }
        else:
            found[name] = each
    anywhere = {
        name
        for name, each in found.items()
        if any("--bootstrap-server" in option.opts and not option.hidden for option in each.params)
    }
    topic = {f"topic {verb}" for verb in ("create", "list", "describe", "alter", "delete")}
    group = {f"group {verb}" for verb in ("list", "describe", "reset-offsets", "delete")}
    assert anywhere == topic | group | {"append", "read", "config"}
    needs = {"topic move": ["t", "-p", "0", "--to", "d"], "erase": ["t", "--key", "k", "--reason", "r"]}
    for name in sorted(found.keys() - anywhere):
        required = [
            each for each in found[name].params if each.required and each.param_type_name == "argument"
        ]
        given = [] if name == "inspect" else needs.get(name, ["x"] * len(required))
        result = cluster(*name.split(), *given)
        assert result.exit_code == ExitCode.USAGE, name
        assert "works on the files of a store and takes no --bootstrap-server" in result.stderr, (
            name,
            result.stderr,
        )
        assert result.stderr.count("\n") == 1, name


def test_nothing_is_changed_with_read_only(cluster: ClusterShell, store: Store) -> None:
    store.create_topic("t")
    for arguments in (["topic", "create", "u"], ["append", "t"], ["topic", "delete", "t", "--yes"]):
        assert cluster(*arguments, "--read-only", stdin="x\n").exit_code == ExitCode.STORAGE
    assert store.topics() == ["t"]
    assert store["t"].log_end_offset() == 0
    cluster.ok("topic", "list", "--read-only")


# -- the package and its settings --------------------------------------------------------------------------


def test_a_missing_package_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "confluent_kafka.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*COMMAND, "topic", "list", "--bootstrap-server", "127.0.0.1:1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == (
        "stratalog: --bootstrap-server needs the package confluent-kafka: pip install 'stratalog[kafka]'\n"
    )


def test_a_file_has_the_settings_of_the_client(tmp_path: Path, cluster: ClusterShell) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\n\nsecurity.protocol = PLAINTEXT\nclient.id=me\n")
    assert cluster.ok("topic", "list", "--command-config", str(file)) == "no topics\n"
    for text, words in [
        ("no.such.setting=1\n", 'No such configuration property: "no.such.setting"'),
        ("a line\n", "line 1: write name=value"),
        ("sasl.jaas.config=com.x.LoginModule required;\n", "sasl.jaas.config has no username"),
    ]:
        file.write_text(text)
        result = cluster("topic", "list", "--command-config", str(file))
        assert result.exit_code == ExitCode.USAGE, result.output
        assert f"{file}" in result.stderr
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
    assert cluster("topic", "list", "--command-config", "nowhere").exit_code == ExitCode.NOT_FOUND


def test_javas_settings_are_translated(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="alice" password="a=b \\"c\\"";\n'
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
    )
    assert read_config(str(file)) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 'a=b "c"',
        "ssl.ca.location": "/ca.pem",
    }


def test_a_wrong_value_of_a_setting_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=nonsense\n")
    made = Client("127.0.0.1:1", str(file))
    with pytest.raises(ConfigError, match="client.properties.*security.protocol"):
        made.make(made.admin_package.AdminClient, {})


def test_the_connection_itself_is_made_with_these_settings(cluster: ClusterShell, tmp_path: Path) -> None:
    """TLS at a broker that has none ends at once, with the reason."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    result = cluster("topic", "list", "--command-config", str(file))
    assert result.exit_code == ExitCode.CLUSTER
    assert "no broker answered" in result.stderr
    assert "SSL" in result.stderr
