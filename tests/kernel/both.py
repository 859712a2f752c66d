"""Fixtures that give a test both kernels: the one the program runs, and the interpreted sources beside it.

Import ``engine`` for the kernel's functions themselves, ``either`` to run a whole room over each of them.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog import kernel
from stratalog.errors import InvalidRecordError
from stratalog.format import batch, batch_encode
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
        plain = plain_kernel()
        for name in kernel.__all__:
            if hasattr(plain, name):
                monkeypatch.setattr(kernel, name, getattr(plain, name))
        monkeypatch.setattr(batch, "encode_one", plain.encode_one)
        monkeypatch.setattr(batch_encode, "encode_one", plain.encode_one)
    return str(request.param)
