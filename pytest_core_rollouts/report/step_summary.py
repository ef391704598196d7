"""The report on the page of a GitHub Actions job: Markdown appended to the file that `$GITHUB_STEP_SUMMARY` names."""

from __future__ import annotations

from pathlib import Path

LIMIT = 1024 * 1024
"""Bytes that GitHub shows of one step; of a larger file it shows nothing."""
CUT = "\n*The rest is left out: GitHub shows 1 MiB of a step.*\n"


def append_summary(path: Path, text: str) -> None:
    """Append `text`, cut at a line where the file would grow too large. Raises OSError."""
    taken = path.stat().st_size if path.exists() else 0
    data = text.encode("utf-8", "replace")
    room = LIMIT - taken
    if len(data) > room:
        room -= len(CUT.encode())
        data = data[: data.rfind(b"\n", 0, room) + 1] + CUT.encode() if room > 0 else b""
    with path.open("ab") as file:
        file.write(data)
