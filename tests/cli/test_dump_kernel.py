"""The dump kernel: Java's idea of UTF-8, equal results of both forms, nothing out of bounds."""

from __future__ import annotations

import hashlib
import io
import itertools
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.commands.dump import DumpOptions, dump_files
from stratalog.cli.commands.dump.output import Output
from stratalog.kernel import _dump, dump_slots
from stratalog.kernel import dump as kernel
from stratalog.kernel.loader import interpreted

LOG_DIR = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"
PURE: ModuleType = interpreted("_decode", "_dump")["_dump"]
BAD = "\ufffd"


@contextmanager
def interpreted_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_dump", PURE)
        yield


@pytest.mark.parametrize("form", [_dump, PURE])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("é € 😀 \0\n".encode(), "é € 😀 \0\n"),
        (b"\xed\xa0\x80", BAD),  # a surrogate, whole: one mistake
        (b"\xed\xa0", BAD),
        (b"\xed\xa0A", BAD + "A"),
        (b"\xed\xbf\xbfA", BAD + "A"),
        (b"\xe2\x82", BAD),  # cut short
        (b"\xf0\x9f\x98", BAD),
        (b"\xf1\x80A", BAD + "A"),
        (b"\xc0\x80", BAD * 2),  # overlong
        (b"\xe0\x80\x80", BAD * 3),
        (b"\xf0\x80\x80\x80", BAD * 4),
        (b"\xf4\x90\x80\x80", BAD * 4),  # past U+10FFFF
        (b"\xf5\x80\x80\x80", BAD * 4),
        (b"\x80\xff\xfeA", BAD * 3 + "A"),
        (b"x" * 20 + b"\xff" + b"y" * 20, "x" * 20 + BAD + "y" * 20),
    ],
)
def test_utf8_as_java_decodes_it(form: ModuleType, data: bytes, text: str) -> None:
    assert form.java_string(data) == text.encode()


@pytest.mark.parametrize(
    ("form", "longest", "digest"),
    [
        (_dump, 4, "509121e95747f0bfed807f69302922da0e0c995b8552c7ed30bdb4ca52cf8ba7"),
        (PURE, 3, "35cb30643fcad49eebf53a639683e4f0de9e8a79c8cf42171fb5e68c80192289"),
    ],
)
def test_every_short_sequence_of_telling_bytes(form: ModuleType, longest: int, digest: str) -> None:
    # Made with JDK 17: every string of up to `longest` of these bytes, decoded, encoded, one a line.
    telling = bytes.fromhex("417f808f909fa0bfc1c2e0e1edf0f4f5")
    total = hashlib.sha256()
    for size in range(longest + 1):
        for combination in itertools.product(telling, repeat=size):
            total.update(form.java_string(bytes(combination)) + b"\n")
    assert total.hexdigest() == digest


@given(st.binary(max_size=200))
def test_both_forms_decode_alike(data: bytes) -> None:
    assert _dump.java_string(data) == PURE.java_string(data)


def test_the_compiler_sees_the_same_numbers() -> None:
    text = Path(dump_slots.__file__).with_suffix(".pxd").read_text()
    declared = {name: int(value) for name, value in re.findall(r"^    (\w+) = (-?\d+)$", text, re.MULTILINE)}
    named = {name: value for name, value in vars(dump_slots).items() if isinstance(value, int)}
    assert declared == named


def test_a_state_that_does_not_fit_is_refused() -> None:
    view, out = memoryview(bytearray(100)), memoryview(bytearray(1000))
    state = kernel.new_state(0)
    state[dump_slots.END] = 101
    for form in (_dump, PURE):
        with pytest.raises(ValueError, match="does not fit"):
            form.print_log(view, out, state, {})
        with pytest.raises(ValueError, match="does not fit"):
            form.print_log(view, out, state[:10], {})
    state = kernel.new_state(0)
    state[dump_slots.BODY_END] = 101
    with pytest.raises(ValueError, match="does not fit"):
        kernel.print_body(view, out, state, {})
    with pytest.raises(ValueError, match="does not fit"):
        kernel.read_records(view, state, None)


def dump(path: Path, options: DumpOptions) -> tuple[int, bytes, str]:
    out, err = io.BytesIO(), io.StringIO()
    code = dump_files([str(path)], options, out, err)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_end_in_text_and_alike_on_both_forms(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    sources = sorted(
        path for path in LOG_DIR.glob("*/0*") if path.stat().st_size > 0 and "big-records" not in str(path)
    )
    for number in range(40):
        source = rng.choice(sources)
        data = bytearray(source.read_bytes())
        for _ in range(rng.choice([1, 2, 8])):
            position = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(min(100, len(data)))
            data[position] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        folder = tmp_path / str(number)
        folder.mkdir()
        for other in source.parent.glob(f"{source.name.split('.')[0]}.*"):
            (folder / other.name).write_bytes(other.read_bytes())
        (folder / source.name).write_bytes(data)
        options = rng.choice(
            [
                DumpOptions(print_data_log=True),
                DumpOptions(deep_iteration=True, json=True),
                DumpOptions(offsets_decoder=True),
                DumpOptions(transaction_log_decoder=True, json=True),
                DumpOptions(cluster_metadata_decoder=True),
            ]
        )
        found = dump(folder, options)
        assert found[0] in {0, 1, 3}
        with interpreted_kernel():
            assert dump(folder, options) == found


def test_a_small_output_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [
        dump(LOG_DIR / name, DumpOptions(print_data_log=True)) for name in ("codec-none-0", "codec-lz4-0")
    ]
    monkeypatch.setattr("stratalog.cli.commands.dump.output.BLOCK_BYTES", 700)
    monkeypatch.setattr("stratalog.cli.commands.dump.logfile.CHUNK_BYTES", 100)
    again = [
        dump(LOG_DIR / name, DumpOptions(print_data_log=True)) for name in ("codec-none-0", "codec-lz4-0")
    ]
    assert again == whole


def test_output_copes_with_short_writes() -> None:
    class Slow(io.BytesIO):
        def write(self, data: object) -> int:
            return super().write(bytes(data)[:3])  # type: ignore[call-overload]

    sink = Slow()
    out = Output(sink)
    out.line("a line longer than three bytes")
    out.flush()
    assert sink.getvalue() == b"a line longer than three bytes\n"
