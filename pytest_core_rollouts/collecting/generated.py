"""Tasks made in code: the hook `pytest_rollout_tasks`, and its tasks as items of the file that implements it.

An item's name is the task's id, a colon, and the usual name of a rollout: `gsm8k/17:codex-default-0`. One
collector holds all of a file's tasks, because a collector for each would cost more than its items.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.collecting.collect import TaskCollector
from pytest_core_rollouts.options.activation import HOOK, MADE_ID, plugin_of, task_files
from pytest_core_rollouts.options.settings import settings_key
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.folders import find_task
from pytest_core_rollouts.tasks.task import Task


def collect_file(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for a file that makes tasks; None for any other."""
    return None if plugin_of(parent.config, path) is None else GeneratedTasks.from_parent(parent, path=path)


def find_generated(config: pytest.Config, path: Path, task_id: str) -> Task:
    """Return the task with this id. Raises TaskError if the file does not make it."""
    for task in make_tasks(config, path):
        if task.id == task_id:
            return task
    raise TaskError(f"{path}: {HOOK} made no task {task_id!r} this time")


def make_tasks(config: pytest.Config, path: Path) -> Iterator[Task]:
    """Yield the tasks that the file's hook makes. Raises TaskError for an invalid id, or if the hook raises."""
    plugin = plugin_of(config, path)
    others = [impl.plugin for impl in getattr(config.hook, HOOK).get_hookimpls() if impl.plugin is not plugin]
    try:
        for tasks in config.pluginmanager.subset_hook_caller(HOOK, others)(config=config):
            for task in tasks:
                _check(task)
                yield task
    except (Exception, pytest.fail.Exception) as error:
        raise TaskError(f"{path}: {HOOK}: {_describe_error(error, path)}") from error


def _check(task: Any) -> None:
    if not isinstance(task, Task):
        raise TypeError(f"expected a Task, got {task!r:.200}")
    if not MADE_ID.fullmatch(task.id):
        advice = "use letters, digits, `_`, `.` and `-`, with `/` between parts"
        raise ValueError(f"invalid task id {task.id!r:.200}; {advice}")


def _describe_error(error: BaseException, path: Path) -> str:
    """Return the exception as text, with the line of the file that it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


class GeneratedTasks(TaskCollector):
    """All tasks of one file."""

    def collect(self) -> Iterator[pytest.Item]:
        wanted = self.config.stash[settings_key].tasks
        seen: set[str] = set()
        try:
            for task in make_tasks(self.config, self.path):
                if task.id in seen:
                    raise TaskError(f"{self.path}: {HOOK}: duplicate task id {task.id!r}; give each task its own id")
                seen.add(task.id)
                if not wanted or task.id in wanted:
                    yield from self.items_of(task, self.path, f"{task.id}:")
        except TaskError as error:
            raise self.error(str(error)) from None
        self._check_wanted(wanted - seen)

    def _check_wanted(self, missing: frozenset[str]) -> None:
        """Raise CollectError for an unknown id of `--rollout-task`, if this is the only file that makes tasks."""
        settings, rootpath = self.config.stash[settings_key], self.config.rootpath
        unknown = sorted(one for one in missing if find_task(one, settings.roots, rootpath) is None)
        if unknown and task_files(self.config) == [self.path]:
            raise self.error(f"--rollout-task: {self.path} makes no task {unknown[0]!r}")
