"""Task folders as pytest nodes: TaskDirectory → TaskFile → RolloutItem."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_core_rollouts.collecting.explain import explain_fault, explain_wrong
from pytest_core_rollouts.collecting.inactive import is_kept
from pytest_core_rollouts.collecting.task_data import RefusedFolder, problem_of_folder
from pytest_core_rollouts.engine.preflight import why_skipped
from pytest_core_rollouts.options.activation import own_markers_key
from pytest_core_rollouts.options.settings import Settings, settings_key
from pytest_core_rollouts.records.why import shown_why
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.folders import (
    is_task,
    is_task_folder,
    leads_back,
    norecurse_pattern,
    root_of,
    safe_name,
    settings_of_pytest,
    task_id,
)
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.matrix import Agent
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import UNFINISHED
from pytest_core_rollouts.text import name_problem, one_line, printable

left_out_key = pytest.StashKey[dict[Path, str]]()
"""Folders with tasks that pytest leaves out, and why."""
ids_key = pytest.StashKey[dict[str, Path]]()
tags_key = pytest.StashKey[set[str]]()
NOT_NEEDED = "not needed, the gates are decided"
"""Why a rollout is skipped in a run that stops early."""
UNSELECTABLE = ("[", "::", "\\")
"""In a task's path, these keep pytest from selecting it, and `--lf` from running it again."""
CollectorT = TypeVar("CollectorT", "TaskDirectory", "TaskFile", RefusedFolder)
run_key = pytest.StashKey["ResultSource"]()


class ResultSource:
    """Where items get their results. The run of this process is in `config.stash[run_key]`."""

    def outcome_of(self, item: RolloutItem) -> Outcome:
        """Wait for the item's rollout and return its outcome. Raises RunEnded if it will never come."""
        raise NotImplementedError

    def masked(self, text: str) -> str:
        """Return the text without secrets."""
        raise NotImplementedError


class WrongAnswer(AssertionError):
    """The rollout was graded and its reward is below 1."""


