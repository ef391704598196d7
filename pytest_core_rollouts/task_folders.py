"""Which folders are tasks, and what they are called. Looks at the file system, loads nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

PARTS = ("instruction.md", "expected.json", "grader.py", "task.yaml")
"""Any of these makes a folder within a tasks root a task, if perhaps half a one."""
GRADED_BY = ("expected.json", "grader.py")


def is_task(path: Path) -> bool:
    """Whether a folder is a task: `instruction.md`, and `expected.json` or `grader.py`."""
    return (path / "instruction.md").is_file() and any((path / name).is_file() for name in GRADED_BY)


def root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """The tasks root that `path` is or lies in; of nested ones the innermost."""
    within = [root for root in roots if path.is_relative_to(root)]
    return max(within, key=lambda root: len(root.parts), default=None)


def is_task_folder(path: Path, roots: Sequence[Path]) -> bool:
    """A complete task anywhere; within a tasks root, half a task too: it is an error there, not silence."""
    if is_task(path):
        return True
    in_root = path not in roots and root_of(path, roots) is not None
    return in_root and any((path / name).is_file() for name in PARTS)


def task_id(path: Path, roots: Sequence[Path], rootpath: Path) -> str:
    """The folder's path relative to its tasks root, else to the rootdir; `sql/joins`."""
    base = root_of(path, roots) or rootpath
    relative = Path(os.path.relpath(path, base)).as_posix()
    return path.name if relative == "." else relative


def find_task(task: str, roots: Sequence[Path], rootpath: Path) -> Path | None:
    """The folder of the task with exactly this id; None if there is no such task."""
    candidates = (base / task for base in (*roots, rootpath))
    return next((path for path in candidates if is_task(path) and task_id(path, roots, rootpath) == task), None)


def task_around(path: Path, roots: Sequence[Path]) -> Path | None:
    """The task folder that `path` lies in, however deep; None too for a task folder itself and its instruction."""
    for folder in reversed(path.parents):
        if is_task_folder(folder, roots):
            return None if path == folder / "instruction.md" else folder
    return None


def leads_back(link: Path, roots: Sequence[Path]) -> bool:
    """Whether a link within a tasks root leads to what is collected anyway, or round in a circle."""
    if root_of(link, roots) is None:
        return False
    target = link.resolve()
    if link.parent.resolve().is_relative_to(target):
        return True
    real = [root.resolve() for root in roots]
    return any(target.is_relative_to(root) or root.is_relative_to(target) for root in real)


def names_tasks(path: Path, roots: Sequence[Path]) -> bool:
    """Whether whoever names `path` means tasks: it is one, or its instruction, or is in a root that holds some."""
    if is_task(path) or (path.name == "instruction.md" and is_task(path.parent)):
        return True
    root = root_of(path, roots)
    return root is not None and count_tasks([root]) > 0


def safe_name(name: str) -> str:
    """A name from the file system that may go into a node id.

    Where the locale's encoding has not all its characters, or it is no UTF-8 at all, Python keeps its bytes as lone
    surrogates, on which pytest's cache and xdist fail; they are escaped.
    """
    if name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name):
        return name
    return (
        name.encode("utf-8", "surrogateescape")
        .decode("utf-8", "backslashreplace")
        .encode("ascii", "backslashreplace")
        .decode()
    )


def count_tasks(roots: Sequence[Path]) -> int:
    """How many task folders the roots hold."""
    return len({folder for root in roots for folder in _tasks_in(str(root), is_root=True)})


def _tasks_in(folder: str, *, is_root: bool = False) -> list[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    names = {entry.name for entry in entries}
    if names.intersection(PARTS) and (not is_root or is_task(Path(folder))):
        return [folder]
    return [task for entry in entries if entry.is_dir(follow_symlinks=False) for task in _tasks_in(entry.path)]
