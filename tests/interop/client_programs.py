"""Clients in other languages, each a small program in ``clients/`` that runs one scenario at a broker.

A program is given the address of a broker and a scenario, makes its own topics, and ends with status 1 and
the reason where something is not as it should be. Versions are those of the files that fetch the packages;
those come from Go's module proxy and npm's registry once, and stay in caches.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.kafka import KAFKA_VERSION, ROOT, java

HERE = Path(__file__).with_name("clients")
GO, NODE = HERE / "go", HERE / "node"
FRANZ_GO_VERSION = re.findall(r"twmb/franz-go v([\d.]+)", (GO / "go.mod").read_text())[0]
KAFKAJS_VERSION: str = json.loads((NODE / "package.json").read_text())["dependencies"]["kafkajs"]


@dataclass(frozen=True)
class Program:
    """What runs a scenario, and which there are."""

    name: str
    version: str
    command: Callable[[], list[str]]
    scenarios: tuple[str, ...]

    def run(self, address: str, scenario: str, timeout_s: float = 180) -> None:
        done = subprocess.run(
            [*self.command(), address, scenario],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{self.name}, {scenario}:\n{done.stdout[-6000:]}"


def needed(tool: str, what: str) -> str:
    """Return the path of a tool; its tests are skipped where it is not installed, which fails in CI."""
    found = shutil.which(tool)
    if found is None:
        pytest.skip(
            f"{tool} is not installed, and {what} needs it; make installs it for the tests as root on Debian"
        )
    return found


def prepare(*command: str, where: Path) -> None:
    done = subprocess.run(
        command,
        cwd=where,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}"


def java_clients() -> list[str]:
    """The JVM compiles the one file by itself."""
    return java(str(HERE / "java" / "Scenarios.java"))


@functools.cache
def franz_go() -> list[str]:
    """Go keeps what it built; a Go that is too old fetches the one that ``go.mod`` asks for."""
    program = ROOT / ".cache" / f"franz-go-{FRANZ_GO_VERSION}" / "scenarios"
    prepare(
        needed("go", "franz-go"), "build", "-buildvcs=false", "-mod=readonly", "-o", str(program), where=GO
    )
    return [str(program)]


@functools.cache
def kafkajs() -> list[str]:
    """The packages of ``package-lock.json``, beside no sources of ours."""
    packages = ROOT / ".cache" / f"kafkajs-{KAFKAJS_VERSION}"
    kept = packages / "package-lock.json"
    npm = needed("npm", "kafkajs")
    if not kept.exists() or kept.read_bytes() != (NODE / kept.name).read_bytes():
        packages.mkdir(parents=True, exist_ok=True)
        shutil.copy(NODE / "package.json", packages)
        shutil.copy(NODE / kept.name, packages / "npm-shrinkwrap.json")
        prepare(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", where=packages)
        shutil.copy(NODE / kept.name, kept)
    return ["env", f"NODE_PATH={packages / 'node_modules'}", "node", str(NODE / "scenarios.js")]


COMMON = ("records", "times", "groups", "admin", "transactions")
PROGRAMS = (
    Program("Java clients", KAFKA_VERSION, java_clients, (*COMMON, "newer-groups", "static")),
    Program("franz-go", FRANZ_GO_VERSION, franz_go, (*COMMON, "newer-groups", "static")),
    Program("kafkajs", KAFKAJS_VERSION, kafkajs, COMMON),
)
