"""Any Python value as plain JSON data that every strict reader takes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

MAX_DEPTH = 200
TOO_DEEP = "(nested too deep)"

_MAX_INT_BITS = 8192  # Python itself refuses to write integers of more than 4,300 digits
_SURROGATES = re.compile("[\ud800-\udfff]")


def jsonable(value: Any, depth: int = MAX_DEPTH) -> Any:
    """`value` built only of None, bool, int, finite float, str, list and dict; never raises for an unknown type.

    What JSON has no word for is written so that the row survives and numbers stay numbers: NaN and the infinities
    become null; a Decimal or Fraction, a path, a date or any other object its text; bytes their UTF-8 text; a set a
    sorted list; an enum its value; a dataclass an object; a scalar of NumPy a number. A lone surrogate becomes the text
    of its escape, such as `\\ud835`, because many JSON readers refuse one. What lies more than `depth` levels deep, a
    cycle included, becomes the text `TOO_DEEP`.
    """
    kind = type(value)  # what JSON itself is made of comes first: trajectories are long
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is dict and depth:
        return {_key(key): jsonable(item, depth - 1) for key, item in value.items()}
    if kind is list and depth:
        return [jsonable(item, depth - 1) for item in value]
    if kind is float:
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return jsonable(value.value, depth)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, os.PathLike):
        return jsonable(os.fspath(value), depth)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return _container(value, depth)


def _container(value: Any, depth: int) -> Any:
    if depth == 0:
        return TOO_DEEP
    below = depth - 1
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name), below) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): jsonable(item, below) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((jsonable(item, below) for item in value), key=repr)
    if isinstance(value, Sequence):
        return [jsonable(item, below) for item in value]
    if hasattr(value, "dtype") and not hasattr(type(value), "__len__"):  # a scalar of NumPy
        scalar = value.item()
        return jsonable(scalar, below) if isinstance(scalar, (bool, int, float, str)) else _text(str(value))
    return _text(str(value))


def has_lone_surrogate(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a text or a key in JSON data has half of a surrogate pair, so that `jsonable` changes it."""
    if isinstance(value, str):
        return not value.isascii() and _text(value) != value
    if not depth or not isinstance(value, (dict, list)):
        return False
    parts = itertools.chain(value, value.values()) if isinstance(value, dict) else value
    return any(has_lone_surrogate(part, depth - 1) for part in parts)


def _key(key: Any) -> str:
    if type(key) is str:
        return key if key.isascii() else _text(key)
    return str(jsonable(key, 1))


def _text(text: str) -> str:
    if text.isascii() or not _SURROGATES.search(text):
        return str.__str__(text)
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", paired)
