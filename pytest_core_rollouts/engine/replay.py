"""Recorded rollouts graded again: by today's expected answers, graders and tolerance, with no Core and no key.

What a row says of the agent stays as it was: its answer, its time, its tokens, its Session, the digest of what it saw.
What a row says about grading is made again. A rollout that ended without an answer to grade (a timeout, a fault) keeps
its result. The new rows name the old ones in `settings.replay_of`.
"""

from __future__ import annotations

import marshal
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pytest_core_rollouts.agents_api.fault_policies import LocalFault
from pytest_core_rollouts.grading.answers import NO_FILES, TEXT_LIMIT, Answer, Grade, read_answer
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.grading.threads import Graders
from pytest_core_rollouts.records.kept_files import read_kept_files
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import effective_rows, read_located, record_at, require_regular_file, slim
from pytest_core_rollouts.rollout.attempt_state import grade_note, grading_settings
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import Grader, KeepFiles
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task import Task

NO_ANSWER = "no answer was recorded"
MASKED = "not graded again: a known secret was masked in the answer or in a kept file, so the reward stays as it was"
INPUT_CHANGED = "graded again: the task's instruction, files or environment are not what the agent was given"
SHORT = 4096
"""Characters of an answer that is kept from the first reading to the grading."""
_PROBLEM = re.compile(r"no answer\.json|the answer is |/workspace/outputs/answer\.json")
"""How notes begin that say why there is no answer to grade."""
_LEFT_OUT = re.compile(r"outputs: .* is left out: ")
_OF_GRADING = re.compile(r"the answer is |expected a JSON object, got |[\d,]+ values differ; the first ")
"""How notes begin that grading writes."""


@dataclass(frozen=True)
class Replay:
    """The rows of a file by the items that stand for them: task id, then agent's slug and sample.

    Of several runs in one file the samples are counted on, so that each row has its own item.
    """

    path: Path
    agents: tuple[Agent, ...]
    rows: Mapping[str, Mapping[tuple[str, int], int]] = field(repr=False)
    """Offsets of the rows in the file."""
    read: Mapping[int, RolloutRecord] = field(default_factory=dict, repr=False)
    """The rows with short answers by their offset, without trajectories: they need not be read again."""
    lacking: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By task id and agent's slug, how many rollouts the runs had planned that have no row."""
    lacking_tasks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By agent's slug, the numbers of rollouts that were planned of tasks without any row, one number for each task."""

    @classmethod
    def open(cls, path: Path) -> Replay:
        """Read which rows there are. Raises RecordsError."""
        require_regular_file(path)
        located: list[tuple[int, RolloutRecord]] = []
        read: dict[int, RolloutRecord] = {}
        for offset, record in read_located(path, items=False):
            if _size(record.answer) + len(record.answer_text or "") <= SHORT:
                read[offset] = record
            located.append((offset, read.get(offset) or slim(record)))
        agents: dict[str, Agent] = {}
        groups: dict[tuple[str, str], dict[str, list[tuple[int, RolloutRecord]]]] = {}
        for position, record in effective_rows(record for _, record in located).values():
            agent = Agent(record.harness, record.model, record.agent.get("name"))
            agents.setdefault(agent.slug, agent)
            groups.setdefault((record.task, agent.slug), {}).setdefault(record.run_id, []).append(
                (located[position][0], record)
            )
        rows: dict[str, dict[tuple[str, int], int]] = {}
        lacking: dict[tuple[str, str], int] = {}
        for (task, slug), runs in groups.items():
            start = 0
            planned = [max(record.planned.get("group", 0) for _, record in one) - len(one) for one in runs.values()]
            lacking[task, slug] = sum(max(0, count) for count in planned)
            for records in runs.values():
                for offset, record in records:
                    rows.setdefault(task, {})[slug, start + record.sample] = offset
                start += max(record.sample for _, record in records) + 1
        if not rows:
            raise RecordsError(f"{path}: holds no rollouts to grade again")
        return cls(path, tuple(agents.values()), rows, read, lacking, _lacking_tasks(groups))

    def missing(self, selected: Iterable[tuple[str, str, int]]) -> Iterator[tuple[str, str]]:
        """Yield agent and task of each planned rollout without a row, so that no gate passes over it.

        `selected`: task, agent's slug and sample of the rows that are graded again. Of a group or a file of which only
        a part was selected, the rest was left out on purpose. Tasks without any row have no name.
        """
        chosen = Counter((task, slug) for task, slug, _ in selected)
        for (task, slug), count in chosen.items():
            if count == sum(agent == slug for agent, _ in self.rows.get(task, ())):
                yield from [(slug, task)] * self.lacking.get((task, slug), 0)
        if chosen.total() == self.size:
            for slug, counts in self.lacking_tasks.items():
                for number, count in enumerate(counts):
                    yield from [(slug, f"?{number}")] * count

    @property
    def size(self) -> int:
        return sum(map(len, self.rows.values()))

    def rollouts_of(self, task_id: str) -> Iterator[tuple[Agent, int]]:
        """The agents and samples that the file has of a task."""
        agents = {agent.slug: agent for agent in self.agents}
        for slug, sample in self.rows.get(task_id, {}):
            yield agents[slug], sample

    def source(self, rollout: Rollout) -> RolloutRecord:
        """The row that the rollout stands for, without its trajectory. Raises RecordsError."""
        offset = self.rows[rollout.task.id][rollout.agent.slug, rollout.sample]
        return self.read.get(offset) or record_at(self.path, offset)


