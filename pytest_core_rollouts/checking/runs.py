"""The part of `check` that runs: each solution twice, and an agent that does nothing, on the embedded Core."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_core_rollouts.checking.checks import Finding
from pytest_core_rollouts.embedded.hidden import Places
from pytest_core_rollouts.engine.pool import Pool
from pytest_core_rollouts.records import RolloutRecord
from pytest_core_rollouts.report.cells import reward_text
from pytest_core_rollouts.rollout import Grader, Outcome, RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks import Network, Task
from pytest_core_rollouts.tasks.matrix import Agent, Rollout, new_run_id

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

CODES: Final = frozenset(("solution-fails", "solution-unstable", "nop-passes"))
"""What this part looks for."""
TIMEOUT: Final = 300.0
"""Seconds for a solution whose task says nothing."""
IN_FLIGHT: Final = 4
_TICK: Final = 0.5
_ORACLE: Final = Agent(harness="oracle")
_NOP: Final = Agent(harness="nop")


@dataclass(frozen=True)
class EmbeddedRuns:
    """A running Core of our own, and how its answers are graded."""

    base_url: str
    api_key: str
    grade: Grader

    def findings(self, tasks: Sequence[Task]) -> Iterator[Finding]:
        """What running the tasks shows. Those that can't run there are left out (`why_not`)."""
        run_id = new_run_id()
        rollouts = [rollout for task in tasks for rollout in _rollouts(task, run_id)]
        records = self._run(rollouts)
        for task in tasks:
            yield from _judge(task, [record for record in records if record.task == task.id])

    def _run(self, rollouts: Sequence[Rollout]) -> list[RolloutRecord]:
        runner = RolloutRunner(grade=self.grade, save=lambda record: None, keep_items=False)

        async def run(client: Client, rollout: Rollout, stop: Stop) -> Outcome:
            return await runner.run(client, rollout, stop)

        pool: Pool[Rollout, Client, Outcome] = Pool(self._connect, run, concurrency=IN_FLIGHT)
        pool.submit(rollouts)
        records: list[RolloutRecord] = []
        try:
            while len(records) < len(rollouts):
                if (outcome := pool.next_done(_TICK)) is not None:
                    records.append(outcome.record)
        except KeyboardInterrupt:
            pool.stop("interrupted")
            raise
        return records

    def _connect(self) -> Client:
        from pytest_core_rollouts.agents_api import Client

        return Client(self.base_url, self.api_key)


@contextmanager
def embedded_runs(grade: Grader, places: Places) -> Iterator[EmbeddedRuns]:
    """A Core for as long as the block lasts, whose sandboxes hide `places`. EmbeddedCoreError: none can run here."""
    from pytest_core_rollouts.embedded.launch import EmbeddedCore

    core = EmbeddedCore.reserve()
    try:
        core.start(hidden=places.hidden, private=places.private)
        yield EmbeddedRuns(core.base_url, core.api_key, grade)
    finally:
        core.stop()


def why_not(task: Task) -> str | None:
    """Why the task can't be run on the embedded Core; None where it can."""
    if task.skip is not None:
        return f"it is skipped: {task.skip}"
    if task.network is not None and not task.network.is_disabled:
        return "it needs a network"
    if task.packages:
        return "it needs packages"
    if task.unset_variables:
        return f"it needs {', '.join(task.unset_variables)} in the environment"
    return None


def _rollouts(task: Task, run_id: str) -> Iterator[Rollout]:
    agents = [(_NOP, 0)] if task.solution_file is None else [(_ORACLE, 0), (_ORACLE, 1), (_NOP, 0)]
    for agent, sample in agents:
        yield Rollout(
            task=task,
            agent=agent,
            sample=sample,
            run_id=run_id,
            timeout=task.timeout or TIMEOUT,
            network=Network.disabled(),
        )


def _judge(task: Task, records: Sequence[RolloutRecord]) -> Iterator[Finding]:
    by_harness: Mapping[str, list[RolloutRecord]] = {
        name: [record for record in records if record.harness == name] for name in ("oracle", "nop")
    }
    solved = by_harness["oracle"]
    folder = task.path
    solution = None if folder is None else folder / "solution" / "solve.sh"
    if bad := [record for record in solved if record.reward != 1]:
        yield Finding("solution-fails", task.id, f"the solution {_how(bad[0])}", solution)
    elif len({_answered(record) for record in solved}) > 1:
        problem = "the solution gave another answer the second time, both of which earn 1"
        yield Finding("solution-unstable", task.id, problem, solution)
    for record in by_harness["nop"]:
        if record.reward != 0:
            graded = None if folder is None else folder / "instruction.md"
            yield Finding("nop-passes", task.id, f"an agent that does nothing {_how(record)}", graded)


def _answered(record: RolloutRecord) -> str:
    return json.dumps([record.answer, record.answer_text], sort_keys=True)


def _how(record: RolloutRecord) -> str:
    if record.reward is None:
        return f"could not be graded ({record.status}): {record.error}"
    reasons = [f"{reason['path']} is {json.dumps(reason['answered'], default=str)[:80]}" for reason in record.reasons]
    why = "; ".join([*filter(None, [record.error]), *reasons[:3], *record.notes][:4])
    return f"earns {reward_text(record.reward)} ({record.status}){f': {why}' if why else ''}"
