"""Writes the table of fields in docs/records.md from `records.record.COLUMNS`: `python docs/generate_records.py`."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_core_rollouts.records.record import COLUMNS

PAGE = Path(__file__).with_name("records.md")


def records_page(page: str) -> str:
    """Return the page with its table of fields written again."""
    lines = [
        "| field | meaning |",
        "| --- | --- |",
        *(f"| `{name}` | {column.doc} |" for name, column in COLUMNS.items()),
    ]
    return re.sub(r"^(\| field \| meaning \|\n(\|.*\n)*|TABLE\n)", lambda _: "\n".join(lines) + "\n", page, flags=re.M)


if __name__ == "__main__":
    PAGE.write_text(records_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
