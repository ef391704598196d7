"""Finds the files that make tasks in code, without calling their hooks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

HOOK: Final = "pytest_rollout_tasks"
MADE_ID: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
"""Valid ids of tasks made in code: node ids and `-k` take them unchanged."""


def files(config: pytest.Config) -> list[Path]:
    """Return the files that implement the hook, sorted."""
    return sorted({path for path, _ in _sources(config)})


def plugin_of(config: pytest.Config, path: Path) -> object | None:
    """Return the plugin that implements the hook in this file; None for any other file."""
    return next((plugin for source, plugin in _sources(config) if source == path), None)


def keep_from_import(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Keep a conftest.py that is named on the command line from being imported again as a test module."""
    if path.name != "conftest.py" or plugin_of(parent.config, path) is None:
        return None
    return NoTests.from_parent(parent, path=path)


def _sources(config: pytest.Config) -> list[tuple[Path, object]]:
    return [(_file(impl.plugin, impl.function), impl.plugin) for impl in getattr(config.hook, HOOK).get_hookimpls()]


def _file(plugin: object, function: object) -> Path:
    """Return the file of a plugin: its own if it is a module, else the one that defines its hook."""
    return Path(getattr(plugin, "__file__", None) or inspect.getfile(inspect.unwrap(function)))  # type: ignore[arg-type]


class NoTests(pytest.File):
    """A file in which there are no tests."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return ()
