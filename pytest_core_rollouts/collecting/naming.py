"""Many rollouts named in few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from pytest_core_rollouts.matrix import Agent

Chosen = tuple[str, Agent, int]
"""A rollout's task id, agent and sample."""


def name_rollouts(rollouts: Iterable[Chosen]) -> Iterator[str]:
    """Rollouts as lines such as `orders-json codex-default 0-3, 7`, one per task and agent."""
    ordered = sorted((task_id, agent.slug, sample) for task_id, agent, sample in rollouts)
    for (task_id, agent_slug), group in groupby(ordered, key=lambda one: one[:2]):
        yield f"{task_id} {agent_slug} {', '.join(_ranges([sample for _, _, sample in group]))}"


def _ranges(numbers: list[int]) -> Iterator[str]:
    """Ascending numbers as `0-3`, `7`."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in run]
        yield f"{first}-{rest[-1]}" if rest else str(first)
