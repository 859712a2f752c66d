"""A stand-in for the ``cython`` module while the kernel runs interpreted.

The kernel's sources are Cython's pure-Python mode: type annotations and decorators that mean something
to the compiler and nothing to Python. This module gives them names, so that the interpreted kernel needs
no Cython package at run time (and runs faster than on that package's own shadow module).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _Type:
    """Any C type: can be subscripted and called, means nothing."""

    def __getitem__(self, item: object) -> _Type:
        return self

    def __call__(self, *args: Any) -> Any:
        return args[0] if args else self


compiled = False


def __getattr__(name: str) -> _Type:
    """Return a C type, or a C function that only the compiled kernel calls."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Type()


def cfunc(function: T) -> T:
    return function


ccall = inline = cclass = cfunc


class _NoGil:
    """Both a decorator and a context, as in Cython."""

    def __call__(self, function: T) -> T:
        return function

    def __enter__(self) -> None:
        return None

    def __exit__(self, *args: object) -> None:
        return None


nogil = _NoGil()


def exceptval(*args: Any, **kwargs: Any) -> Callable[[T], T]:
    return cfunc


def cast(kind: object, value: Any, **kwargs: Any) -> Any:
    return value


def declare(kind: object = None, value: Any = None, **kwargs: Any) -> Any:
    return value
