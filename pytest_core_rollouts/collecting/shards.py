"""A run in several shards, such as the jobs of a CI matrix: which shard runs which rollouts.

All shards collect the same items, and each keeps its own part. A group, which is the samples of one task by one agent,
is never divided. The items of the other shards stay planned, so no gate passes without them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.options.settings import Settings, settings_key
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.records.rows import effective_rows, read_records

GroupKey = tuple[str, str]
"""A group's task id and its agent's slug."""

split_key = pytest.StashKey["Split"]()


@dataclass(frozen=True)
class Split:
    """Which shard, from 1, runs each group."""

    shards: Mapping[GroupKey, int]
    digest: str
    """SHA-256 (hex) of everything that the split depends on, and of its result. Equal in all shards of a run."""


def split(groups: Mapping[GroupKey, Iterable[int]], of: int, seconds: Mapping[GroupKey, float]) -> Split:
    """Divide groups, given by their samples, among `of` shards whose rollouts take about the same time.

    `seconds`: how long a rollout of a group took in an earlier run; a group that is not in it counts as an average one.
    The longest group is assigned first, each to the shard with the least work so far. The result does not depend on the
    order of `groups`.
    """
    average = sum(seconds.values()) / len(seconds) if seconds else 1.0
    samples = {key: sorted(numbers) for key, numbers in groups.items()}
    work = {key: round(1000 * seconds.get(key, average)) * len(numbers) for key, numbers in samples.items()}
    total = [0] * of
    shards: dict[GroupKey, int] = {}
    for key in sorted(samples, key=lambda key: (-work[key], key)):
        least = total.index(min(total))
        total[least] += work[key]
        shards[key] = least + 1
    everything = [of, sorted((*key, samples[key], shard) for key, shard in shards.items())]
    return Split(shards, hashlib.sha256(json.dumps(everything).encode()).hexdigest())


def keep_shard(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Remove the rollouts of other shards from `items`. Raises pytest.UsageError.

    Other tests run in the first shard only.
    """
    settings: Settings = session.config.stash[settings_key]
    if settings.shard is None:
        return
    number, of = settings.shard
    groups: dict[GroupKey, list[int]] = {}
    for item in items:
        if isinstance(item, RolloutItem):
            groups.setdefault(_key(item), []).append(item.sample)
    seconds = {} if settings.plan_from is None else _seconds(settings.plan_from)
    session.config.stash[split_key] = found = split(groups, of, seconds)
    mine = [item for item in items if (found.shards[_key(item)] if isinstance(item, RolloutItem) else 1) == number]
    kept = set(mine)
    session.config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = mine


def _key(item: RolloutItem) -> GroupKey:
    return item.task.id, item.agent.slug


def _seconds(path: Path) -> dict[GroupKey, float]:
    """Return the mean duration of a rollout of each group in an earlier run. Raises pytest.UsageError."""
    durations: dict[GroupKey, list[float]] = {}
    try:
        for _, record in effective_rows(read_records(path, items=False)).values():
            if record.graded and record.duration_s is not None:
                durations.setdefault((record.task, str(record.agent["slug"])), []).append(record.duration_s)
    except RecordsError as error:
        raise pytest.UsageError(f"--rollout-plan-from: {error}") from None
    return {key: sum(found) / len(found) for key, found in durations.items()}
