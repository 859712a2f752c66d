"""Object stores to test against: a directory, and a real S3 server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.archive import Objects, open_objects
from stratalog.fs import RealFileSystem
from tests.archive.s3 import environment, new_bucket, s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of one's own; the environment says where its server is."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return new_bucket(s3_endpoint)


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "archive")
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def objects(url: str) -> Objects:
    return open_objects(url, RealFileSystem(), timeout_ms=30_000, retries=2)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Where failures are the point, the log need not say so."""
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
