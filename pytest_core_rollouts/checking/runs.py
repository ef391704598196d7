"""Checks of tasks that run them on the embedded Core: each solution twice, and an agent that does nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pytest_core_rollouts.checking.checks import Finding
from pytest_core_rollouts.embedded.hidden import Places
from pytest_core_rollouts.engine.core_access import CoreAccess, EmbeddedOptions
from pytest_core_rollouts.engine.engine import Engine
from pytest_core_rollouts.engine.parts import Grading, Parts
from pytest_core_rollouts.engine.preflight import why_skipped
from pytest_core_rollouts.engine.store import RowStore
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.tasks.matrix import Agent, Rollout, new_run_id
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from pytest_core_rollouts.text import reward_text

CODES: Final = frozenset(("solution-fails", "solution-unstable", "nop-passes"))
"""The codes that these checks look for."""
TIMEOUT: Final = 300.0
"""Seconds for a solution whose task sets no limit."""
_ORACLE: Final = Agent(harness="oracle")
_NOP: Final = Agent(harness="nop")


def run_findings(tasks: Sequence[Task], grading: Grading, places: Places) -> Iterator[Finding]:
    """Run the tasks and yield the findings. Every task must be one that `can_run`.

    Raises CoreError if no embedded Core can run on this machine.
    """
    core = CoreAccess(None, None, embedded=EmbeddedOptions())
    parts = Parts(core, RowStore(), grading, keep_items=False, prepares=False)
    run_id = new_run_id()
    rollouts = [rollout for task in tasks for rollout in _rollouts(task, run_id)]
    with Engine.of(parts) as engine:
        engine.prepare([(rollout.task, rollout.agent) for rollout in rollouts], places)
        records = list(engine.submit_rollouts(rollouts).records())
    for task in tasks:
        yield from _judge(task, [record for record in records if record.task == task.id])


def can_run(task: Task) -> bool:
    """Whether an agent can be given the task on the embedded Core."""
    return why_skipped(task, _NOP, embedded=True, network=task.network or Network.disabled()) is None


def _rollouts(task: Task, run_id: str) -> Iterator[Rollout]:
    agents = [(_NOP, 0)] if task.solution_file is None else [(_ORACLE, 0), (_ORACLE, 1), (_NOP, 0)]
    for agent, sample in agents:
        yield Rollout(task, agent, sample, run_id, timeout=task.timeout or TIMEOUT)


def _judge(task: Task, records: Sequence[RolloutRecord]) -> Iterator[Finding]:
    by_harness: Mapping[str, list[RolloutRecord]] = {
        name: [record for record in records if record.harness == name] for name in ("oracle", "nop")
    }
    solved = by_harness["oracle"]
    folder = task.path
    solution = None if folder is None else folder / "solution" / "solve.sh"
    if bad := [record for record in solved if record.reward != 1]:
        yield Finding("solution-fails", task.id, f"the solution {_result_text(bad[0])}", solution)
    elif len({_answer_json(record) for record in solved}) > 1:
        problem = "the solution gave two different answers, which both earn 1"
        yield Finding("solution-unstable", task.id, problem, solution)
    for record in by_harness["nop"]:
        if record.reward != 0:
            instruction = None if folder is None else folder / "instruction.md"
            yield Finding("nop-passes", task.id, f"an agent that does nothing {_result_text(record)}", instruction)


def _answer_json(record: RolloutRecord) -> str:
    return json.dumps([record.answer, record.answer_text], sort_keys=True)


def _result_text(record: RolloutRecord) -> str:
    if record.reward is None:
        return f"could not be graded ({record.status}): {record.error}"
    reasons = [f"{reason['path']} is {json.dumps(reason['answered'], default=str)[:80]}" for reason in record.reasons]
    why = "; ".join([*filter(None, [record.error]), *reasons[:3], *record.notes][:4])
    return f"earns {reward_text(record.reward)} ({record.status}){f': {why}' if why else ''}"
