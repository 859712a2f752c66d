"""Every error can be pickled and copied with all it carries."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest

from stratalog import errors


def every_error() -> Iterator[errors.StratalogError]:
    for kind in vars(errors).values():
        if not (inspect.isclass(kind) and issubclass(kind, errors.StratalogError)):
            continue
        values: dict[str, object] = {}
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                values[name] = 7 if "int" in str(parameter.annotation) else f"some {name}"
        yield kind("what happened", **values)


@pytest.mark.parametrize("error", list(every_error()), ids=lambda error: type(error).__name__)
def test_it_survives_pickle_and_copy(error: errors.StratalogError) -> None:
    error.add_note("while testing")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_the_range_of_offsets_survives() -> None:
    error = errors.OffsetOutOfRangeError("outside", offset=9, first=1, end=5)
    again = pickle.loads(pickle.dumps(error))
    assert (again.offset, again.first, again.end) == (9, 1, 5)


@pytest.mark.parametrize("error", list(every_error()), ids=lambda error: type(error).__name__)
def test_each_raise_of_a_kept_error_has_its_own_traceback(error: errors.StratalogError) -> None:
    error.add_note("while testing")
    error.__cause__ = OSError("the disk")
    for _ in range(3):
        with pytest.raises(type(error)) as raised:
            raise errors.again(error)
        assert type(raised.value) is type(error)
        assert (str(raised.value), raised.value.args) == (str(error), error.args)
        assert vars(raised.value) == vars(error)
        assert raised.value.__cause__ is error.__cause__
        raised.value.add_note("of this raise")
    assert error.__traceback__ is None
    assert error.__notes__ == ["while testing"]


def test_an_error_of_another_tree_is_raised_itself() -> None:
    error = OSError("the disk")
    assert errors.again(error) is error
