"""What makes the first query of a local session cheaper: fewer classes to load, fewer modules and methods to
compile.

Spark starts Python processes of its own for each query and has them import PySpark from a zip file without
compiled modules, and its JVM reads and verifies some twenty thousand classes from jars. Here the JVM gets
another ``SPARK_HOME``, a directory of links to the same installation in which the zip files are links to the
packages that this process has imported; and a class-data archive, which the JVM of the first session writes
when it exits and the next ones map.

The JVM also waits longer before it optimizes code fully: most of what a first query runs is not run again.

The links and the archive are in ``$XDG_CACHE_HOME/stratalog`` and can be removed at any time. A session works
without them: where they cannot be made, and where the user has set ``SPARK_HOME``, nothing changes. The JVM
ignores an archive made by another Java or from other jars. One that a crash cut off has no header and
is not adopted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PART = ".part"
ARCHIVE = ".jsa"
ABANDONED_S = 3600.0
"""After so long an archive without a header is not being written any more."""
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""An archive that does not fit is no news."""
LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the JVM's defaults. Queries over many rows reach them within a second."""
LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the short-lived JVM that only composes Spark's command line."""


@contextmanager
def quick_start(java: str) -> Iterator[None]:
    """Let the JVM that starts within take what is cached; add to the cache what it lacks."""
    changes: dict[str, str] = {}
    with suppress(OSError):
        changes = _changes(java)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _changes(java: str) -> dict[str, str]:
    import pyspark
    from pyspark import SparkContext

    home = Path(pyspark.__file__).resolve().parent
    running = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    if running or "SPARK_HOME" in os.environ or not (home / "jars").is_dir():
        return {}
    cache = cache_directory()
    options = class_data(cache, home, Path(java).resolve())
    return {
        "SPARK_HOME": str(linked_home(cache, home)),
        "SPARK_SUBMIT_OPTS": f"{LATER} {options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip(),
        "SPARK_LAUNCHER_OPTS": f"{LAUNCHER} {os.environ.get('SPARK_LAUNCHER_OPTS', '')}".strip(),
    }


def cache_directory() -> Path:
    """Return the directory, made if it is missing; raise PermissionError if others may write to it: what is
    in it runs."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "stratalog"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = cache.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{cache} can be written by others")
    return cache


def _digest(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()[:16]


# -- modules -------------------------------------------------------------------------------------------


def linked_home(cache: Path, home: Path) -> Path:
    """Return a directory of links to Spark's, in which the zip files of modules are directories."""
    import py4j
    import pyspark

    packages = {"pyspark": home, "py4j": Path(py4j.__file__).resolve().parent}
    linked = cache / f"spark-{_digest(pyspark.__version__, *packages.values())}"
    if linked.is_dir():
        return linked
    made = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
    try:
        for entry in home.iterdir():
            if entry.name != "python":
                (made / entry.name).symlink_to(entry)
        library = made / "python" / "lib"
        library.mkdir(parents=True)
        for file in (home / "python" / "lib").iterdir():
            name = file.name.partition("-")[0].removesuffix(".zip")
            if name in packages:
                (library / file.name).mkdir()
                (library / file.name / name).symlink_to(packages[name])
            else:
                (library / file.name).symlink_to(file)
        with suppress(FileExistsError):
            _rename_new(made, linked)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return linked


def _rename_new(made: Path, name: Path) -> None:
    try:
        made.rename(name)
    except OSError:
        if not name.is_dir():
            raise
        raise FileExistsError(name) from None  # another process was faster


# -- classes -------------------------------------------------------------------------------------------


def class_data(cache: Path, home: Path, java: Path) -> str:
    """Return the JVM's options: to use the archive, or to write one when it exits."""
    if any(letter.isspace() for letter in str(cache)):
        return ""  # the options are one string, and are split there
    family = _digest(home)
    facts = (java, java.stat().st_mtime_ns, (home / "jars").stat().st_mtime_ns)
    archive = cache / f"{family}-{_digest(*facts)}{ARCHIVE}"
    _adopt(cache, archive)
    if archive.exists():
        return f"{QUIET} -XX:SharedArchiveFile={archive}"
    return f"{QUIET} -XX:ArchiveClassesAtExit={archive}.{os.getpid()}{PART}"


def _adopt(cache: Path, archive: Path) -> None:
    """Give a finished archive its name, and remove those of an older installation at the same place."""
    for part in cache.glob(f"*{PART}"):
        with suppress(OSError):
            if not _has_header(part):
                if part.stat().st_mtime < time.time() - ABANDONED_S:
                    part.unlink()
            elif part.name.startswith(archive.name) and not archive.exists():
                with open(part, "rb") as file:
                    os.fsync(file.fileno())  # before a name that says it is whole
                part.rename(archive)
                for old in cache.glob(f"{archive.name.partition('-')[0]}-*{ARCHIVE}"):
                    if old != archive:
                        old.unlink()
            else:
                part.unlink()


def _has_header(part: Path) -> bool:
    """Return True if the JVM has finished: it writes the header last."""
    with open(part, "rb") as file:
        return any(file.read(4))
