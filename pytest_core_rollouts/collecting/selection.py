"""What a collection was to have, and who left out the rest of it. Gates must know both.

What the user left out on purpose needs no result: by `-k`, `-m`, `--deselect`, `--lf`, `--ignore`, `--rollout-task`, a
path or a node id. What another plugin or a conftest.py took out (the other shards of pytest-split, for example) stays
planned, so that no gate passes over it.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from pytest_core_rollouts.collecting.collect import RolloutItem, ids_key
from pytest_core_rollouts.options.settings import Settings, settings_key
from pytest_core_rollouts.tasks.folders import find_task, of_safe_name

_PYTESTS_OWN = frozenset(("mark", "main"))
"""pytest's plugins behind `-k`, `-m` and `--deselect`."""
_FILE = "collected.json"
"""The file that passes a worker's collection to its controller."""

found_key = pytest.StashKey[tuple[list[RolloutItem], list[RolloutItem]]]()

Why = Literal["left out", "gone", "missing"]


@dataclass(frozen=True)
class Collected:
    """What was collected. Agents are given by their slugs."""

    tasks: frozenset[str] = frozenset()
    """All tasks, also those without a selected rollout."""
    left_out: frozenset[tuple[str, str]] = frozenset()
    """Tasks and agents without a selected rollout."""
    taken_out: tuple[tuple[str, str, int], ...] = ()
    """Task, agent and sample of the rollouts that a plugin or a conftest.py took out."""

    def dump(self, folder: Path) -> None:
        """Write it for the controller, which collects nothing itself. Every worker has the same."""
        file = folder / _FILE
        if not file.exists():
            partial = folder / f"{_FILE}.{os.getpid()}"
            partial.write_text(json.dumps({name: sorted(value) for name, value in asdict(self).items()}))
            partial.replace(file)

    @classmethod
    def load(cls, folder: Path) -> Collected:
        """Read what a worker wrote."""
        data: dict[str, Any] = json.loads((folder / _FILE).read_text())
        left_out = frozenset((task, agent) for task, agent in data["left_out"])
        taken_out = tuple((task, agent, sample) for task, agent, sample in data["taken_out"])
        return cls(frozenset(data["tasks"]), left_out, taken_out)


NOTHING_LEFT_OUT = Collected()


def note_found(session: pytest.Session, found: Sequence[pytest.Item], kept: Sequence[pytest.Item]) -> None:
    """Remember what was found, and what of it neither remains nor was left out by pytest's own options."""
    remaining = set(kept)
    removed = [item for item in found if item not in remaining]
    rollouts = [item for item in found if isinstance(item, RolloutItem)]
    if removed:
        _deselect(session, removed)
    session.config.stash[found_key] = rollouts, [item for item in removed if isinstance(item, RolloutItem)]


def _deselect(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Remove from `items` what `-k`, `-m` and `--deselect` leave out, without reporting it once more."""
    config = session.config
    hook = config.hook.pytest_collection_modifyitems
    others = [impl.plugin for impl in hook.get_hookimpls() if impl.plugin_name not in _PYTESTS_OWN]
    call = config.pluginmanager.subset_hook_caller(hook.name, others)
    call(session=session, config=_Unreported(config), items=items)


class _Unreported:
    """A config with whose hooks nobody learns of a deselection."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.hook = SimpleNamespace(pytest_deselected=lambda items: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def collected(session: pytest.Session) -> Collected:
    """Return what was collected. For the end of the collection; it forgets the items that were left out."""
    found, taken_out = session.config.stash.get(found_key, ([], []))
    session.config.stash[found_key] = [], []
    taken_out = [item for item in taken_out if not item.is_skipped]
    there = {_pair(item) for item in (*session.items, *taken_out) if isinstance(item, RolloutItem)}
    places: dict[str, Path] = session.config.stash.setdefault(ids_key, {})
    return Collected(
        tasks=frozenset(places),
        left_out=frozenset(map(_pair, found)) - there,
        taken_out=tuple((*_pair(item), item.sample) for item in taken_out),
    )


def _pair(item: RolloutItem) -> tuple[str, str]:
    return item.task.id, item.agent.slug


# ---- tasks of a baseline without a selected rollout


def why_absent(config: pytest.Config, found: Collected, task: str, agents: Iterable[str]) -> Why:
    """Return why no rollout of a task by these agents was selected."""
    settings = config.stash[settings_key]
    if settings.tasks and task not in settings.tasks:
        return "left out"
    if any((task, agent) in found.left_out for agent in agents):
        return "left out"
    folder = find_task(task, settings.roots, config.rootpath)
    if folder is None and task not in found.tasks:
        return "gone"
    if folder is not None and _is_left_out(folder, config):
        return "left out"
    return "left out" if task in found.tasks and _is_in_replay(task, settings) else "missing"


def _is_in_replay(task: str, settings: Settings) -> bool:
    """Whether the run has rollouts of a collected task: then node ids on the command line select among them."""
    return settings.replay is None or task in settings.replay.rows


def _is_left_out(folder: Path, config: pytest.Config) -> bool:
    """Whether the command line leaves out a task's folder."""
    if config.getoption("lf", False):
        return True
    here = config.invocation_params.dir
    places = {*_places(folder), *_places(folder.resolve())}
    ignored = [here / path for path in config.getoption("ignore") or ()]
    patterns = [str(here / pattern) for pattern in config.getoption("ignore_glob") or ()]
    if places.intersection(ignored) or any(fnmatch.fnmatch(str(one), two) for one in places for two in patterns):
        return True
    named = [here / of_safe_name(arg) for arg in config.args if "::" not in arg]  # a node id names single rollouts
    return not places.intersection(Path(os.path.normpath(path)) for path in (*named, *(one.resolve() for one in named)))


def _places(folder: Path) -> tuple[Path, ...]:
    return folder / "instruction.md", folder, *folder.parents
