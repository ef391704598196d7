"""Trajectories kept beside the JSONL, for whoever finds rows too large that hold them.

`runs/.<run_id>.files/<rollout_id>/a<attempt>.items.jsonl` has one Item a line, strict JSON in ASCII, known secrets
masked; the row has `items: null` and says in `items_file` where they are:

    {"file": ".<run_id>.files/<rollout_id>/a1.items.jsonl", "items": 20000, "size": 31457280, "sha256": "..."}

`file` is relative to the JSONL's folder, `size` in bytes. Rows of earlier versions name files in `<run_id>.files`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.errors import RecordsError
from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.records.kept_folders import kept_folder
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.whole_files import whole_file


def keep_items(out: Path, rollout_id: str, attempt: int, items: Sequence[Any], masks: Masker) -> dict[str, Any]:
    """Write the Items of one attempt, whole and synced; gives the row's `items_file`. Raises RecordsError."""
    final = kept_folder(out) / rollout_id / f"a{attempt}.items.jsonl"
    digest, size = hashlib.sha256(), 0
    try:
        with whole_file(final) as file:
            for item in items:
                line = _line(item, masks)
                digest.update(line)
                size += len(line)
                file.write(line)
    except OSError as error:
        raise RecordsError(
            f"{final.parent}: cannot keep a trajectory: {error.strerror or error}; free or fix the disk, "
            "or choose another place with --rollout-out"
        ) from error
    place = final.relative_to(out.parent).as_posix()
    return {"file": place, "items": len(items), "size": size, "sha256": digest.hexdigest()}


def _line(item: Any, masks: Masker) -> bytes:
    data = masks.trajectory(jsonable(item))
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def read_items(out: Path, kept: Mapping[str, Any]) -> list[Any] | None:
    """The Items that a row of `out` names; None where the file is gone.

    Raises RecordsError where it can't be read, or was changed.
    """
    place = Path(str(kept.get("file")))
    if place.is_absolute() or ".." in place.parts:
        raise RecordsError(f"{out}: a row names {str(place)!r}, outside of its folder")
    path = out.parent / place
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordsError(f"{path}: cannot read a trajectory: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != kept.get("sha256"):
        raise RecordsError(f"{path}: is not what the row of {out} says; it was changed since")
    return [json.loads(line) for line in content.splitlines()]
