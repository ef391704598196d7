"""Text that is shown: whoever wrote it, it acts on no terminal, workflow log or XML file.

`escaped` is the only place that decides which characters are shown as escapes; the other functions add a width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MESSAGE: Final = 10_000
"""Characters of a text that may cross to another process or a terminal."""


def escaped(text: str) -> str:
    r"""`text` with every character that is not printable as its escape: `\n`, `\x1b`, `\u202e`.

    These are control and format characters (bidi marks among them), lone surrogates, noncharacters, and every
    separator but the plain space, so that one value stays one line.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def one_line(text: str) -> str:
    """`text` escaped, with white space of any kind as one space."""
    return escaped(" ".join(text.split()))


def printable(text: str, limit: int = MESSAGE) -> str:
    """At most `limit` characters of `text`, escaped."""
    return escaped(text) if len(text) <= limit else f"{escaped(text[:limit])}... ({len(text):,} characters)"


def reward_text(value: float) -> str:
    """A reward in six digits, in all it has where those would make it a 1 or a 0 that it is not."""
    text = f"{value:g}"
    return text if float(text) not in (0, 1) or float(text) == value else repr(value)


def listed(names: Sequence[str], most: int | None = None) -> str:
    """`a, b and 3 more`."""
    shown = names[:most]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


_NONCHARACTERS = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
_REFUSED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, C1 too: a terminal acts on U+009B
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # reorder what stands beside them
    "\u2028\u2029"  # end a line
    f"\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]"  # no characters: XML and UTF-8 can't hold them all
)


def name_problem(name: str) -> str | None:
    """Why a task, a file or an agent can't have this name; None if it can."""
    if (found := _REFUSED.search(name)) is None:
        return None
    return f"the character U+{ord(found[0]):04X} is not allowed in a name; rename it"
