"""What can be wrong with a file of records, or with one that belongs to it."""

from __future__ import annotations

import warnings


class RecordsError(Exception):
    """A records file that cannot be read or written; the text names the file (and line) and says what to do."""


class RecordsWarning(UserWarning):
    """Something in a records file, or in one that belongs to it, was passed over: its writer died in it."""


def warn(text: str) -> None:
    """Warn, and no more than that where warnings are errors (`-W error`): what a dead writer left stops nobody."""
    try:
        warnings.warn(text, RecordsWarning, stacklevel=4)
    except RecordsWarning:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RecordsWarning)
            warnings.warn(text, RecordsWarning, stacklevel=4)
