"""Files of a task that are its expected answer: an agent would only have to copy one.

Runs for every task that is collected, so most files are passed over by their size, and the rest by their first byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading.answer_json import InvalidJSON, parse_json
from pytest_core_rollouts.tasks.files import InputFile, exists, read_file
from pytest_core_rollouts.tasks.packing import Entry, Pack

_FACTOR: Final = 8
"""How many times longer than without white space and escapes a JSON text may be; indented lists of digits are."""
_MARGIN: Final = 1024


def answer_copies(
    expected: Mapping[str, Any], files: Sequence[InputFile], packed: Pack | None, folder: Path | None
) -> Iterator[str]:
    """The paths of files that equal the expected answer, as bytes or as JSON. `folder` is that of the task."""
    entries: list[InputFile | Entry] = [*files, *(packed.entries if packed is not None else ())]
    if not entries:
        return
    limit = _MARGIN + _FACTOR * len(json.dumps(expected, separators=(",", ":")))
    if folder is not None and exists(own := folder / "expected.json"):
        limit = max(limit, own.stat().st_size)
    for entry in entries:
        if entry.source is None or _size(entry) > limit:
            continue
        content = entry.source if isinstance(entry.source, bytes) else read_file(entry.source, limit)
        if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and _is(content, expected):
            yield entry.path


def _size(entry: InputFile | Entry) -> int:
    if isinstance(entry, InputFile):
        return entry.size
    return entry.source.lstat().st_size if isinstance(entry.source, Path) else len(entry.source or b"")


def _is(content: bytes, expected: Mapping[str, Any]) -> bool:
    try:
        return _same(parse_json(content), expected)
    except InvalidJSON:
        return False


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; 7 and 7.0 are, 1 and true are not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
