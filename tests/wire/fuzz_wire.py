"""Hostile bytes for the codec of Kafka's messages: ``fuzz_wire.py --rounds N --seed S``.

A round takes one message in one version, writes random values as bytes, changes some of the bytes, and
reads them again from a block of exactly their size. A message or a ValueError is fine; what else may
happen is seen by AddressSanitizer (`tests/kernel/asan.sh`). What can be read can be written, and is read
again as the same. With ``--compare`` the interpreted kernel reads too and must answer alike.
"""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from array import array
from typing import Any

from stratalog import kernel
from stratalog.kernel import loader
from stratalog.wire import messages
from stratalog.wire.messages import Codec
from stratalog.wire.schema import Field, Struct, table

TABLES = ("requests", "headers", "offsets", "transaction-log", "consumer-protocol", "control")
LIES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x0f", b"\0\0\0\0")
NUMBERS = (0, 1, -1, 5, 127, -128)
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}


class Engine:
    """One kernel with its own codecs: a plan belongs to the kernel that made it."""

    def __init__(self, kernel_of: Any) -> None:
        self._kernel = kernel_of
        self._codecs: dict[tuple[str, str], Codec] = {}

    def codec(self, of: str, name: str) -> Codec:
        """Return a codec whose next calls run in this kernel."""
        messages.kernel = self._kernel  # type: ignore[attr-defined]
        made = self._codecs.get((of, name))
        if made is None:
            made = self._codecs[of, name] = Codec(table(of)[name])
        return made


def interpreted() -> Engine:
    """Return the kernel that is not compiled."""
    found = loader.interpreted(*kernel.MODULES)
    return Engine(next(module for module in found.values() if hasattr(module, "decode_message")))


MESSAGES = [(of, name) for of in TABLES for name in table(of)]


def some(rng: random.Random, made: Codec, field: Field, version: int) -> Any:
    """Return a value that fits a field."""
    if version in field.nullable and rng.random() < 0.2:
        return None
    if field.is_array:
        return tuple(one(rng, made, field, version) for _ in range(rng.choice((0, 1, 1, 2, 5))))
    return one(rng, made, field, version)


def one(rng: random.Random, made: Codec, field: Field, version: int) -> Any:
    if field.struct is not None:
        return fill(rng, made, field.struct, version)
    kind = field.kind
    if kind in BITS:
        bits = BITS[kind]
        number = rng.choice((*NUMBERS, rng.getrandbits(bits)))
        return number & ((1 << bits) - 1) if kind[0] == "u" else _signed(number, bits)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.random()
    if kind == "uuid":
        return uuid.UUID(int=rng.getrandbits(128)).bytes
    if kind == "string":
        return rng.choice(("", "a", "ключ", "x" * rng.randrange(300)))
    return rng.randbytes(rng.choice((0, 1, 20, 200)))


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def some_request(rng: random.Random, name: str, version: int) -> tuple[Codec, Any]:
    """Return a request with random values, and its codec."""
    made = messages.codec(name)
    return made, fill(rng, made, table("requests")[name].struct, version)


def fill(rng: random.Random, made: Codec, struct: Struct, version: int) -> Any:
    """Return a struct with values in all fields that a version has."""
    values = {
        messages.snake(field.name): some(rng, made, field, version)
        for field in struct.fields
        if version in field.versions and (field.tag is None or rng.random() < 0.7)
    }
    cls = made.cls if struct.name == made.cls.__name__ else made.struct(struct.name)
    return cls(**values)


def mutate(rng: random.Random, data: bytearray) -> None:
    """Change some bytes: flipped, cut, put in, copied, and lengths that lie."""
    at, kind = rng.randrange(len(data)), rng.randrange(7)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
    elif kind == 2:
        del data[at : at + rng.randrange(1, 12)]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 12))
    elif kind == 4:
        data[at : at + 4] = rng.choice(LIES)
    elif kind == 5:
        del data[at:]
    else:
        other = rng.randrange(len(data))
        data[at:at] = data[other : other + rng.randrange(1, 30)]


def answer(made: Codec, data: Any, version: int, start: int, end: int) -> Any:
    """Return what is read, or the text of the refusal."""
    try:
        return made.decode(data, version, start, end)
    except ValueError as error:
        return str(error)


def plain(value: Any) -> Any:
    """Return a value that compares by its bytes."""
    if isinstance(value, memoryview):
        return bytes(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def one_round(seed: int, ours: Engine, other: Engine | None = None) -> bool:
    """Read one changed message; return whether it could be read."""
    rng = random.Random(seed)
    of, name = rng.choice(MESSAGES)
    made = ours.codec(of, name)
    version = rng.randint(made.versions.low, min(made.versions.high, 20))
    if version not in made.versions:
        return False
    value = fill(rng, made, table(of)[name].struct, version)
    good = made.encode(value, version)
    end = made.decode(good, version)[1] if good else 0
    assert end == len(good), f"{name} {version}, seed {seed}: {len(good)} bytes were written, {end} read"
    data = bytearray(good or b"\0")
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        if data:
            mutate(rng, data)
    if rng.random() < 0.02:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    source = memoryview(array("B", bytes(data)))  # memory of exactly this size
    start = rng.randrange(len(data) + 1) if rng.random() < 0.05 else 0
    stop = rng.randrange(start, len(data) + 1) if rng.random() < 0.05 else -1
    found = answer(made, source, version, start, stop)
    if other is not None:
        theirs = answer(other.codec(of, name), source, version, start, stop)
        assert plain(theirs) == plain(found), f"{name} {version}: the kernels disagree on seed {seed}"
        ours.codec(of, name)
    if isinstance(found, str):
        return False
    written = made.encode(found[0], version)
    if written:
        assert plain(made.decode(written, version)[0]) == plain(found[0]) or "float" in str(table(of)[name])
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--compare", action="store_true", help="run the interpreted kernel beside")
    options = parser.parse_args()
    ours, other = Engine(kernel), interpreted() if options.compare else None
    print(f"seed {options.seed}, {options.rounds} messages, compiled: {kernel.compiled}")
    read = sum(one_round(options.seed * 1_000_003 + i, ours, other) for i in range(options.rounds))
    print(f"{options.rounds} changed messages, {read} of them could be read, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
