"""All tasks below a folder, as a pytest session finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.findings import UNFINISHED
from pytest_core_rollouts.tasks.folders import is_task, is_task_folder, leads_back, settings_of_pytest, task_id
from pytest_core_rollouts.tasks.task import Task, load_task
from pytest_core_rollouts.text import name_problem

NOT_SEARCHED: Final = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}")
"""Folders that pytest does not look into (its default of `norecursedirs`)."""


def load_tasks(root: Path | str) -> list[Task]:
    """Load every task below a folder, with the ids that a pytest session gives them, in its order.

    A task's id is its path below `root`: `orders-json`, `sql/joins`. A folder that is a task itself is the only one,
    with its name as id. Other files and folders are left alone.

    Raises TaskError for a faulty or unfinished task, and if there is none.
    """
    folder = Path(os.path.normpath(Path(root).absolute()))
    if not folder.is_dir():
        raise TaskError(f"{folder}: not a folder; name the folder that holds the tasks")
    tasks = [_load(path, folder) for path in ([folder] if is_task(folder) else _task_folders(folder, folder))]
    if not tasks:
        raise TaskError(f"{folder}: holds no tasks; a task is a folder with instruction.md and expected.json")
    return tasks


def _task_folders(folder: Path, root: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or any(fnmatch(path.name, pattern) for pattern in NOT_SEARCHED):
            continue
        if path.is_symlink() and leads_back(path, [root]):
            continue
        if is_task_folder(path, [root]):
            yield path
        else:
            yield from _task_folders(path, root)


def _load(path: Path, root: Path) -> Task:
    name = task_id(path, [root], root)
    if (problem := name_problem(name)) is not None:
        raise TaskError(f"{path}: {problem}")
    if settings := settings_of_pytest(path):
        raise TaskError(f"{settings[0]}: a task folder is data and can't configure pytest; move the file away")
    task = load_task(path, name)
    if UNFINISHED in f"{task.instruction}{task.expected}":
        raise TaskError(f"{path}: unfinished, it still contains {UNFINISHED}")
    return task
