"""What can be wrong with a file of records, or with one that belongs to it."""

from __future__ import annotations


class RecordsError(Exception):
    """A records file that cannot be read or written; the text names the file (and line) and says what to do."""


class RecordsWarning(UserWarning):
    """Something in a records file was passed over: a row that was cut off when its writer died."""
