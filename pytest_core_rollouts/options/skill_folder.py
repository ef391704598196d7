"""A skill as an agent file names it: a folder with `SKILL.md`, packed for a Session's environment."""

from __future__ import annotations

import base64
import io
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.tasks.strict_yaml import Invalid, YamlError, load_yaml

MAIN: Final = "SKILL.md"
FILES: Final = 256
BYTES: Final = 5 * 1024 * 1024  # of the archive; the API takes no more

_LEFT_OUT: Final = {"__pycache__", ".git", ".DS_Store"}
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive, so that the agent's digest is the same


def pack_skill(folder: Path) -> dict[str, Any]:
    """Return the folder's skill as the Agents API takes it, with its files inline. Raises Invalid."""
    name, description = _front_matter(folder)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:  # other methods depend on zlib's version
        for path in _files(folder):
            packed.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH), path.read_bytes())
    if len(archive.getvalue()) > BYTES:
        raise Invalid(f"{folder} has more than {BYTES // 1024**2} MiB; make it smaller")
    data = base64.b64encode(archive.getvalue()).decode("ascii")
    source = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": name, "description": description, "source": source}


def _front_matter(folder: Path) -> tuple[str, str]:
    """Return the name and the description in the head of SKILL.md. Other keys there are for the agent's program."""
    main = folder / MAIN
    try:
        content = main.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise Invalid(f"{main} can't be read ({error}); name the folder of a skill") from None
    head = re.match(r"\ufeff?---\r?\n(.*?)^---\s*$", content, re.DOTALL | re.MULTILINE)
    if head is None:
        raise Invalid(f"{main}:1: expected a head between two lines `---`, with `name` and `description`")
    try:
        values = load_yaml(main, f"\n{head[1]}".encode()).values
    except YamlError as error:
        raise Invalid(str(error)) from None
    name, description = values.get("name"), values.get("description")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise Invalid(f"{main}: name: expected 1 to 64 lowercase letters, digits and hyphens, got {name!r}")
    if not isinstance(description, str) or not description.strip() or len(description) > 1024:
        raise Invalid(f"{main}: description: expected a text of 1 to 1,024 characters")
    return name, description


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted({*folders} - _LEFT_OUT)
        for name in sorted({*names} - _LEFT_OUT):
            path = Path(parent, name)
            count += 1
            if path.is_symlink() or not path.is_file():
                raise Invalid(f"{path} is not a regular file; a skill can only hold files and folders")
            if count > FILES:
                raise Invalid(f"{folder} has more than {FILES} files; make it smaller")
            yield path
