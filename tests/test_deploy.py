"""What runs a store elsewhere: the image and the systemd units, against the rules that their linters have."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from stratalog.cli.app import ORDER

ROOT = pathlib.Path(__file__).parents[1]
UNITS = sorted(path.name for path in (ROOT / "deploy").glob("*.service"))
PINNED = re.compile(r"python:3\.\d+\.\d+-slim-[a-z]+\Z")
ROOTS = ("root", "0")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments, continued lines joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    return [
        (name.upper(), rest.strip())
        for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def broken_rules(text: str) -> list[str]:
    """Return the rules that a Dockerfile breaks."""
    found, user, stages = [], "root", set()
    for name, rest in instructions(text):
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            if image not in stages and not PINNED.match(image):
                found.append(f"FROM {image}: pin the image")
            stages.add(stage.strip())
            user = "root"
        elif name == "USER":
            user = rest.partition(":")[0]
        elif name in ("ENTRYPOINT", "CMD") and not _is_exec_form(rest):
            found.append(f"{name} {rest}: use the exec form, or signals do not arrive")
        elif name == "HEALTHCHECK" and not _is_exec_form(rest.partition("CMD ")[2]):
            found.append(f"{name} {rest}: use the exec form")
        elif name == "ADD":
            found.append(f"ADD {rest}: use COPY")
        elif name == "RUN":
            if re.search(r"\b(curl|wget)\b[^;&]*\|", rest):
                found.append(f"RUN {rest}: what is downloaded is not run unseen")
            if "apt-get install" in rest and not {"--yes", "--no-install-recommends"} <= set(rest.split()):
                found.append(f"RUN {rest}: --yes --no-install-recommends")
            if "apt-get install" in rest and "rm -rf /var/lib/apt/lists" not in rest:
                found.append(f"RUN {rest}: remove the package lists")
            if re.search(r"\bpip install\b", rest) and "--no-cache-dir" not in rest:
                found.append(f"RUN {rest}: --no-cache-dir")
            if re.search(r"\bsudo\b", rest):
                found.append(f"RUN {rest}: no sudo")
    if user in ROOTS:
        found.append("the last stage runs as root: USER")
    if not any(name == "ENTRYPOINT" for name, _ in instructions(text)):
        found.append("ENTRYPOINT is missing")
    return found


def _is_exec_form(text: str) -> bool:
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def test_the_image_keeps_the_rules():
    assert broken_rules((ROOT / "Dockerfile").read_text()) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((r"^FROM python:\S+", "FROM python:latest"), "pin the image"),
        ((r"^FROM python:\S+", "FROM python:3.13-slim"), "pin the image"),
        ((r"^FROM python:\S+", "FROM python"), "pin the image"),
        ((r"^USER .*", "USER root"), "runs as root"),
        ((r"^USER .*", ""), "runs as root"),
        ((r"^ENTRYPOINT .*", "ENTRYPOINT stratalog"), "exec form"),
        ((r"^ENTRYPOINT .*", ""), "ENTRYPOINT is missing"),
        ((r"^CMD .*", "CMD stratalog janitor"), "exec form"),
        ((r"^RUN apt-get.*", "RUN curl -sSL https://example.org/install | sh"), "run unseen"),
        ((r"^COPY \.", "ADD ."), "use COPY"),
        ((r" --no-cache-dir", ""), "--no-cache-dir"),
        ((r" --no-install-recommends", ""), "--no-install-recommends"),
    ],
)
def test_each_rule_is_checked(change, told):
    text = (ROOT / "Dockerfile").read_text()
    pattern, replacement = change
    changed = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    assert changed != text
    assert [each for each in broken_rules(changed) if told in each]


def test_the_image_runs_commands_that_exist():
    given = dict(instructions((ROOT / "Dockerfile").read_text()))
    assert json.loads(given["ENTRYPOINT"]) == ["stratalog"]
    assert json.loads(given["CMD"])[0] in ORDER
    assert json.loads(given["HEALTHCHECK"].partition("CMD ")[2])[:2] == ["stratalog", "log-dirs"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_a_command_that_exists_and_not_as_root(name):
    unit = (ROOT / "deploy" / name).read_text()
    started = re.search(r"^ExecStart=/opt/stratalog/bin/stratalog (\S+)", unit, re.MULTILINE)
    assert started is not None
    assert started[1] in ORDER
    assert re.search(r"^User=stratalog$", unit, re.MULTILINE)
    assert re.search(r"^NoNewPrivileges=yes$", unit, re.MULTILINE)
    assert re.search(r"^ProtectSystem=strict$", unit, re.MULTILINE)


def systemd_analyze() -> str:
    """Return the path of the tool. It is in every Debian; where CI runs it may not be missing."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("systemd-analyze is missing: install the package systemd")
        pytest.skip("systemd-analyze is not installed here")
    return tool


def verified(path: pathlib.Path) -> str:
    done = subprocess.run(
        [systemd_analyze(), "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    return "\n".join(line for line in done.stderr.splitlines() if path.name in line)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(tmp_path, name):
    unit = (ROOT / "deploy" / name).read_text().replace("/opt/stratalog/bin/stratalog", "/bin/true")
    (tmp_path / name).write_text(unit)
    assert verified(tmp_path / name) == ""
    (tmp_path / name).write_text(unit.replace("NoNewPrivileges=", "NoMorePrivileges="))
    assert "NoMorePrivileges" in verified(tmp_path / name)


def test_a_missing_tool_fails_where_ci_runs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install the package systemd"):
        systemd_analyze()
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception):
        systemd_analyze()
