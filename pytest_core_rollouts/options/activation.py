"""Whether rollouts are requested. Every run of pytest in any project imports this module, so it imports little."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from pytest_core_rollouts.options import task_sources
from pytest_core_rollouts.options.declared import OPTIONS
from pytest_core_rollouts.tasks.folders import fs_name, names_tasks

IN_WORKER: Final = "rollouts_requested"
"""The key in `workerinput` under which an xdist worker finds what its controller decided."""

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
    return any(names_tasks(path, roots) or task_sources.plugin_of(config, path) is not None for path in named)
