"""The topics of a store as consumer groups see them: ids, numbers of partitions, and which names match."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.broker.groups.assignors import TopicId
from stratalog.errors import InvalidArgumentError
from stratalog.store.catalog import TopicEntry

MAX_REGEX = 1 << 10
MAX_KNOWN = 10_000
"""Regular expressions whose matches are kept, beside those of the group that asked last."""


class CatalogTopics:
    """The topics at one moment. Internal ones match no regular expression."""

    def __init__(self, entries: Mapping[str, TopicEntry], internal: tuple[str, ...]) -> None:
        self.entries = entries
        self._internal = internal
        self._matching: dict[str, frozenset[str] | InvalidArgumentError] = {}

    def get(self, name: str) -> tuple[TopicId, int] | None:
        """Return a topic's id and how many partitions it has; None also for one that has no id."""
        entry = self.entries.get(name)
        return None if entry is None or entry.id is None else (entry.id.bytes, entry.partitions)

    def missing(self, regexes: set[str]) -> set[str]:
        """Return those that were not matched yet: `match` does that, `matching` too, but may take seconds."""
        return {each for each in regexes if each not in self._matching}

    def match(self, regexes: set[str]) -> None:
        """Match those of a group, all at once; any thread may call it."""
        missing = self.missing(regexes)
        if len(self._matching) + len(missing) > MAX_KNOWN:
            self._matching, missing = {}, regexes
        for regex in missing:
            self._match(regex)

    def matching(self, regex: str) -> frozenset[str]:
        """Return the names that match a regular expression as a whole.

        By RE2, as in Kafka: the time is linear in the names, whatever the expression. Raise
        InvalidArgumentError for one that RE2 refuses.
        """
        found = self._matching.get(regex)
        if found is None:
            found = self._match(regex)
        if isinstance(found, InvalidArgumentError):
            raise InvalidArgumentError(str(found))
        return found

    def _match(self, regex: str) -> frozenset[str] | InvalidArgumentError:
        names = [name for name in self.entries if name not in self._internal]
        found: frozenset[str] | InvalidArgumentError
        try:
            found = frozenset(full_matches(regex, names))
        except InvalidArgumentError as error:
            found = error
        self._matching[regex] = found
        return found


def full_matches(regex: str, names: list[str]) -> list[str]:
    """Return the names that match as a whole; raise InvalidArgumentError if it is no RE2 expression."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(regex) > MAX_REGEX:
        raise InvalidArgumentError(f"a regular expression of {len(regex)} characters; {MAX_REGEX} may be")
    try:
        pc.match_substring_regex(pa.array([""]), regex)  # by itself: a ")" must not close the group below
        marks = pc.match_substring_regex(pa.array(names, pa.string()), f"\\A(?:{regex})\\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"{regex!r} is no regular expression of RE2: {error}") from None
    return [name for name, matches in zip(names, marks.to_pylist(), strict=True) if matches]
