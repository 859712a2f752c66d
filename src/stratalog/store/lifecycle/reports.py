"""What lifecycle work did, or would do: values that travel over the control socket as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stratalog.log.policy.preview import Step


@dataclass(frozen=True, slots=True)
class LifecycleReport:
    """Steps in the order they were, or would be, carried out.

    ``notes`` say what was left alone and why (a clock that jumped, a damaged segment, a full disk).
    ``compactions`` hold the numbers of each partition that was compacted.
    """

    preview: bool
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    compactions: tuple[Mapping[str, Any], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that the deletions of now free on this machine."""
        return sum(
            step.size_bytes for step in self.steps if step.due and step.action in ("delete", "drop-local")
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "preview": self.preview,
            "steps": [step.to_json() for step in self.steps],
            "notes": list(self.notes),
            "compactions": [dict(each) for each in self.compactions],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LifecycleReport:
        return cls(
            bool(value["preview"]),
            tuple(Step(**step) for step in value["steps"]),
            tuple(value["notes"]),
            tuple(value["compactions"]),
        )


@dataclass(frozen=True, slots=True)
class StateNumbers:
    """Segments of one partition in one state."""

    segments: int = 0
    size_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """The numbers that show a leak: what a partition holds by state, and what should have gone by now."""

    topic: str
    partition: int
    states: Mapping[str, StateNumbers]
    oldest_deletable: int | None
    """Base offset of the oldest segment that retention would take now; None when there is none."""
    overdue_ms: int | None
    """How long past due it is; None when time is not the reason."""
    torn_files: int = 0
    quarantined: tuple[str, ...] = ()
    """Damaged segments that compaction goes around."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionNumbers:
        states = {name: StateNumbers(**numbers) for name, numbers in value["states"].items()}
        return cls(**{**value, "states": states, "quarantined": tuple(value["quarantined"])})


@dataclass(frozen=True, slots=True)
class EraseReport:
    """What erasing keys removed, and where it could not reach."""

    topic: str
    keys: int
    dry_run: bool
    records: int
    segments: tuple[str, ...] = ()
    """Files that were rewritten."""
    archived: tuple[str, ...] = ()
    """Archived segments that were rewritten."""
    leftovers: tuple[str, ...] = ()
    """Torn and deleted files that went."""
    clones: tuple[str, ...] = ()
    """Clones made of this store earlier: they may still hold the keys and must be erased by themselves."""
    quarantined: tuple[str, ...] = ()
    """Damaged segments that could not be rewritten."""
    audit: str | None = None
    """The audit file that tells of it."""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EraseReport:
        fields: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in value.items()
        }
        return cls(**fields)
