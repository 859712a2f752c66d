"""A real S3 server in a process of its own: moto's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

START_TIMEOUT_S = 120
SERVER = """
import sys, threading
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

moto, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

def answer(environ, start_response):
    with one_at_a_time:
        return moto(environ, start_response)

run_simple("127.0.0.1", int(sys.argv[1]), answer, threaded=True, request_handler=MotoRequestHandler)
"""
"""S3's conditional writes are atomic. Moto checks and writes in two steps: it gets one request at a time."""


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server that holds nothing yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MOTO_ALLOW_NONEXISTENT_REGION": "true"},
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=10).close()
                break
            except OSError:
                assert server.poll() is None, "the S3 server did not start"
                assert time.monotonic() < deadline, "the S3 server does not answer"
                time.sleep(0.05)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


def environment(endpoint: str) -> dict[str, str]:
    """What tells clients of S3 where the server is."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


def new_bucket(endpoint: str) -> str:
    """The URL of a bucket nobody has used."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=30).close()
    return f"s3://{name}/some/prefix"
