"""Checks of tasks that run them on the embedded Core: each solution twice, and an agent that does nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_core_rollouts.checking.checks import Finding
from pytest_core_rollouts.checking.grading_checks import SAME_REWARD, KnownGrades
from pytest_core_rollouts.embedded.hidden import Places
from pytest_core_rollouts.engine.core_access import CoreAccess, EmbeddedOptions
from pytest_core_rollouts.engine.host import Host
from pytest_core_rollouts.engine.parts import Defaults, Grading, Parts
from pytest_core_rollouts.engine.preflight import why_skipped
from pytest_core_rollouts.engine.store import RowStore
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.tasks.matrix import Agent, Rollout, new_run_id
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from pytest_core_rollouts.text import reward_text

CODES: Final = frozenset(("solution-fails", "solution-unstable", "nop-passes"))
"""The codes that these checks look for."""
DEFAULTS: Final = Defaults(timeout=300.0, failed_turns=None)
"""What a task gets that sets nothing itself: 300 s, because a solution is a script."""
_ORACLE: Final = Agent(harness="oracle")
_NOP: Final = Agent(harness="nop")


def run_findings(
    tasks: Sequence[Task], grading: KnownGrades, places: Places, found: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """Run the tasks and yield the findings. Every task must be one that `can_run`.

    `found`: for each task, the codes that are reported already; the same fault is not reported again.
    Raises CoreError if no embedded Core can run on this machine.
    """
    records = run_tasks(tasks, grading, places)
    for task in tasks:
        yield from _Judge(task, found[task.id], grading).findings([each for each in records if each.task == task.id])


def run_tasks(tasks: Sequence[Task], grading: Grading, places: Places) -> list[RolloutRecord]:
    """Run each solution twice, and an agent that does nothing once, and return the rows, masked. Raises CoreError."""
    core = CoreAccess(None, None, embedded=EmbeddedOptions())
    rows: list[RolloutRecord] = []
    parts = Parts(core, RowStore(also_to=rows.append), grading, keep_items=False, prepares=False)
    run_id = new_run_id()
    rollouts = [rollout for task in tasks for rollout in _rollouts(task, run_id)]
    with Host(parts) as host:
        host.prepare([(rollout.task, rollout.agent) for rollout in rollouts], places)
        for _ in host.submit_rollouts(rollouts).records():
            pass
    return rows


def can_run(task: Task) -> bool:
    """Whether an agent can be given the task on the embedded Core."""
    if task.check == "static":
        return False
    return why_skipped(task, _NOP, embedded=True, network=task.network or Network.disabled()) is None


def _rollouts(task: Task, run_id: str) -> Iterator[Rollout]:
    agents = [(_NOP, 0)] if task.solution_file is None else [(_ORACLE, 0), (_ORACLE, 1), (_NOP, 0)]
    for agent, sample in agents:
        yield DEFAULTS.rollout(task, agent, sample, run_id, labels={}, timeout=None)


@dataclass(frozen=True)
class _Judge:
    """Turns the rows of one task into findings. `found` are the codes that are reported already."""

    task: Task
    found: Collection[str]
    grades: KnownGrades

    def findings(self, records: Sequence[RolloutRecord]) -> Iterator[Finding]:
        broken = [record for record in records if record.rollout_id in self.grades.failed]
        if broken and "grader-fails" not in self.found:
            yield self._finding("grader-fails", broken[0].error or broken[0].status, self._graded_by)
        graded = [record for record in records if record.rollout_id not in self.grades.failed]
        yield from self._solved([record for record in graded if record.harness == "oracle"])
        for record in graded:
            is_known = record.reward == 1 and "wrong-answer-passes" in self.found
            if record.harness == "nop" and record.reward != 0 and not is_known:
                problem = f"an agent that does nothing {_result_text(record)}"
                yield self._finding("nop-passes", problem, "instruction.md")

    def _solved(self, records: Sequence[RolloutRecord]) -> Iterator[Finding]:
        rewards = sorted({record.reward for record in records if record.reward is not None})
        answers = {_answer_json(record) for record in records}
        graded = {self.grades.graded.get(record.rollout_id) for record in records} - {None}
        bad = [record for record in records if record.reward != 1]
        if len(graded) == 1 and len(rewards) > 1:
            if "grader-unstable" not in self.found:
                problem = f"the solution's answer earns {' and '.join(map(reward_text, rewards))}"
                yield self._finding("grader-unstable", f"{problem}; {SAME_REWARD}", self._graded_by)
        elif bad:
            if not self._is_known(bad[0]):
                problem = f"the solution {_result_text(bad[0])}"
                yield self._finding("solution-fails", problem, "solution/solve.sh")
        elif len(answers) > 1:
            problem = "the solution gave two different answers, which both earn 1"
            yield self._finding("solution-unstable", problem, "solution/solve.sh")

    def _is_known(self, record: RolloutRecord) -> bool:
        """Whether the solution only fails because of a fault of grading that is reported already."""
        answered = record.reward is not None and record.answer is not None
        if answered and "expected-fails" in self.found:
            return json.dumps(record.answer, sort_keys=True) == json.dumps(self.task.expected, sort_keys=True)
        return answered and "grader-unstable" in self.found

    @property
    def _graded_by(self) -> str:
        return "grader.py" if self.task.grader is not None else "expected.json"

    def _finding(self, code: str, message: str, place: str) -> Finding:
        return Finding(code, self.task.id, message, None if self.task.path is None else self.task.path / place)


def _answer_json(record: RolloutRecord) -> str:
    return json.dumps([record.answer, record.answer_text], sort_keys=True)


def _result_text(record: RolloutRecord) -> str:
    if record.reward is None:
        return f"could not be graded ({record.status}): {record.error}"
    reasons = [f"{reason['path']} is {json.dumps(reason['answered'], default=str)[:80]}" for reason in record.reasons]
    why = "; ".join([*filter(None, [record.error]), *reasons[:3], *record.notes][:4])
    return f"earns {reward_text(record.reward)} ({record.status}){f': {why}' if why else ''}"
