"""Text for people: escaped, in one line, clipped, listed, counted.

Text may come from an agent, a Core or a file. Escaped text can't control a terminal, a workflow log or an XML file.
`escaped` is the only function that decides which characters are escaped.
Imports nothing else of the package, because every run of pytest in any project imports it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MESSAGE: Final = 10_000
"""Maximum number of characters that are sent to another process or a terminal."""


def escaped(text: str) -> str:
    r"""Return `text` with an escape (`\n`, `\x1b`, `\u202e`) for every character that is not printable.

    These are control and format characters (including bidi marks), lone surrogates, noncharacters, and every
    separator except the plain space, so that one value stays on one line.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def one_line(text: str) -> str:
    """Return `text` escaped, with a single space for any run of white space."""
    return escaped(" ".join(text.split()))


def printable(text: str, limit: int = MESSAGE) -> str:
    """Return at most `limit` characters of `text`, escaped, and how many it has if it has more."""
    return escaped(text) if len(text) <= limit else f"{escaped(text[:limit])}... ({len(text):,} characters)"


def clipped(text: str, limit: int) -> str:
    """Return `text`, or its start and `...`, in at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def listed(items: Sequence[str], most: int | None = None) -> str:
    """Return `a, b and 3 more`: at most `most` items, or all of them."""
    shown = items[:most]
    return ", ".join(shown) + (f" and {len(items) - len(shown):,} more" if len(items) > len(shown) else "")


def counted(count: int, noun: str) -> str:
    """Return `1 file`, `2 files`, `1,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def reward_text(value: float) -> str:
    """Return a reward in six digits, or in all its digits if six would show it as 0 or 1 and it is neither."""
    text = f"{value:g}"
    return text if float(text) not in (0, 1) or float(text) == value else repr(value)


def short_path(path: Path, folder: Path) -> str:
    """Return the path relative to `folder` if it is inside of it, else the path as it is."""
    return os.path.relpath(path, folder) if path.is_relative_to(folder) else str(path)


_NONCHARACTERS = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
_REFUSED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, C1 too: a terminal acts on U+009B
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # reorder the characters next to them
    "\u2028\u2029"  # end a line
    f"\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]"  # not characters: XML and UTF-8 can't hold all of them
)


def name_problem(name: str) -> str | None:
    """Return why a task, a file or an agent can't have this name; None if it can."""
    if (found := _REFUSED.search(name)) is None:
        return None
    return f"the character U+{ord(found[0]):04X} is not allowed in a name; rename it"
