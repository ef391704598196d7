"""Rows of a pretended run, as a JSONL would hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import count_planned

_STATUSES: dict[float | str | None, tuple[str, float | None]] = {
    "timeout": ("timeout", 0.0),
    "interrupted": ("cancelled", None),
    None: ("error", None),
}


def run(
    results: Mapping[str, Sequence[float | str | None]],
    *,
    harness: str = "codex",
    model: str = "default",
    samples: int | None = None,
    agents: int = 1,
    run_id: str = "r",
    **fields: Any,
) -> Iterator[RolloutRecord]:
    """One row for each sample: a reward, None for an error, "timeout" or "interrupted", or "not run" for no row at all.

    `samples` planned per task (default: as many as are given), by each of `agents` agents.
    """
    plan = count_planned(
        (str(agent), task)
        for agent in range(agents)
        for task, rewards in results.items()
        for _ in range(samples or len(rewards))
    )
    for task, rewards in results.items():
        for sample, result in enumerate(rewards):
            if result == "not run":
                continue
            status, reward = _STATUSES.get(result, ("completed", result))
            row: dict[str, Any] = {
                "rollout_id": f"{run_id}.{task}.{harness}.{model}.{fields.get('agent')}.{sample}",
                "task": task,
                "harness": harness,
                "model": model,
                "sample": sample,
                "status": status,
                "reward": reward,
                "error": "the run was interrupted" if result == "interrupted" else None,
                "run_id": run_id,
                "group_id": f"{run_id}.{task}",
                "planned": plan["0", task],
            }
            yield RolloutRecord(**(row | fields))
