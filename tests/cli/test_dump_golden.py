"""The dump tool against what Kafka 4.3.1's own tool printed, line by line, on both kernels."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from types import ModuleType

import pytest

from stratalog.cli.commands.dump import EXIT_OK, DumpOptions, dump_files
from stratalog.kernel import dump as kernel
from stratalog.kernel.loader import interpreted

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1"
LOG_DIR = GOLDEN / "log-dir"
EXPECTED = Path(__file__).parent / "dump_expected"
PARTITIONS = sorted(path.stem for path in (GOLDEN / "dump").glob("*.txt"))
ALL_FILES = sorted(
    f"{path.parent.name}/{path.name}" for path in LOG_DIR.glob("*/0*") if path.suffix != ".metadata"
)
PURE: ModuleType = interpreted("_decode", "_dump")["_dump"]


@pytest.fixture(params=["as built", "interpreted"])
def either_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "interpreted":
        monkeypatch.setattr(kernel, "_dump", PURE)
    return str(request.param)


def dump(paths: list[str], options: DumpOptions) -> tuple[int, bytes, str]:
    out, err = io.BytesIO(), io.StringIO()
    code = dump_files(paths, options, out, err)
    return code, out.getvalue(), err.getvalue()


def test_the_golden_dumps_are_there() -> None:
    assert len(PARTITIONS) == 24
    assert len(ALL_FILES) == 175


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.usefixtures("either_kernel")
def test_a_partition_line_by_line(partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOG_DIR)
    code, text, _ = dump([partition], DumpOptions(print_data_log=True))
    expected = (GOLDEN / "dump" / f"{partition}.txt").read_bytes()
    assert text.split(b"\n") == expected.split(b"\n")
    assert code == EXIT_OK


# SHA-256 of what Kafka's tool wrote to stdout for ALL_FILES.
FLAGS = {
    "1b2ac692f9e385d4afe1b715452600801b5828813c3e648028b2c855d7c5f15c": DumpOptions(),
    "23bb65d28c875f7a06132c3f0a1212715990a34de83f8d1c71b4f429bb0c5b5d": DumpOptions(deep_iteration=True),
    "99396e2c7fe804b58188eca923e8af246d93cf934ced1b720b55f3826dc0a12a": DumpOptions(
        skip_record_metadata=True, print_data_log=True
    ),
    "92baddb58423fbce88574127849532372b2d759c0c11d928860568bd05cf0ac0": DumpOptions(
        skip_record_metadata=True, deep_iteration=True
    ),
    "4f1e7d44d8fa0ab4f07b2b4f0d86a66a6a01c9566725315568029e57c35f7f5b": DumpOptions(verify_index_only=True),
    "07b250c229010a7dae1969955d0efb617e74648c3c688b1d431168ee8d8b53f0": DumpOptions(index_sanity_check=True),
    "3322617d00413d769b9aa083d8ca94db343e3770b2a7ddeb19a02542d437ffb1": DumpOptions(
        max_bytes=5000, print_data_log=True
    ),
}


@pytest.mark.parametrize("digest", FLAGS)
def test_every_flag_over_every_file(digest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOG_DIR)
    code, text, _ = dump(ALL_FILES, FLAGS[digest])
    assert hashlib.sha256(text).hexdigest() == digest
    assert code == EXIT_OK


@pytest.mark.usefixtures("either_kernel")
@pytest.mark.parametrize(
    ("expected", "root", "paths", "options"),
    [
        ("consumer-offsets", LOG_DIR, ["__consumer_offsets-0/*.log"], DumpOptions(offsets_decoder=True)),
        (
            "group-coordinator",
            EXPECTED / "coordinators",
            ["__consumer_offsets-*/*.log"],
            DumpOptions(offsets_decoder=True),
        ),
        (
            "share-coordinator",
            EXPECTED / "coordinators",
            ["__share_group_state-*/*.log"],
            DumpOptions(share_group_state_decoder=True),
        ),
        (
            "cluster-metadata",
            EXPECTED / "coordinators",
            ["__cluster_metadata-0/*.log", "bootstrap.checkpoint"],
            DumpOptions(cluster_metadata_decoder=True),
        ),
    ],
)
def test_the_decoders(
    expected: str, root: Path, paths: list[str], options: DumpOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    files = [str(path.relative_to(root)) for pattern in paths for path in sorted(root.glob(pattern))]
    code, text, _ = dump(files, options)
    assert text.split(b"\n") == (EXPECTED / f"{expected}.txt").read_bytes().split(b"\n")
    assert code == EXIT_OK


def test_the_transaction_log_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOG_DIR)
    code, text, _ = dump(
        ["__transaction_state-0/00000000000000000000.log"], DumpOptions(transaction_log_decoder=True)
    )
    expected = (EXPECTED / "transaction-state.txt").read_bytes().splitlines()
    assert text.splitlines()[: len(expected)] == expected
    assert code == EXIT_OK


def test_gaps_of_a_compacted_log_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOG_DIR)
    code, _, err = dump(["compacted-0"], DumpOptions(deep_iteration=True))
    lines = err.splitlines()
    assert lines[0] == f"Non-consecutive offsets in {LOG_DIR}/compacted-0/00000000000000000000.log"
    assert lines[1:4] == [
        "  -1 is followed by 808",
        "  808 is followed by 1036",
        "  1036 is followed by 1039",
    ]
    assert code == EXIT_OK
