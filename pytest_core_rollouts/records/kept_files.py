"""Files that agents made, kept next to the JSONL: `runs/.<run_id>.files/<rollout_id>/a<attempt>/0001`, `0002`, ...

Their names would come from an agent or a Core, so they have none: a `conftest.py` must not be imported by the next
pytest, a folder with `HEAD`, `objects` and `refs` must not be a repository. A row's `outputs` says which file is which:

    [{"path": "fix.patch", "size": 812, "sha256": "...", "file": ".<run_id>.files/<rollout_id>/a1/0001"}, ...]

`path` is the agent's, below /workspace/outputs; `file` is relative to the JSONL's folder; `size` (bytes) and `sha256`
are those of the kept file, in which known secrets are masked (`"masked": true` then says so). Rows of earlier versions
name files in `<run_id>.files` under names of the agent's; they are read as before.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.records.kept_folders import kept_folder, missing_text
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.record import RecordsError
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
                row = {"path": masks.text(path), "size": len(content), "sha256": digest, "file": f"{place}/{name}"}
                is_masked = content != artifacts[path] or row["path"] != path
                rows.append({**row, "masked": True} if is_masked else row)
    except OSError as error:
        problem = f"{final.parent}: cannot keep an agent's files: {error.strerror or error}"
        raise RecordsError(f"{problem}; free or repair the disk, or choose another place with --rollout-out") from error
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
            is_longer = not file.is_symlink() and file.is_file() and file.stat().st_size > row["size"]
            content = None if is_longer else read_file(file, row["size"])
        except TaskError as error:
            raise RecordsError(f"{error} (a file that a row of {out} names)") from None
        if content is None or hashlib.sha256(content).hexdigest() != row["sha256"]:
            raise RecordsError(f"{file}: is not what the row of {out} says; it was changed since")
        found[row["path"]] = content
    return found


def missing_file(out: Path, outputs: Iterable[Mapping[str, Any]]) -> str | None:
    """The first file that a row of `out` names and that is gone, relative to its folder; None if all are there."""
    return next((str(row["file"]) for row in outputs if not (out.parent / str(row["file"])).is_file()), None)


# Trajectories


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
            f"{final.parent}: cannot keep a trajectory: {error.strerror or error}; free or repair the disk, "
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


# Files and folders that get their names once they are whole


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well, and is gone otherwise. Makes its folder.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with partial.open("xb") as file:
            yield file
            sync(file)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the place of `path` when the block ends well, and is gone otherwise. Makes the one above.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def sync(file: BinaryIO) -> None:
    """Have the disk take all that was written."""
    file.flush()
    os.fsync(file.fileno())


def _partial(path: Path) -> Path:
    return path.with_name(f".rollouts-{secrets.token_hex(8)}.part")
