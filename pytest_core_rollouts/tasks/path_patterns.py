"""Patterns of paths, such as `reports/*.md`: matched in time linear in the path, whatever the path is.

An agent chooses the names of its files. A regular expression of `*_*_*.md` takes polynomial time for a name of many
underscores, and holds the GIL meanwhile. So all the ways in which a pattern can match are followed at once: each bit of
an integer stands for a place in the pattern, and each character moves all of them.
"""

from __future__ import annotations

import re
from collections import defaultdict

_TOKEN = re.compile(r"\*\*/|\*\*|.", re.DOTALL)


class PathPattern:
    """A pattern: `*` and `?` stand for characters of one name, `**` for any characters, `**/` for any folders."""

    def __init__(self, written: str) -> None:
        self.written = written
        self._next: dict[str, int] = defaultdict(int)
        """By character, the places that it leads on from."""
        self._one_of_name = self._loops_in_name = self._loops = self._folder = self._in_folder = 0
        self._skip_one = self._skip_two = 0
        """Places that may be left without a character."""
        place = 1
        for token in _TOKEN.findall(written):
            place = self._add(token, place)
        self._end = place

    def _add(self, token: str, place: int) -> int:
        """Add a token at this place. Returns the place behind it."""
        if token == "**/":  # two places: where a folder begins, and within its name
            self._folder |= place
            self._in_folder |= place << 1
            self._skip_two |= place
            return place << 2
        if token in ("*", "**"):
            self._loops_in_name |= place
            self._loops |= place if token == "**" else 0
            self._skip_one |= place
        elif token == "?":
            self._one_of_name |= place
        else:
            self._next[token] |= place
        return place << 1

    def matches(self, path: str) -> bool:
        """Return whether the whole path matches."""
        places = self._skipped(1)
        for character in path:
            on = places & self._next.get(character, 0)
            if character == "/":
                stay = (places & self._loops) | (places & self._in_folder) >> 1
            else:
                on |= places & (self._one_of_name | self._folder)
                stay = places & (self._loops_in_name | self._in_folder)
            places = on << 1 | stay
            if not places:
                return False
            places = self._skipped(places)
        return bool(places & self._end)

    def _skipped(self, places: int) -> int:
        """These places, and those that can be reached from them without a character."""
        while (more := places | (places & self._skip_one) << 1 | (places & self._skip_two) << 2) != places:
            places = more
        return places
