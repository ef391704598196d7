"""Collects the tasks for `check` as a run does: with the ini file, conftest files and tasks made in code."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_core_rollouts.checking.checks import Finding
from pytest_core_rollouts.collecting.collect import RolloutItem, left_out_key
from pytest_core_rollouts.collecting.task_data import refusal, refused_key
from pytest_core_rollouts.embedded.hidden import Places, find_places
from pytest_core_rollouts.options.settings import settings_key
from pytest_core_rollouts.running.project import ProjectGrading, project_folders
from pytest_core_rollouts.tasks.folders import looks_like_task, settings_of_pytest, utf8_name
from pytest_core_rollouts.tasks.task import Task


@dataclass(eq=False)  # a plugin must be hashable
class Collected:
    """The tasks that pytest collected, by id, and what is needed to check them."""

    tasks: dict[str, Task] = field(default_factory=dict)
    grading: ProjectGrading = field(default_factory=lambda: ProjectGrading(hide_expected=False))
    faults: list[Finding] = field(default_factory=list)
    unusable: str | None = None
    """Why nothing can be checked."""
    rootpath: Path = field(default_factory=Path.cwd)
    env_listed: bool = False
    places: Places = field(default_factory=Places)
    """What no sandbox may show."""
    config: pytest.Config | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        self.config = early_config

    def find_settings_above(self, paths: Sequence[Path]) -> bool:
        """Whether a named path is in a task folder with settings of pytest. Each of these files is a fault."""
        folders = [folder for path in paths for folder in (path, *path.parents) if looks_like_task(folder)]
        return self._refuse([file for folder in folders for file in settings_of_pytest(folder)])

    def find_refused(self) -> bool:
        """Whether pytest refused to run because of its settings in task folders. Each of these files is a fault."""
        if self.config is None:
            return False
        files = self.config.stash.get(refused_key, None)
        return self._refuse(files or [])

    def _refuse(self, files: Sequence[Path]) -> bool:
        for file in dict.fromkeys(files):
            message = refusal(file).partition(": ")[2]
            self.faults.append(Finding("load", file.parent.name, message, file))
        return bool(files)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.rootpath = session.config.rootpath
        self.env_listed = session.config.getini("rollout_task_env") is not None
        for folder, why in session.config.stash.get(left_out_key, {}).items():
            message = f"{why}, so pytest leaves out this folder and the tasks in it; rename it"
            self.faults.append(Finding("load", folder.name, message, folder))
        for item in session.items:
            if isinstance(item, RolloutItem):
                self.tasks.setdefault(item.task.id, item.task)
                self.grading.register(item)
        paths = [task.path for task in self.tasks.values() if task.path is not None]
        project = project_folders(session.config)
        self.places = find_places(project, tasks=[*session.config.stash[settings_key].roots, *paths])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            place = report.nodeid.partition("::")[0]
            folder = place.removesuffix("/instruction.md")
            path, line, message = _placed(str(report.longrepr).strip(), self.rootpath / place)
            self.faults.append(Finding("load", folder, message, path, line))


def collect_tasks(wanted: Sequence[str]) -> Collected:
    """Return the tasks with these ids and paths; without any, all tasks."""
    paths = [name for name in wanted if Path(name).exists()]
    ids = [utf8_name(name) for name in wanted if name not in paths]
    collected = Collected()
    if collected.find_settings_above([Path(path).absolute() for path in paths] or [Path.cwd()]):
        return collected  # pytest would apply them before our plugin could refuse
    arguments = ["--collect-only", "-o", "addopts=", "-p", "no:cacheprovider", "--rollout-harness", "default"]
    arguments += ["--rollout-samples", "1", *(paths if not ids else ())]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main(arguments, plugins=[collected])
    if collected.find_refused():
        return collected
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED):
        collected.unusable = printed.getvalue().strip().removeprefix("ERROR: ") or f"pytest ended with {code!s}"
        return collected
    if ids:
        _keep(collected, set(ids), [Path(path).resolve() for path in paths])
    if not collected.tasks and not collected.faults and collected.unusable is None:
        collected.unusable = "no tasks found; name some, or make one: python -m pytest_core_rollouts new-task ID"
    return collected


def _keep(collected: Collected, ids: set[str], paths: list[Path]) -> None:
    """Keep only what was named: by its id, or by a path that contains it."""
    known = collected.tasks.keys() | {fault.task_id.rpartition("/")[2] for fault in collected.faults}
    if unknown := sorted(ids - known - {fault.task_id for fault in collected.faults}):
        collected.unusable = f"unknown task {unknown[0]!r}; pass a task's id, or a path that exists"
    for name, task in list(collected.tasks.items()):
        under = task.path is not None and any(task.path.resolve().is_relative_to(path) for path in paths)
        if name not in ids and not under:
            del collected.tasks[name]
    collected.faults = [
        fault
        for fault in collected.faults
        if any(fault.task_id == name or fault.task_id.endswith(f"/{name}") for name in ids)
    ]


def _placed(message: str, path: Path) -> tuple[Path, int, str]:
    """Return the file and the line that a message begins with, and the rest of it."""
    start, _, rest = message.partition(": ")
    name, _, line = start.rpartition(":")
    if line.isdecimal() and Path(name).is_absolute():
        return Path(name), int(line), rest
    if Path(start).is_absolute():
        found = re.search(r"\(line (\d+), column \d+\)", rest)  # in JSON
        return Path(start), int(found[1]) if found else 1, rest
    return path, 1, message
