"""Markdown tables, and text made safe for their cells.

The result is Markdown for any renderer that is also easy to read in a terminal: ASCII, except for names.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_core_rollouts.results.number_text import UNKNOWN
from pytest_core_rollouts.text import one_line

MAX_WIDTH = 72
"""Columns of a terminal that one cell may take; longer text loses its middle."""

MIN_NAME = 12
"""Columns of a terminal that a name has at least in a table."""

_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPECIAL = re.compile(
    r"""[\\`*\[\]|~&<>]          # code, emphasis, links, cells, entities, HTML
    | (?<![^\W_])_ | _(?![^\W_])  # emphasis; not an underscore within a word
    | (?<=:)//                    # what would become a link
    | (?<=www)\.
    """,
    re.VERBOSE | re.IGNORECASE,
)


def escape(text: str) -> str:
    """Return `text` as one line of Markdown without effect: no cell, HTML, link, emphasis or control code.

    White space of any kind, including newlines, becomes one space. Other control characters, those that reorder text,
    and lone surrogates become escapes. Empty text gives `-`, and long text loses its middle.
    """
    return prose(clip(one_line(text))) or UNKNOWN


def prose(text: str) -> str:
    """Return `text` as one line of Markdown like `escape`, but whole: for sentences."""
    return _SPECIAL.sub(_harmless, one_line(text))


def clip(line: str, columns: int = MAX_WIDTH) -> str:
    """Return a line of at most so many columns of a terminal; a longer one loses its middle."""
    if width(line) <= columns:
        return line
    room = (columns - 3) // 4  # half of each side's share, since a character may be two columns wide
    return (
        f"{line[: 2 * room]}...{line[-2 * room :]}" if width(line) == len(line) else f"{line[:room]}...{line[-room:]}"
    )


def _harmless(match: re.Match[str]) -> str:
    found = match.group()
    return _HTML.get(found) or "".join(f"\\{character}" for character in found)


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes: wide East Asian characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def wrapped(text: str, width: int | None) -> str:
    """Return a paragraph, or a list's entry, in lines of `width` columns; None: in one line."""
    if width is None:
        return text
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class Column:
    """One column: its head, its escaped cells, and whether they are numbers, which are right-aligned."""

    head: str
    cells: Sequence[str]
    numeric: bool = True

    @property
    def width(self) -> int:
        return max(3, *(width(text) for text in (self.head, *self.cells)))

    def line(self, text: str) -> str:
        """Return `text` padded to the column's width."""
        padding = " " * (self.width - width(text))
        return padding + text if self.numeric else text + padding

    @property
    def rule(self) -> str:
        return "-" * (self.width - 1) + (":" if self.numeric else "-")


def table(columns: Sequence[Column]) -> str:
    """Return a Markdown table with aligned columns and a newline at the end of each line."""
    rows = zip(*(column.cells for column in columns), strict=True)
    body = [_row(column.line(cell) for column, cell in zip(columns, row, strict=True)) for row in rows]
    heads = _row(column.line(column.head) for column in columns)
    return "\n".join([heads, _row(column.rule for column in columns), *body, ""])


def table_width(columns: Sequence[Column]) -> int:
    """Return how many columns of a terminal `table` takes."""
    return sum(column.width + 3 for column in columns) + 1


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
