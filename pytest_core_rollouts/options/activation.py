"""Where tasks are, and whether rollouts are requested.

Every run of pytest in any project imports this module, so it imports little. Files that make tasks in code are found
without calling their hooks.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from pytest_core_rollouts.options.declared import OPTIONS
from pytest_core_rollouts.tasks.folders import fs_name, names_tasks

IN_WORKER: Final = "rollouts_requested"
"""The key in `workerinput` under which an xdist worker finds what its controller decided."""

HOOK: Final = "pytest_rollout_tasks"
MADE_ID: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
"""Valid ids of tasks made in code: node ids and `-k` take them unchanged."""

requested_key = pytest.StashKey[bool]()

own_markers_key = pytest.StashKey[tuple[str, ...]]()
"""The lines of the ini key `markers` that the project wrote itself."""


def rollouts_requested(config: pytest.Config) -> bool:
    """Return True if rollouts are requested by an option, by the ini file, or by a path that leads to tasks."""
    if requested_key not in config.stash:
        config.stash[requested_key] = _decide(config)
    return config.stash[requested_key]


def any_option(config: pytest.Config) -> bool:
    """Return True if one of the plugin's options was given; ini keys do not count."""
    return any(config.getoption(option.dest) is not None for option in OPTIONS)


def roots_of(config: pytest.Config) -> tuple[Path, ...]:
    """Return the folders that hold tasks, whether they exist or not."""
    given: list[Path] | None = config.getini("rollout_tasks")
    roots = map(str, given or (config.rootpath / "tasks",))
    return tuple(dict.fromkeys(Path(os.path.normpath(fs_name(root))) for root in roots))


def _decide(config: pytest.Config) -> bool:
    if hasattr(config, "workerinput"):
        return bool(config.workerinput.get(IN_WORKER))  # the controller has decided
    if any_option(config) or config.getini("rollout_run"):
        return True
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return False
    here, roots = config.invocation_params.dir, roots_of(config)
    named = [Path(os.path.normpath(here / arg.split("::")[0])) for arg in config.args]
    return any(names_tasks(path, roots) or plugin_of(config, path) is not None for path in named)


# ---- files that make tasks in code


def task_files(config: pytest.Config) -> list[Path]:
    """Return the files that implement the hook, sorted."""
    return sorted({path for path, _ in _task_sources(config)})


def plugin_of(config: pytest.Config, path: Path) -> object | None:
    """Return the plugin that implements the hook in this file; None for any other file."""
    return next((plugin for source, plugin in _task_sources(config) if source == path), None)


def keep_from_import(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Keep a conftest.py that is named on the command line from being imported again as a test module."""
    if path.name != "conftest.py" or plugin_of(parent.config, path) is None:
        return None
    return NoTests.from_parent(parent, path=path)


def _task_sources(config: pytest.Config) -> list[tuple[Path, object]]:
    return [(_file_of(impl.plugin, impl.function), impl.plugin) for impl in getattr(config.hook, HOOK).get_hookimpls()]


def _file_of(plugin: object, function: object) -> Path:
    """Return the file of a plugin: its own if it is a module, else the one that defines its hook."""
    return Path(getattr(plugin, "__file__", None) or inspect.getfile(inspect.unwrap(function)))  # type: ignore[arg-type]


class NoTests(pytest.File):
    """A file in which there are no tests."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return ()
