"""Builds the kernel's extensions; everything else about the package is in pyproject.toml.

A machine without a C compiler still installs: the extensions are optional and the same sources run
interpreted. ``STRATALOG_NO_EXT=1`` leaves them out on purpose. ``STRATALOG_CFLAGS`` adds compiler flags
(sanitizers).
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

KERNEL = Path("src") / "stratalog" / "kernel"


def extensions() -> list[Extension]:
    if os.environ.get("STRATALOG_NO_EXT") == "1":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = ["/O2"] if sys.platform == "win32" else ["-O3", "-g0", "-fwrapv"]
    flags += os.environ.get("STRATALOG_CFLAGS", "").split()
    link = os.environ.get("STRATALOG_LDFLAGS", "").split()
    built: list[Extension] = cythonize(
        [
            Extension(
                f"stratalog.kernel.{source.stem}",
                [source.as_posix()],
                include_dirs=[KERNEL.as_posix()],
                depends=[(KERNEL / "native.h").as_posix()],
                extra_compile_args=flags,
                extra_link_args=link,
            )
            for source in sorted(KERNEL.glob("_[!_]*.py"))
        ],
        build_dir="build/cython",
        include_path=["src"],
        quiet=True,
    )
    for extension in built:
        extension.optional = True  # cythonize() drops the flag
    return built


def readme() -> str:
    """Return README.md as an index of packages shows it: links between files lead to the repository.

    A copy of the kernel alone, as the fuzzer builds it, has none.
    """
    if not Path("README.md").exists():
        return ""
    text = Path("README.md").read_text(encoding="utf-8")
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({project['urls']['Repository']}/blob/main/", text)


setup(ext_modules=extensions(), long_description=readme(), long_description_content_type="text/markdown")
