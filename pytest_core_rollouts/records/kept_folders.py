"""Folders next to a JSONL that hold what agents left: their names, and how they are recognized.

pytest, upload steps, shells and editors skip a name that begins with a dot, even where this plugin is not
installed. Imports next to nothing: every run of pytest, in any project, comes by here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".files"
_RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}(?:\.|$)")
"""How the name of a run or of a rollout begins."""
UPLOAD_HINT: Final = "a CI's upload leaves it out without `include-hidden-files: true`"


def kept_folder(out: Path) -> Path:
    """The folder next to the JSONL `out` for files that do not stand in its rows."""
    return out.with_name(f".{out.stem}{_SUFFIX}")


def is_kept_folder(path: Path) -> bool:
    """Whether a folder is of this kind, from its name; `<name>.files` of earlier versions, from what it holds too."""
    if not path.name.endswith(_SUFFIX):
        return False
    if path.name.startswith(".") or _RUN_ID.match(path.name):
        return path.is_dir()
    try:
        with os.scandir(path) as entries:
            return any(_RUN_ID.match(entry.name) for entry in entries)
    except OSError:
        return False


def kept_folder_around(path: Path) -> Path | None:
    """The kept folder that `path` is, lies in, or leads to through links."""
    resolved = Path(os.path.realpath(path))
    return next(
        (folder for folder in (path, *path.parents, resolved, *resolved.parents) if is_kept_folder(folder)), None
    )


def missing_text(out: Path, file: str) -> str:
    """What to say if a row of `out` names `file`, and it is gone."""
    folder = out.parent / Path(file).parts[0]
    where = out.parent / file if folder.is_dir() else folder
    hint = f" ({UPLOAD_HINT})" if folder.name.startswith(".") else ""
    return f"{where}: missing, but rows of {out} name it; put {folder.name} back next to {out.name}{hint}"