class RolloutFault(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # pytest has no public name for it
    """The rollout has no reward: pytest's ERROR."""

    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


def _marker_name(line: str) -> str:
    return line.split(":")[0].split("(")[0].strip()


# ---- which folders are tasks


def ignore(path: Path, config: pytest.Config) -> bool | None:
    """Leave out what agents left, and links to tasks that are collected where they are."""
    if is_kept(path):
        return True
    if path.is_symlink() and path.is_dir() and leads_back(path, config.stash[settings_key].roots):
        warn(f"{path} is left out: it is a link to {path.resolve()}, which is collected there")
        return True
    roots = config.stash[settings_key].roots
    if path not in roots and root_of(path, roots) is not None and path.is_dir():
        pattern = norecurse_pattern([path.name], config.getini("norecursedirs"))
        if pattern is not None and any(is_task(found.parent) for found in path.rglob("instruction.md")):
            config.stash.setdefault(left_out_key, {})[path] = why = f"the ini key norecursedirs has {pattern}"
            warn(f"{path} is left out: {why}; rename the folder")
    return None


def directory(path: Path, parent: pytest.Collector) -> TaskDirectory | RefusedFolder | None:
    """Return a collector for a task folder, or for a folder on the way to tasks that is an error; else None."""
    roots = parent.config.stash[settings_key].roots
    is_task = is_task_folder(path, roots)
    named_badly = (is_task or root_of(path, roots) is not None) and problem_of_folder(path) is not None
    if named_badly or (is_task and settings_of_pytest(path)):
        return from_parent(RefusedFolder, parent, path)
    return from_parent(TaskDirectory, parent, path) if is_task else None


def warn(text: str) -> None:
    """Show a text in pytest's summary of warnings."""
    warnings.warn(pytest.PytestCollectionWarning(printable(text)), stacklevel=3)


# ---- nodes


def from_parent(kind: type[CollectorT], parent: pytest.Collector, path: Path) -> CollectorT:
    """Make a collector with a name and node id that are safe to print and to send, for any name of a folder.

    Outside of the root directory, pytest makes node ids relative to what was named on the command line: two tasks would
    share one, and a controller could not find either. So there, too, they are relative to the root directory.
    """
    node: CollectorT = kind.from_parent(parent, path=path)
    inside = path.is_relative_to(parent.config.rootpath)
    node_id = node.nodeid if inside else Path(os.path.relpath(path, parent.config.rootpath)).as_posix()
    names: dict[str, Any] = {"name": safe_name(node.name), "nodeid": safe_name(node_id)}
    return node if names == {"name": node.name, "nodeid": node.nodeid} else kind.from_parent(parent, path=path, **names)


class TaskDirectory(pytest.Directory):
    """A task folder. Recursion ends here, because everything else in it is data for the sandbox."""

    def collect(self) -> Iterator[pytest.Collector]:
        yield from_parent(TaskFile, self, self.path / "instruction.md")


class TaskCollector(pytest.File):
    """A file whose items are rollouts."""

    def items_of(self, task: Task, place: Path, prefix: str = "") -> Iterator[RolloutItem]:
        """Yield the task's rollouts, of every agent. `place`: where the task is; an id belongs to one place."""
        settings = self.config.stash[settings_key]
        self._claim_id(task.id, place)
        where = f"{place}: {task.id}" if task.path is None else str(task.path / "task.yaml")
        if task.env and (problem := settings.env_problem(task)) is not None:
            raise self.error(f"{where}: {problem}")
        if task.tags:
            self._register_tags(task, where)
        for warning in task.warnings:
            warn(warning)
        for agent, sample in settings.rollouts_of(task):
            name = f"{prefix}{agent.slug}-{sample}"
            yield RolloutItem.from_parent(self, name=name, task=task, agent=agent, sample=sample)

    def _claim_id(self, name: str, place: Path) -> None:
        """Raise if a task elsewhere has this name, because their rollouts would share ids."""
        first = self.config.stash.setdefault(ids_key, {}).setdefault(name, place)
        if first != place:
            raise self.error(f"{place}: task id {name!r} is already used by {first}; rename one of the tasks")

    def _register_tags(self, task: Task, where: str) -> None:
        """Make the tags markers. The project may have registered them itself, as `--strict-markers` asks."""
        own = self.config.stash[own_markers_key]
        ours = self.config.stash.setdefault(tags_key, {_marker_name(line) for line in own})
        new = [tag for tag in task.tags if tag not in ours]
        markers = self.config.getini("markers") if new else ()  # there may be many, so read them only for a new tag
        registered = {_marker_name(line) for line in markers} - ours
        for tag in new:
            if tag in registered:  # by a plugin, for which it means something
                raise self.error(f"{where}: tags: {tag!r} is a pytest marker and can't be a tag; choose another name")
            ours.add(tag)
            self.config.addinivalue_line("markers", f"{tag}: tag of a task")

    def error(self, message: str) -> pytest.Collector.CollectError:
        """Return a collection error with a printable message."""
        return self.CollectError(printable(message))


class TaskFile(TaskCollector):
    """A task: its rollouts are its items."""

    def collect(self) -> Iterator[pytest.Item]:
        settings = self.config.stash[settings_key]
        folder = self.path.parent
        name = task_id(folder, settings.roots, self.config.rootpath)
        if (problem := name_problem(name)) is not None:
            raise self.error(f"{folder}: {problem}")
        if settings.tasks and name not in settings.tasks:
            return
        path = os.path.relpath(folder, self.config.rootpath)
        if found := [mark for mark in UNSELECTABLE if mark in path]:
            raise self.error(f"{folder}: pytest can't select a path that contains {found[0]}; rename it")
        try:
            task = load_task(folder, name)
        except TaskError as error:
            raise self.error(str(error)) from None
        if run_key in self.config.stash and UNFINISHED in f"{task.instruction}{task.expected}":
            command = f"python -m pytest_core_rollouts check {name}"
            raise self.error(f"{folder}: unfinished, it still contains {UNFINISHED}; to find it, run {command}")
        yield from self.items_of(task, folder)


class RolloutItem(pytest.Item):
    """One rollout: a task, an agent, a sample."""

    def __init__(self, *, task: Task, agent: Agent, sample: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task
        self.agent = agent
        self.sample = sample
        self.outcome: Outcome | None = None
        self._delivered: Outcome | None = None
        self.not_needed = False
        """Whether the run's gates are decided without it."""
        self.extra_keyword_matches.add(task.id)
        self.add_marker(
            pytest.mark.rollout(
                task=task.id, harness=agent.harness, model=agent.model, agent=agent.name or agent.slug, sample=sample
            )
        )
        for tag in task.tags:
            self.add_marker(tag)
        if self.config.pluginmanager.hasplugin("timeout"):  # pytest-timeout: a rollout has its own limit
            self.add_marker(pytest.mark.timeout(0))
        if (reason := self._skip_reason()) is not None:
            self.add_marker(pytest.mark.skip(reason=one_line(reason)))
        if (xfail := task.xfail) is not None and xfail.applies_to(agent.harness, agent.model, agent.name):
            self.add_marker(expected_to_fail(one_line(xfail.reason)))

    @property
    def settings(self) -> Settings:
        return self.config.stash[settings_key]

    def _skip_reason(self) -> str | None:
        settings = self.settings
        if settings.replay is not None:
            return self.task.skip
        network = settings.network.resolve(self.task.network)
        return why_skipped(self.task, self.agent, embedded=settings.embedded, network=network)

    @property
    def is_skipped(self) -> bool:
        """Whether it is skipped unconditionally."""
        return any(mark.name == "skip" for mark in self.iter_markers())

    @property
    def expected_failure(self) -> str | None:
        """Why the item is unconditionally expected to fail; None if it is not."""
        reasons = [str(mark.kwargs.get("reason", "")) for mark in self.iter_markers("xfail") if not mark.args]
        return (reasons[0] or "xfail") if reasons else None

    @property
    def next_attempt(self) -> int:
        """The number of the next attempt. A fault may be run again, for example by pytest-rerunfailures."""
        return 1 if self.outcome is None else self.outcome.record.attempt + 1

    @property
    def starts_at_once(self) -> bool:
        """Whether the rollout may start before pytest comes to the item: only if no marker can prevent it."""
        return not any(
            mark.name in ("skip", "skipif") or (mark.name == "xfail" and not mark.kwargs.get("run", True))
            for mark in self.iter_markers()
        )

    def deliver(self, outcome: Outcome) -> None:
        """Give the item its outcome before its setup."""
        self._delivered = outcome

    def setup(self) -> None:
        """Wait for the rollout. Without a reward, the item is pytest's ERROR."""
        if self.config.getoption("setuponly", False) or self.config.getoption("setupplan", False):
            return
        if self.not_needed:
            pytest.skip(NOT_NEEDED)
        if self._delivered is not None:
            self.outcome, self._delivered = self._delivered, None
        elif self.outcome is None or self.outcome.record.reward is None:
            self.outcome = self.config.stash[run_key].outcome_of(self)
        outcome = self.outcome
        record = outcome.record
        self.user_properties += [("status", record.status), ("reward", record.reward), ("solved", record.solved)]
        masked = self.config.stash[run_key].masked
        if (why := shown_why(record, hide_expected=self.settings.hide_expected)) is not None:
            self.user_properties.append(("why", printable(masked(why))))
        if (tokens := record.tokens) is not None:
            self.user_properties.append(("tokens", tokens))
        if record.session_id is not None:
            self.user_properties.append(("session_id", printable(record.session_id)))
        self.user_properties += [("rollout_warning", printable(masked(text))) for text in outcome.warnings]
        if outcome.reused:
            self.user_properties.append(("reused", True))
        if outcome.fatal is not None:
            self.session.shouldstop = printable(masked(outcome.fatal))
        if record.reward is None and self.settings.allow_errors is None:
            raise RolloutFault(masked(explain_fault(record)))

    def runtest(self) -> None:
        """Assert the reward, unless a gate judges it."""
        assert self.outcome is not None, "a rollout's setup waits for its record"
        record = self.outcome.record
        if record.reward is None:  # allowed by --rollout-allow-errors: neither a failure nor a result
            pytest.skip(self.config.stash[run_key].masked(explain_fault(record)))
        asserts = not self.settings.soft or self.get_closest_marker("xfail") is not None
        if asserts and record.reward < self.task.pass_threshold:
            verbosity = self.config.get_verbosity()
            text = explain_wrong(record, whole=verbosity > 1, hide_expected=self.settings.hide_expected)
            raise WrongAnswer(self.config.stash[run_key].masked(text))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        if isinstance(excinfo.value, WrongAnswer):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        return Path(safe_name(str(self.path))), 0, f"{self.task.id} {self.name}"


def keep_one_of_each(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop repeated rollouts: with --keep-duplicates, a task that is named twice is collected twice."""
    seen: set[str] = set()
    kept: list[pytest.Item] = []
    repeated: list[pytest.Item] = []
    for item in items:
        again = isinstance(item, RolloutItem) and item.nodeid in seen
        (repeated if again else kept).append(item)
        seen.add(item.nodeid)
    if repeated:
        config.hook.pytest_deselected(items=repeated)
        items[:] = kept


def expected_to_fail(reason: str) -> pytest.MarkDecorator:
    """Return an xfail that only applies to wrong answers, and does not fail if a sample is solved."""
    return pytest.mark.xfail(reason=reason, raises=WrongAnswer, strict=False)


def narrow_xfails(item: pytest.Item) -> None:
    """Narrow xfails of other plugins to wrong answers: a plain one would hide faults."""
    if not isinstance(item, RolloutItem):
        return
    for mark in list(item.iter_markers("xfail")):
        if mark.kwargs.get("raises") is not WrongAnswer:
            narrowed = {**mark.kwargs, "raises": WrongAnswer, "strict": False}
            item.own_markers[:] = [own for own in item.own_markers if own is not mark]
            item.add_marker(pytest.mark.xfail(*mark.args, **narrowed), append=False)
