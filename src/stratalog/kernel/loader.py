"""Which kernel runs: the compiled one, or the same sources interpreted.

A module of the kernel is one file ``_name.py``. Where its extension was built, a plain import finds the
extension; otherwise, or when ``STRATALOG_PURE=1`` is set, the source is run as it is, with a stand-in for
the ``cython`` module. Touches nothing but the import system.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from stratalog.kernel import standin

_HERE = Path(__file__).parent
_C_MODULES = (
    *("cpython.buffer", "cpython.bytearray", "cpython.bytes", "cpython.tuple", "cpython.unicode"),
    "libc.string",
)
_interpreted = False


@contextmanager
def _cython_standin() -> Iterator[None]:
    """Let ``cython`` and ``cython.cimports.…`` be found without Cython while a source runs.

    A cimport from a module of the kernel finds that module itself; native.pxd has its twin in native.py.
    """
    found: dict[str, ModuleType] = {"cython": standin}
    found |= {f"cython.cimports.{name}": standin for name in _C_MODULES}
    importlib.import_module(_full("native"))
    for name, module in list(sys.modules.items()):
        if name.startswith("stratalog.kernel"):
            found[f"cython.cimports.{name}"] = module
    before = {name: sys.modules.get(name) for name in found}
    sys.modules.update(found)
    try:
        yield
    finally:
        _restore(before)


def _restore(before: Mapping[str, ModuleType | None]) -> None:
    for name, module in before.items():
        if module is not None:
            sys.modules[name] = module
        else:
            sys.modules.pop(name, None)


def _run_source(name: str, full: str) -> ModuleType:
    source = _HERE / f"{name}.py"
    if source.exists():
        spec = importlib.util.spec_from_file_location(full, source)
    else:  # inside an archive of sources, as `spark-submit --py-files` takes it
        spec = importlib.util.find_spec(full)
    if spec is None or spec.loader is None:
        raise ImportError(f"no kernel source {name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    try:
        with _cython_standin():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[full]
        raise
    return module


def interpreted(*names: str) -> dict[str, ModuleType]:
    """The interpreted form of kernel modules beside whatever the program runs; for comparing the two.

    Modules that use others must come after them.
    """
    before = {full: sys.modules.get(full) for full in map(_full, names)}
    try:
        return {name: _run_source(name, _full(name)) for name in names}
    finally:
        _restore(before)


def _full(name: str) -> str:
    return f"stratalog.kernel.{name}"


def prepare(*names: str) -> bool:
    """Make ``from stratalog.kernel._name import …`` find the right form of each module.

    To be called before that import, a module that uses others after them. True when all are compiled. The two
    forms do not mix, since compiled modules call each other in C: where one of the extensions was not built,
    every module runs interpreted.
    """
    global _interpreted
    if os.environ.get("STRATALOG_PURE") == "1" or not all(map(_built, names)):
        _interpreted = True
    if _interpreted:
        for name in names:
            if _full(name) not in sys.modules:
                _run_source(name, _full(name))
    return not _interpreted


def _built(name: str) -> bool:
    return any((_HERE / f"{name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
