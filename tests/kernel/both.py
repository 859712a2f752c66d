"""Fixtures that give a test both kernels: the one the program runs, and the interpreted sources beside it.

Import ``engine`` for the kernel's functions themselves, ``either`` to run a whole room over each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog import kernel
from stratalog.errors import InvalidRecordError
from stratalog.format import batch
from stratalog.format.batch import encode, filter
from tests.kernel.fuzz_kernel import interpreted_kernel


@cache
def plain_kernel() -> SimpleNamespace:
    made = interpreted_kernel()
    made.use_error(InvalidRecordError)
    return made


@pytest.fixture(params=["default", "interpreted"])
def engine(request: pytest.FixtureRequest) -> Any:
    return kernel if request.param == "default" else plain_kernel()


@pytest.fixture(params=["default", "interpreted"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs once over each kernel, whatever the modules above it imported."""
    if request.param == "interpreted":
        _use_plain(monkeypatch)
    return str(request.param)


def on_each_kernel() -> Iterator[str]:
    """The body of a loop over this runs once over each kernel: for tests that hypothesis calls many times."""
    yield "default"
    with pytest.MonkeyPatch.context() as patch:
        _use_plain(patch)
        yield "interpreted"


def _use_plain(patch: pytest.MonkeyPatch) -> None:
    plain = plain_kernel()
    for name in kernel.__all__:
        if hasattr(plain, name):
            patch.setattr(kernel, name, getattr(plain, name))
    patch.setattr(batch, "encode_one", plain.encode_one)
    patch.setattr(encode, "encode_one", plain.encode_one)
    patch.setattr(filter, "KeyMap", plain.KeyMap)
    patch.setattr(filter, "DropSet", plain.DropSet)
