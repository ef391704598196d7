"""Tasks in a session without rollouts: nothing is collected from them, and pytest's header names them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_core_rollouts.collecting.task_data import RefusedFolder
from pytest_core_rollouts.options.activation import roots_of, task_files
from pytest_core_rollouts.records.kept_folders import is_kept_folder, kept_folder_around
from pytest_core_rollouts.tasks.folders import is_task_folder, norecurse_pattern, settings_of_pytest, tasks_below
from pytest_core_rollouts.text import counted


def header(config: pytest.Config) -> str | None:
    """Return the header's line that names the tasks; None in a project without tasks."""
    roots = roots_of(config)
    tasks, patterns = tasks_below(roots), config.getini("norecursedirs")
    left_out = sum(
        norecurse_pattern(folder.relative_to(root).parts, patterns) is not None for folder, root in tasks.items()
    )
    found = [counted(len(tasks) - left_out, "task")] if tasks else []
    found[0:1] = [f"{found[0]} ({left_out} more left out by norecursedirs)"] if left_out else found[0:1]
    places = [shown(root, config) for root in roots] if tasks else []
    if sources := [shown(file, config) for file in task_files(config)]:
        found.append("tasks made in code")
        places += sources
    where = " ".join(places)
    if not found:
        return None
    listing = "to list them, as in an editor: rollout_run = true in the ini file; " if config.option.collectonly else ""
    return f"rollouts: {' and '.join(found)} in {where}, not requested; {listing}to run: pytest {where}"


def shown(path: Path, config: pytest.Config) -> str:
    """Return a path relative to where pytest was called, if it is below that."""
    here = config.invocation_params.dir
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def ignore(path: Path, config: pytest.Config) -> bool | None:
    """Ignore task folders and what agents left."""
    left_out = path.is_dir() and (is_kept(path) or is_task_folder(path, roots_of(config)))
    return True if left_out else None


def is_kept(path: Path) -> bool:
    """Whether a folder holds what agents left, or is a link to such a folder."""
    return kept_folder_around(path) is not None if path.is_symlink() else is_kept_folder(path)


def directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector without tests for a task folder that a setting of pytest names; None for any other folder."""
    if not is_task_folder(path, roots_of(parent.config)):
        return None
    kind = RefusedFolder if settings_of_pytest(path) else InactiveTaskDirectory
    return kind.from_parent(parent, path=path)


class InactiveTaskDirectory(pytest.Directory):
    """A task folder in a session without rollouts: it contains no tests."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return ()