def _lacking_tasks(
    groups: Mapping[tuple[str, str], Mapping[str, Sequence[tuple[int, RolloutRecord]]]],
) -> dict[str, list[int]]:
    """Return by agent how many rollouts were planned of tasks without any row: one number for each such task."""
    plans: dict[tuple[str, str], list[Mapping[str, int]]] = {}
    for (_, slug), runs in groups.items():
        for run_id, records in runs.items():
            plans.setdefault((slug, run_id), []).append(max((one.planned for _, one in records), key=_group_size))
    found: dict[str, list[int]] = {}
    for (slug, _), of_groups in plans.items():
        tasks = max(plan.get("tasks", 0) for plan in of_groups) - len(of_groups)
        rollouts = max(plan.get("agent", 0) for plan in of_groups) - sum(map(_group_size, of_groups))
        if tasks > 0 and rollouts >= tasks:
            found.setdefault(slug, []).extend([rollouts - tasks + 1, *[1] * (tasks - 1)])
    return found


def _group_size(planned: Mapping[str, int]) -> int:
    return planned.get("group", 0)


class Source(Protocol):
    """Where recorded rollouts come from."""

    @property
    def path(self) -> Path: ...

    def source(self, rollout: Rollout) -> RolloutRecord:
        """The row of a rollout, whole. Raises RecordsError."""


@dataclass(frozen=True)
class Replayer:
    """Grades the rows of a file as a run's rollouts. What it is given is as in `rollout.RolloutRunner`.

    `uses_builtin_grading` says whose grading is built in: it is linear, and of a short answer it needs no thread.
    """

    replay: Source
    grade: Grader
    uses_builtin_grading: Callable[[Task], bool]
    save: Callable[[RolloutRecord], None]
    explain: Callable[[RolloutRecord, str | None], RolloutRecord]
    keep_files: KeepFiles
    keep_items: bool = True
    graders: Graders = field(default_factory=Graders)

    async def run(self, rollout: Rollout) -> Outcome:
        """Write and return the new row of one rollout."""
        source = self.replay.source(rollout)
        fields = {**self._identity(source, rollout), "items": source.items if self.keep_items else None}
        if not _has_answer(source):
            record = replace(source, **fields)
        elif source.masked:
            record = replace(source, **{**fields, **self._old_grade(source, rollout, fields["notes"])})
        else:
            graded, note = await self._new_grade(source, rollout, fields["notes"])
            record = self.explain(replace(source, **{**fields, **graded}), note)
        self.save(record)
        return Outcome(record)

    def _identity(self, source: RolloutRecord, rollout: Rollout) -> dict[str, Any]:
        task = rollout.task
        changed = source.input_digest not in ("", task.input_digest)
        kept = {key: value for key, value in source.settings.items() if key not in ("pass_threshold", "xfail")}
        return {
            "rollout_id": rollout.rollout_id,
            "sample": rollout.sample,
            "run_id": rollout.run_id,
            **self._group(source, rollout),
            "agent": {**source.agent, "slug": rollout.agent.slug},
            "labels": {**source.labels, **rollout.labels},
            "settings": {
                **kept,
                **grading_settings(rollout),
                "replay_of": {
                    "file": self.replay.path.name,
                    "run_id": source.run_id,
                    "rollout_id": source.rollout_id,
                },
            },
            "grading_digest": task.grading_digest,
            "tags": list(task.tags),
            "notes": [*([INPUT_CHANGED] if changed else []), *(note for note in source.notes if note != INPUT_CHANGED)],
            "outputs": (),
        }

    def _group(self, source: RolloutRecord, rollout: Rollout) -> dict[str, Any]:
        """The group of the new row. Several runs in a file are several groups, also when they are graded again."""
        if not isinstance(self.replay, Replay):
            return {"group_id": rollout.group_id}
        size = source.planned.get("group")
        return {"group_id": source.group_id, "planned": {} if size is None else {"group": size}}

    def _old_grade(self, source: RolloutRecord, rollout: Rollout, notes: Sequence[str]) -> dict[str, Any]:
        """The fields of a row whose old grade stays, because what was graded is no longer known."""
        try:
            files = read_kept_files(self.replay.path, source.outputs)
        except RecordsError:  # missing or changed, but no grader is going to see them
            files = {}
        is_copied = files and rollout.rollout_id != source.rollout_id
        outputs = self.keep_files(rollout, source.attempt, files) if is_copied else source.outputs
        return {"outputs": outputs, "notes": [*(note for note in notes if note != MASKED), MASKED]}

    async def _new_grade(
        self, source: RolloutRecord, rollout: Rollout, notes: Sequence[str]
    ) -> tuple[dict[str, Any], str | None]:
        """The fields of a row that is graded again, and what its grade says about the answer as a whole."""
        notes = [note for note in notes if not _OF_GRADING.match(note)]
        outputs: Sequence[Mapping[str, Any]] = source.outputs  # a row names its files, so that none is forgotten
        try:
            answer = _answer(source, read_kept_files(self.replay.path, source.outputs))
            if (problem := _not_fetched(source, rollout.task)) is not None:
                raise RecordsError(problem)
            if answer.problem and answer.problem not in notes:
                notes.append(answer.problem)
            if answer.artifacts and rollout.rollout_id != source.rollout_id:
                outputs = self.keep_files(rollout, source.attempt, answer.artifacts)
            grade = await self._grade(answer, rollout)
        except GraderFailed as failure:
            policy = LocalFault(failure.code).policy
            fields = {"status": policy.status, "reward": policy.reward, "error": str(failure)}
            return {**fields, "reasons": (), "metrics": {}, "notes": notes, "outputs": outputs}, None
        except RecordsError as failure:
            fields = {"status": "error", "reward": None, "error": str(failure)}
            return {**fields, "reasons": (), "metrics": {}, "notes": notes, "outputs": outputs}, None
        if grade.note and grade.note not in notes:
            notes.append(grade.note)
        return {
            "status": "completed",
            "reward": grade.reward,
            "error": None,
            "reasons": [dict(vars(reason)) for reason in grade.reasons],
            "metrics": dict(grade.metrics),
            "outputs": outputs,
            "notes": notes,
        }, grade_note(rollout.task, answer, grade)

    async def _grade(self, answer: Answer, rollout: Rollout) -> Grade:
        if self.uses_builtin_grading(rollout.task) and _is_short(answer):
            return self.grade(rollout.task, answer, rollout)  # takes less time than handing it to a thread
        return await self.graders.call(lambda: self.grade(rollout.task, answer, rollout))


