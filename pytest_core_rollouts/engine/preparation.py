"""What rollouts need before their Sessions: agents that the Core can run, keys, masked secrets, hidden places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_core_rollouts.embedded.hidden import Places, find_places, hide, merge_places
from pytest_core_rollouts.engine.core_access import CoreError, check_mounts
from pytest_core_rollouts.engine.parts import Parts
from pytest_core_rollouts.engine.preflight import (
    check_agent,
    check_instruction,
    check_token_ids,
    model_key,
    why_skipped,
)
from pytest_core_rollouts.tasks.harness_file import HarnessFile
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task import Task


class Preparation:
    """Checks rollouts, starts or reaches their Core, and keeps what they bring until they have finished.

    Safe to use from several threads.
    """

    def __init__(self, parts: Parts) -> None:
        self.keys: dict[str, str] = {}
        """Keys of agents' models, by the id of each rollout that has not finished."""
        self._parts = parts
        self._hidden: set[str] = set()
        self._show_again: list[Callable[[], None]] = []
        """Each ends what a run hides from sandboxes."""
        self._lock = threading.RLock()
        self._checked: set[str] = set()
        """Slugs of agents that this Core can run."""
        self._prepared: set[str] = set()
        """Digests of agents for which the Core is known to be ready."""
        self._harnesses: dict[str, HarnessFile] = {}
        """Harness files of all agents so far, by digest."""
        self._private: set[str] = set()
        """Places that no harness may mount."""
        self._captured_without: set[str] = set()
        """Secrets that captures don't show."""
        if parts.core.api_key:
            parts.store.mask([parts.core.api_key])

    def prepare(self, pairs: Sequence[tuple[Task | None, Agent]], places: Places | None = None) -> None:
        """Check everything that every rollout needs, and start or reach the Core, before the first Session.

        `pairs` of a task (None if it is not known here) and an agent. `places`: what sandboxes must hide, in addition
        to the tasks and to the JSONL. Raises MatrixError, CoreError or RecordsError. Repeating it costs nothing.
        """
        with self._lock:
            self._prepare(pairs, places)

    def resolve(self, rollout: Rollout) -> Rollout:
        """Return the rollout with its agent as the Core runs it. A replay runs none."""
        agent = rollout.agent if self._parts.replay is not None else self._parts.core.dialect.resolve(rollout.agent)
        return rollout if agent is rollout.agent else replace(rollout, agent=agent)

    def require_runnable(self, rollout: Rollout) -> None:
        """Raise MatrixError or ValueError if this Core can't run the rollout."""
        if self._parts.replay is not None:
            return
        core = self._parts.core
        if rollout.agent.slug not in self._checked:
            check_agent(rollout.agent, embedded=core.is_ours, dialect=core.dialect)
            self._checked.add(rollout.agent.slug)
        reason = why_skipped(rollout.task, rollout.agent, embedded=core.is_ours, network=rollout.network)
        if reason is not None:
            raise ValueError(f"task {rollout.task.id}: {reason}")

    def learn(self, rollouts: Sequence[Rollout]) -> None:
        """Note what new rollouts bring: keys, secrets, and what sandboxes must hide."""
        secrets: set[str] = set()
        if self._parts.replay is None:
            for rollout in rollouts:
                if (key := model_key(rollout.agent)) is not None:
                    self.keys[rollout.rollout_id] = key
                    secrets.add(key)
        tasks = list({id(rollout.task): rollout.task for rollout in rollouts}.values())
        secrets.update(secret for task in tasks for secret in task.secrets)
        self._parts.store.mask(secrets)
        if self._parts.prepares:
            self.hide(self._places(tasks))

    def hide(self, places: Places) -> None:
        """Hide these places from all sandboxes until `show_again`: graders may run an agent's code in one."""
        merged = merge_places([*self._hidden, *places.all])  # most tasks are in a folder that is hidden already
        if new := set(merged) - self._hidden:
            self._hidden = set(merged)
            self._show_again.append(hide(new))

    def show_again(self) -> None:
        """Hide nothing more."""
        for show_again in self._show_again:
            show_again()

    def _prepare(self, pairs: Sequence[tuple[Task | None, Agent]], places: Places | None) -> None:
        core, store = self._parts.core, self._parts.store
        agents = list({agent.slug: agent for _, agent in pairs}.values())
        core.require()
        keys = set()
        for agent in agents:
            check_agent(agent, embedded=core.is_ours, dialect=core.dialect)
            if core.embedded is not None and core.embedded.capture_tokens:
                check_token_ids(agent)
            if (key := model_key(agent)) is not None:
                keys.add(key)
        for task, agent in pairs:
            if task is not None:
                check_instruction(task, agent)
        tasks = list({task.id: task for task, _ in pairs if task is not None}.values())
        secrets = {secret for task in tasks for secret in task.secrets}
        store.mask(secrets)
        if not core.is_ours:
            core.reach()
            return
        if core.started and core.embedded is not None and core.embedded.capture and secrets - self._captured_without:
            # The Core's process has the secrets that it masks in captures from its start.
            raise CoreError(
                "capture: the secrets of these tasks were not known when the Core started, so captures would show "
                "them; submit these tasks first, or leave out `capture`"
            )
        places = places or self._places(tasks)
        self._check_mounts(agents, places)
        if new := [agent for agent in agents if agent.digest not in self._prepared]:
            core.start(new, places=places, secrets=[*secrets, *keys])
            store.mask([core.api_key] if core.api_key else [])
            self._captured_without |= secrets
            self._prepared.update(agent.digest for agent in new)

    def _check_mounts(self, agents: Sequence[Agent], places: Places) -> None:
        """Raise CoreError if a harness, of these agents or of earlier ones, mounts one of the places, or earlier ones.

        The Core only knows what was private when it started, and an engine may get further tasks.
        """
        self._harnesses |= {agent.digest: agent.harness_file for agent in agents if agent.harness_file is not None}
        self._private.update(places.private)
        if self._harnesses:
            check_mounts(self._harnesses.values(), Places(places.hidden, tuple(self._private)))

    def _places(self, tasks: Sequence[Task]) -> Places:
        out = self._parts.store.path
        embedded = self._parts.core.embedded
        folders = [embedded.capture] if embedded is not None and embedded.capture is not None else []
        paths = [task.path for task in tasks if task.path is not None]
        return find_places([], tasks=paths, files=[out] if out is not None else [], folders=folders)
