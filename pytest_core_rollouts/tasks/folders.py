"""Which folders are tasks, and what they are called. Looks at the file system, loads nothing."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_core_rollouts.text import escaped, name_problem

PARTS = ("instruction.md", "expected.json", "grader.py", "task.yaml")
"""Any of these makes a folder within a tasks root a task, if perhaps half a one."""
GRADED_BY = ("expected.json", "grader.py")
SETTINGS_OF_PYTEST = frozenset(
    (
        "conftest.py",
        "pytest.toml",
        ".pytest.toml",
        "pytest.ini",
        ".pytest.ini",
        "pyproject.toml",
        "tox.ini",
        "setup.cfg",
    )
)
"""What pytest imports or applies wherever it finds it, in every version from 8.3 on."""
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U00[01][0-9a-f]{5})")


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
    return utf8_name(path.name if relative == "." else relative)


def find_task(task: str, roots: Sequence[Path], rootpath: Path) -> Path | None:
    """The folder of the task with exactly this id; None if there is no such task."""
    candidates = (base / fs_name(task) for base in (*roots, rootpath))
    return next((path for path in candidates if is_task(path) and task_id(path, roots, rootpath) == task), None)


def looks_like_task(path: Path) -> bool:
    """Whether a folder is a task, or half a one in a folder called tasks; for when no setting names the tasks roots."""
    in_tasks = any(parent.name == "tasks" for parent in path.parents)
    return is_task(path) or (in_tasks and any((path / name).is_file() for name in PARTS))


def settings_of_pytest(folder: Path) -> list[Path]:
    """The files at a folder's top that would configure pytest, links too; some file systems ignore the case."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - only names, for thousands of folders
    except OSError:
        return []
    return [folder / name for name in names if name.lower() in SETTINGS_OF_PYTEST]


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
    """Whether a user who names `path` means tasks: it is one, or its instruction, or is in a root that holds some."""
    if is_task(path) or (path.name == "instruction.md" and is_task(path.parent)):
        return True
    root = root_of(path, roots)
    return root is not None and count_tasks([root]) > 0


def count_tasks(roots: Sequence[Path]) -> int:
    """How many task folders the roots hold."""
    return len(tasks_below(roots))


def tasks_below(roots: Sequence[Path]) -> dict[Path, Path]:
    """The task folders that the roots hold, each with its root."""
    return {Path(folder): root for root in roots for folder in _tasks_in(str(root), is_root=True)}


def norecurse_pattern(names: Iterable[str], patterns: Sequence[str]) -> str | None:
    """The pattern of the ini key norecursedirs that one of these folder names matches; None if none does."""
    return next((one for name in names for one in patterns if fnmatch.fnmatch(name, one)), None)


def _tasks_in(folder: str, *, is_root: bool = False) -> list[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    names = {entry.name for entry in entries}
    if names.intersection(PARTS) and (not is_root or is_task(Path(folder))):
        return [folder]
    return [task for entry in entries if entry.is_dir(follow_symlinks=False) for task in _tasks_in(entry.path)]


# ---- names, in whatever locale: Python keeps the bytes of a name that it can't decode as lone surrogates


def utf8_name(name: str) -> str:
    """A name of the file system as the UTF-8 it is."""
    try:
        return name.encode("ascii", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return name


def fs_name(name: str) -> str:
    """A name in UTF-8, such as an ini file says, as Python has it of the file system."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def safe_name(name: str) -> str:
    """A name of the file system that may go into a node id: lone surrogates, on which pytest's cache and xdist fail,
    are escaped, and all that is not ASCII with them. A name that no task can have is escaped for the error about it."""
    if not any("\ud800" <= char <= "\udfff" for char in name):
        return name if name_problem(name) is None else escaped(name)
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.encode("ascii", "backslashreplace").decode()


def of_safe_name(safe: str) -> str:
    """The name of the file system that is in a node id."""
    return fs_name(_ESCAPED.sub(lambda match: chr(int(match[0][2:], 16)), safe))
