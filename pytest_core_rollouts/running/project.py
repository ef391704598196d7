"""The project around the tasks: its hooks, which grade, and its folders, which no sandbox may show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.embedded.hidden import Places, find_places
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.records.masking import Withheld, hide_note
from pytest_core_rollouts.tasks.grader_file import as_grade
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task


class ProjectGrading:
    """Grades each task by the hooks of its folder. `hide_expected`: notes and errors of the project's code are hidden.

    Hooks run in threads of this process, because they may use its state. A `grader.py` runs in a worker process.
    """

    def __init__(self, *, hide_expected: bool) -> None:
        self._hide_expected = hide_expected
        self._hooks: dict[str, Any] = {}
        """By task, the hooks of the conftest files that apply to it."""

    def register(self, item: RolloutItem) -> None:
        """Grade the item's task by the hooks of its folder from now on."""
        self._hooks[item.task.id] = item.ihook

    def uses_builtin_grading(self, task: Task) -> bool:
        """Whether only the built-in comparison grades the task, and no code of the project."""
        return task.grader is None and not self._hooks[task.id].pytest_rollout_grade.get_hookimpls()

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        """Grade by the project's hook, else by the task. Called in a thread, off the event loop."""
        if not self._hide_expected or self.uses_builtin_grading(task):
            return self._grade(task, answer, rollout)
        try:
            return hide_note(self._grade(task, answer, rollout))
        except GraderFailed as failure:
            raise failure.brief from None
        except BaseException as error:  # noqa: BLE001 - pytest.fail() raises no Exception, but a BaseException
            raise Withheld(error) from None

    def _grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        hooks = self._hooks[task.id]
        given = hooks.pytest_rollout_grade(task=task, answer=answer, rollout=rollout)
        return task.grade(answer, rollout) if given is None else as_grade(given, "pytest_rollout_grade")


def places_of_run(config: pytest.Config, settings: Settings, out: Path, tasks: Iterable[Task]) -> Places:
    """Return the paths that sandboxes must hide in a run of these tasks that writes `out`."""
    xml = config.getoption("xmlpath", None)  # of --junitxml, which holds failure texts
    files = [out, settings.report, settings.html, settings.baseline, Path(xml) if xml else None]
    files += [source.path for source in (settings.replay, settings.resume) if source is not None]
    folders = [settings.capture]
    if settings.out is None and settings.resume is None:
        folders.append(out.parent)  # runs/, which only contains results
    return find_places(
        project_folders(config),
        tasks=[*settings.roots, *(task.path for task in tasks if task.path is not None)],
        files=filter(None, files),
        folders=filter(None, folders),
    )


def project_folders(config: pytest.Config) -> list[Path]:
    """Return the folders of the project: those of pytest's rootdir, its ini file and its conftest files may differ.

    A conftest.py may contain a grader, and tasks made in code have their answers next to it.
    """
    folders = [config.rootpath, config.invocation_params.dir]
    if config.inipath is not None:
        folders.append(config.inipath.parent)
    plugins = config.pluginmanager.get_plugins()
    files = [Path(file) for plugin in plugins if isinstance(file := getattr(plugin, "__file__", None), str)]
    return [*folders, *(file.parent for file in files if file.name == "conftest.py")]
