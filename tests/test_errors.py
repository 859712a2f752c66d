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
