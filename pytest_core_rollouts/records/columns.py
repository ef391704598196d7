"""What is known of a field of a row: its types, its meaning, how it is masked, and which values it may have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_core_rollouts.records.masking import Masker

_BOUND = 2**53
"""Larger numbers occur in no row, and few JSON readers read them exactly."""


def is_count(value: Any) -> bool:
    """Whether the value is a count that a row may hold."""
    return type(value) is int and 0 <= value < _BOUND


def is_string(value: Any) -> bool:
    """Whether the value is a string."""
    return isinstance(value, str)


def is_finite(value: Any) -> bool:
    """Whether the value is a number that is finite."""
    return type(value) in (int, float) and math.isfinite(value)


def is_object_or_none(value: Any) -> bool:
    """Whether the value is an object or null."""
    return value is None or isinstance(value, dict)


def is_kept_file(value: Any) -> bool:
    """Return True for an entry that `kept_files` can have written."""
    if not isinstance(value, dict) or type(value.get("size")) is not int:
        return False
    return all(isinstance(value.get(key), str) for key in ("path", "file", "sha256"))


@dataclass(frozen=True)
class Column:
    """What is known of one field of a row."""

    doc: str
    """Its meaning, as Markdown, for docs/records.md."""
    types: tuple[type, ...] = ()
    """The types that its JSON value may have; empty for any value."""
    masks: Literal["nothing", "values", "messages", "fields"] = "values"
    """`values`: known secrets. `messages`: also what looks like a credential in text. `fields`: also the values of
    fields that are named like a credential. `nothing`: ids, digests and numbers, so that a row can be found again."""
    entries: tuple[str, Callable[[Any], bool]] | None = None
    """What a list or object may hold, in words and as a check."""
    large: bool = False
    """Whether `slim` leaves it out."""
    shared: bool = False
    """Whether the rows of one task and agent have it in common, so that `slim_rows` holds it once."""


def column(*args: Any, **kwargs: Any) -> dict[str, Column]:
    """Return the metadata of a field with this Column."""
    return {"column": Column(*args, **kwargs)}


def masked_value(column: Column, value: Any, masks: Masker) -> Any:
    """Return a field's value without secrets. Answers lose only known ones, because they may be graded again."""
    if column.masks == "nothing" or value is None:
        return value
    if column.masks == "messages":
        return masks.message(value) if isinstance(value, str) else list(map(masks.message, value))
    return masks.trajectory(value) if column.masks == "fields" else masks.data(value)


def checked_value(name: str, column: Column, value: Any) -> Any:
    """Return the value if the field of this name can have it. Raises ValueError."""
    if column.types and (not isinstance(value, column.types) or (isinstance(value, bool) and bool not in column.types)):
        raise ValueError(f'"{name}" can\'t be {type(value).__name__}')
    if column.types and isinstance(value, (int, float)) and not -_BOUND < value < _BOUND:
        raise ValueError(f'"{name}" is too large a number')
    if column.entries is not None:
        what, fits = column.entries
        if not all(map(fits, value.values() if isinstance(value, dict) else value)):
            raise ValueError(f'"{name}" must only hold {what}')
    if name == "agent" and not isinstance(value.get("name"), (str, type(None))):
        raise ValueError('the agent\'s "name" must be a string')
    return value