def _is_short(answer: Answer) -> bool:
    """Whether no agent can have made the built-in grading take long."""
    return isinstance(answer.value, dict) and _size(answer.value) <= SHORT


def _size(value: Any) -> int:
    """The size of a value from JSON, in bytes. Its text takes four times as long, for each of many thousand rows."""
    return len(marshal.dumps(value, 2))  # version 2 writes a text again wherever it stands


def _not_fetched(source: RolloutRecord, task: Task) -> str | None:
    """Why a grader would lack files that its task asks for today and that were not fetched then; None if it has all."""
    if task.outputs is None or NO_FILES in source.notes:
        return None
    then = source.settings.get("outputs") or {}
    if missing := [pattern for pattern in task.outputs.files if pattern not in then.get("files", ())]:
        return (
            f"outputs: {', '.join(missing)} was not fetched when the rollout ran; run it again without --rollout-replay"
        )
    raised = any(getattr(task.outputs, name) > then.get(name, 0) for name in ("max_bytes", "max_total_bytes"))
    if raised and (left_out := [note for note in source.notes if _LEFT_OUT.match(note)]):
        return f"{left_out[0]}; today's limits are higher, so run it again without --rollout-replay"
    return None


def _has_answer(source: RolloutRecord) -> bool:
    """Whether the agent came to its end: a completed Turn, or one whose answer could not be graded."""
    kept = any(one is not None for one in (source.answer, source.answer_json, source.answer_text))
    return source.answered or (source.reward is None and (kept or bool(source.outputs)))


def _answer(source: RolloutRecord, artifacts: Mapping[str, bytes]) -> Answer:
    """What was answered, as far as the row says."""
    if source.answer is not None or source.answer_json is not None:
        return Answer(value=source.answer, artifacts=artifacts)
    notes = [note for note in source.notes if note != INPUT_CHANGED and not note.startswith("attempt ")]
    problem = next((note for note in notes if _PROBLEM.match(note)), notes[-1] if notes else NO_ANSWER)
    text = source.answer_text
    # Its end may be cut off, or bytes that are not UTF-8 may have been replaced.
    if text is None or "\ufffd" in text or len(text.encode()) > TEXT_LIMIT - 4:
        return Answer(text=source.answer_text, problem=problem, artifacts=artifacts)
    return replace(read_answer(text.encode()), artifacts=artifacts)


class NoCore:
    """Stands where a rollout has its client: nothing is asked."""

    async def aclose(self) -> None:
        """Nothing is open."""
