"""Files that agents made, kept beside the JSONL: `runs/.<run_id>.files/<rollout_id>/a<attempt>/0001`, `0002`, ...

Their names would come from an agent or a Core, so they have none: a `conftest.py` must not be imported by the next
pytest, a folder with `HEAD`, `objects` and `refs` must not be a repository. A row's `outputs` says which file is which:

    [{"path": "fix.patch", "size": 812, "sha256": "...", "file": ".<run_id>.files/<rollout_id>/a1/0001"}, ...]

`path` is the agent's, below /workspace/outputs; `file` is relative to the JSONL's folder; `size` (bytes) and `sha256`
are those of the kept file, in which known secrets are masked. Rows of earlier versions name files in
`<run_id>.files` under names of the agent's; they are read as before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.errors import RecordsError
from pytest_core_rollouts.records.kept_folders import kept_folder, missing_text
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.whole_files import sync, whole_folder
from pytest_core_rollouts.tasks.files import TaskError, exists, read_file


def keep_files(
    out: Path, rollout_id: str, attempt: int, artifacts: Mapping[str, bytes], masks: Masker
) -> list[dict[str, Any]]:
    """Write the files of one attempt, whole and synced, in place of what a killed process left of it.

    `out` is the JSONL; gives the row's `outputs`. Raises RecordsError.
    """
    final = kept_folder(out) / rollout_id / f"a{attempt}"
    place = final.relative_to(out.parent).as_posix()
    rows = []
    try:
        with whole_folder(final) as folder:
            for number, path in enumerate(sorted(artifacts), 1):
                name, content = f"{number:04}", masks.bytes(artifacts[path])
                with (folder / name).open("xb") as file:
                    file.write(content)
                    sync(file)
                digest = hashlib.sha256(content).hexdigest()
                rows.append(
                    {"path": masks.text(path), "size": len(content), "sha256": digest, "file": f"{place}/{name}"}
                )
    except OSError as error:
        problem = f"{final.parent}: cannot keep an agent's files: {error.strerror or error}"
        raise RecordsError(f"{problem}; free or fix the disk, or choose another place with --rollout-out") from error
    return rows


def read_kept_files(out: Path, outputs: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """The files that a row of `out` names, by the agent's paths. RecordsError: one is missing, or was changed."""
    found = {}
    for row in outputs:
        file = out.parent / row["file"]
        if ".." in Path(row["file"]).parts or Path(row["file"]).is_absolute():
            raise RecordsError(f"{out}: a row names {row['file']!r}, outside of its folder")
        if not exists(file):
            raise RecordsError(missing_text(out, row["file"]))
        try:
            content = read_file(file, row["size"])
        except TaskError as error:
            raise RecordsError(f"{error} (a file that a row of {out} names)") from None
        if hashlib.sha256(content).hexdigest() != row["sha256"]:
            raise RecordsError(f"{file}: is not what the row of {out} says; it was changed since")
        found[row["path"]] = content
    return found


def missing_file(out: Path, outputs: Iterable[Mapping[str, Any]]) -> str | None:
    """The first file that a row of `out` names and that is gone, relative to its folder; None if all are there."""
    return next((str(row["file"]) for row in outputs if not (out.parent / str(row["file"])).is_file()), None)
