"""Builds the kernel's extensions; everything else about the package is in pyproject.toml.

A machine without a C compiler still installs: the extensions are optional and the same sources run
interpreted. ``STRATALOG_NO_EXT=1`` leaves them out on purpose. ``STRATALOG_CFLAGS`` adds compiler flags
(sanitizers).
"""

from __future__ import annotations

import os
import sys
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


setup(ext_modules=extensions())
