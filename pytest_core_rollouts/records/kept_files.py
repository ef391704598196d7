"""Files that agents made, kept beside the JSONL: `runs/<run_id>.files/<rollout_id>/a<attempt>/...`.

Their names come from an agent. A name of plain words keeps its place below the folder; any other, or one that would
meet another file's on some file system, becomes `@<number>`. A row's `outputs` says which file is which:

    [{"path": "fix.patch", "size": 812, "sha256": "...", "file": "<run_id>.files/<rollout_id>/a1/fix.patch"}, ...]

`path` is the agent's, below /workspace/outputs; `file` is relative to the JSONL's folder; `size` (bytes) and `sha256`
are those of the kept file, in which known secrets are masked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.errors import RecordsError
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.tasks.files import TaskError, read_file


def keep_files(
    out: Path, rollout_id: str, attempt: int, artifacts: Mapping[str, bytes], masks: Masker
) -> list[dict[str, Any]]:
    """Write the files of one attempt, whole and synced, in place of what a killed process left of it.

    `out` is the JSONL; gives the row's `outputs`. Raises RecordsError.
    """
    folder = out.with_suffix(".files") / rollout_id
    final = folder / f"a{attempt}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"a{attempt}.", dir=folder))
        try:
            rows = [_write(made, name, path, masks.bytes(artifacts[path])) for path, name in _named(artifacts, masks)]
            made.chmod(0o755)
            if final.exists():
                shutil.rmtree(final)
            made.rename(final)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        problem = f"{folder}: cannot keep an agent's files: {error.strerror or error}"
        raise RecordsError(f"{problem}; free or mend the disk, or choose another place with --rollout-out") from error
    place = final.relative_to(out.parent).as_posix()
    return [{**row, "path": masks.text(row["path"]), "file": f"{place}/{row['file']}"} for row in rows]


def read_kept_files(out: Path, outputs: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """The files that a row of `out` names, by the agent's paths. RecordsError: one is gone, or was changed."""
    found = {}
    for row in outputs:
        file = out.parent / row["file"]
        if ".." in Path(row["file"]).parts or Path(row["file"]).is_absolute():
            raise RecordsError(f"{out}: a row names {row['file']!r}, outside of its folder")
        try:
            content = read_file(file, row["size"])
        except TaskError as error:
            raise RecordsError(f"{error} (a file that a row of {out} names)") from None
        if hashlib.sha256(content).hexdigest() != row["sha256"]:
            raise RecordsError(f"{file}: is not what the row of {out} says; it was changed since")
        found[row["path"]] = content
    return found


def _write(folder: Path, name: str, path: str, content: bytes) -> dict[str, Any]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("xb") as opened:  # x: never over another
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "file": name}


def _named(paths: Iterable[str], masks: Masker) -> list[tuple[str, str]]:
    """Each path with the name it is kept under. No name is another's, or a folder of another's, in any case of letters,
    and none holds a secret.
    """
    named: list[tuple[str, str]] = []
    taken: set[str] = set()
    for number, path in enumerate(sorted(paths)):
        parts = path.casefold().split("/")
        whole = "/".join(parts)
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        plain = all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", part) for part in path.split("/"))
        free = whole not in taken and not above & taken and not any(name.startswith(f"{whole}/") for name in taken)
        if plain and free and len(path) <= 200 and masks.text(path) == path:
            taken.add(whole)
            named.append((path, path))
        else:
            named.append((path, f"@{number}"))
    return named
