"""Tasks in a session that did not ask for rollouts: left alone, and told of in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_core_rollouts import task_sources
from pytest_core_rollouts.kept_folders import is_kept_folder, kept_folder_around
from pytest_core_rollouts.options.asked import roots_of
from pytest_core_rollouts.task_folders import count_tasks, is_task_folder, task_around


def refuse_data(config: pytest.Config) -> None:
    """What lies in a task folder or among kept files is data: it must never be imported or run here.

    This comes before pytest imports the conftest.py of a path that it is given.
    """
    here = config.invocation_params.dir
    roots = roots_of(config)
    for argument in config.known_args_namespace.file_or_dir or ["."]:
        path = Path(os.path.normpath(here / argument.split("::")[0]))
        if (folder := kept_folder_around(path)) is not None:
            raise pytest.UsageError(
                f"{path} lies in {folder}, which holds what agents left, where nothing is a test; name another path"
            )
        if (folder := task_around(path, roots)) is not None:
            raise pytest.UsageError(f"{path} lies in a task folder, where nothing is a test; name the folder: {folder}")


def header(config: pytest.Config) -> str | None:
    """The line that says which tasks there are; None in a project without any."""
    roots = roots_of(config)
    found = [f"{tasks} task{'s' if tasks > 1 else ''}"] if (tasks := count_tasks(roots)) else []
    places = [shown(root, config) for root in roots] if tasks else []
    if sources := [shown(file, config) for file in task_sources.files(config)]:
        found.append("tasks made in code")
        places += sources
    where = " ".join(places)
    return f"rollouts: {' and '.join(found)} in {where}, not asked for; to run: pytest {where}" if found else None


def shown(path: Path, config: pytest.Config) -> str:
    """A path as short as it can be given from where pytest was called."""
    here = config.invocation_params.dir
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def ignore(path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tasks, and what agents left."""
    left_out = path.is_dir() and (is_kept(path) or is_task_folder(path, roots_of(config)))
    return True if left_out else None


def is_kept(path: Path) -> bool:
    """Whether a folder that pytest comes by holds what agents left, or is a link to such a one."""
    return kept_folder_around(path) is not None if path.is_symlink() else is_kept_folder(path)


def directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A task folder that is collected all the same, since a setting of pytest names it, holds no tests."""
    return LeftAlone.from_parent(parent, path=path) if is_task_folder(path, roots_of(parent.config)) else None


class LeftAlone(pytest.Directory):
    """A task folder that nobody asked to run."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return ()
