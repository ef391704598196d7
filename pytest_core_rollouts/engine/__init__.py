"""Rollouts without pytest: a long-lived engine for training loops and notebooks.

    with Engine("https://core.example/v1", key, concurrency=200, out=Path("runs/train.jsonl")) as engine:
        for step in range(30):
            run = engine.submit(tasks, Agent("codex", "my-policy"), samples=8, labels={"policy": str(step)})
            for group in run.groups():
                learn(group.rewards)

Each `submit` is a run of its own, with its own run id: one task in three training steps has three sets of rollout ids
and idempotency keys. It may be called while others run, for any number of tasks; runs share the engine's places in the
order in which they were submitted. With asyncio, `async with`, `await engine.asubmit(...)` and
`async for group in run.agroups()` do the same. In either case rollouts run in a thread of the engine's own.
"""

from __future__ import annotations

from pytest_core_rollouts.engine.engine import Engine
from pytest_core_rollouts.engine.runs import Group, Run, RunEnded

__all__ = ["Engine", "Group", "Run", "RunEnded"]
