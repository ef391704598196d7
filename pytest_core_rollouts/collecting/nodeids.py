"""Reads rollouts from node ids: an xdist controller knows nothing else about the items that its workers collected."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from pytest_core_rollouts.options.activation import MADE_ID
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.tasks.folders import of_safe_name, task_id
from pytest_core_rollouts.tasks.matrix import Agent

INSTRUCTION = "instruction.md"


@dataclass(frozen=True)
class NamedRollout:
    """A rollout by its names; its task is not loaded."""

    node_id: str
    folder: Path
    """The task's folder, or the file that makes the task."""
    task_id: str
    agent: Agent
    sample: int


class NodeIds:
    """Reads the node ids of one session. Each task folder is read once."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._rootpath = config.rootpath
        self._roots = settings.roots
        self._agents = {agent.slug: agent for agent in settings.agents}
        self._tasks: dict[str, tuple[Path, str]] = {}
        self.read = lru_cache(maxsize=16)(self._read)  # pytest has ten calls for each item

    def _read(self, node_id: str) -> NamedRollout | None:
        """Return the rollout that a node id names; None if it names another test."""
        path, _, name = node_id.partition("::")
        name, made, of_made = name.partition("@")[0].partition(":")  # --dist loadgroup adds `@group`
        agent_slug, _, sample = (of_made if made else name).rpartition("-")
        agent = self._agents.get(agent_slug)
        if agent is None or not sample.isdecimal():
            return None
        if made:  # maybe only workers know its file: a controller reads no conftest.py further down
            source = Path(os.path.normpath(self._rootpath / path))
            known = path.endswith(".py") and MADE_ID.fullmatch(name)
            return NamedRollout(node_id, source, name, agent, int(sample)) if known else None
        if path.rpartition("/")[2] != INSTRUCTION:
            return None
        if path not in self._tasks:
            folder = Path(os.path.normpath(self._rootpath / of_safe_name(path))).parent
            self._tasks[path] = folder, task_id(folder, self._roots, self._rootpath)
        folder, task = self._tasks[path]
        return NamedRollout(node_id, folder, task, agent, int(sample))

    def read_all(self, node_ids: Iterable[str]) -> list[NamedRollout]:
        """Return the rollouts among the node ids."""
        return [named for node_id in node_ids if (named := self.read(node_id)) is not None]
