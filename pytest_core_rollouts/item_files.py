"""Trajectories kept beside the JSONL, for whoever finds rows too large that hold them.

`runs/<run_id>.files/<rollout_id>/a<attempt>.items.jsonl` has one Item a line, strict JSON in ASCII, known secrets
masked; the row has `items: null` and says in `items_file` where they are:

    {"file": "<run_id>.files/<rollout_id>/a1.items.jsonl", "items": 20000, "size": 31457280, "sha256": "..."}

`file` is relative to the JSONL's folder, `size` in bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_core_rollouts.jsonable import jsonable
from pytest_core_rollouts.masking import Masker
from pytest_core_rollouts.records import RecordsError, RolloutRecord


def keep_items(out: Path, rollout_id: str, attempt: int, items: Sequence[Any], masks: Masker) -> dict[str, Any]:
    """Write the Items of one attempt, whole and synced; gives the row's `items_file`. Raises RecordsError."""
    folder = out.with_suffix(".files") / rollout_id
    final = folder / f"a{attempt}.items.jsonl"
    digest, size = hashlib.sha256(), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f"{final.name}.", dir=folder)
        made = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for item in items:
                    line = _line(item, masks)
                    digest.update(line)
                    size += len(line)
                    file.write(line)
                file.flush()
                os.fsync(file.fileno())
            made.chmod(0o644)
            made.replace(final)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RecordsError(
            f"{folder}: cannot keep a trajectory: {error.strerror or error}; free or mend the disk, "
            "or choose another place with --rollout-out"
        ) from error
    place = final.relative_to(out.parent).as_posix()
    return {"file": place, "items": len(items), "size": size, "sha256": digest.hexdigest()}


def _line(item: Any, masks: Masker) -> bytes:
    data = masks.trajectory(jsonable(item))
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def read_items(out: Path, record: RolloutRecord) -> Iterator[Any]:
    """The Items of a row of `out`, wherever they are kept; none where they were not. Raises RecordsError."""
    if record.items is not None or record.items_file is None:
        yield from record.items or ()
        return
    yield from _read(out, record.items_file)


def _read(out: Path, kept: Mapping[str, Any]) -> Iterator[Any]:
    place = Path(str(kept.get("file")))
    if place.is_absolute() or ".." in place.parts:
        raise RecordsError(f"{out}: a row names {str(place)!r}, outside of its folder")
    digest = hashlib.sha256()
    try:
        with (out.parent / place).open("rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise RecordsError(f"{out.parent / place}:{number}: not JSON ({error})") from None
    except OSError as error:
        raise RecordsError(f"{out.parent / place}: cannot read a trajectory: {error.strerror or error}") from error
    if digest.hexdigest() != kept.get("sha256"):
        raise RecordsError(f"{out.parent / place}: is not what the row of {out} says; it was changed since")
