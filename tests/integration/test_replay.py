"""Recorded answers graded again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.engine.replay import MASKED
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import append, read_records
from pytest_core_rollouts.training.groups import Choice, read_rows, select
from tests.integration.conftest import Project, node_ids, outcomes, text_of, usage_error
from tests.integration.test_gates import gate_lines
from tests.support.fake_core import FakeCore, Script

OLD = "20261101T000000Z-00aa"
REPLAY = ("--rollout-replay", "old.jsonl")


def row(task: str, sample: int, reward: float | None, answer: Any = None, **fields: Any) -> RolloutRecord:
    run_id = fields.pop("run_id", OLD)
    fields_of_all: dict[str, Any] = {
        "rollout_id": f"{run_id}.{task}.codex-default.{sample}",
        "task": task,
        "harness": "codex",
        "model": "default",
        "sample": sample,
        "session_id": f"sess_{task}{sample}",
        "status": "error" if reward is None else "completed",
        "reward": reward,
        "answer": answer,
        "duration_s": 12.5,
        "usage": {"total_tokens": 7},
        "items": [{"id": "i1"}],
        "run_id": run_id,
        "group_id": f"{run_id}.{task}.codex-default",
        "agent": {"name": None, "slug": "codex-default", "digest": "d"},
        "settings": {"timeout": 60.0, "network": {"access": "disabled"}},
        "input_digest": "i",
        "grading_digest": "g",
        "planned": {"run": 9, "agent": 9, "tasks": 9, "group": 9},
    }
    return RolloutRecord(**(fields_of_all | fields))


def old(project: Project, *rows: RolloutRecord, name: str = "old.jsonl") -> Path:
    for one in rows:
        append(project.path / name, one, sync=False)
    return project.path / name


def new_rows(project: Project) -> dict[tuple[str, int], dict[str, Any]]:
    [path] = project.results
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return {(one["task"], one["sample"]): one for one in rows}


@pytest.mark.usefixtures("no_core")
def test_answers_are_graded_by_the_current_tasks_without_core_or_key(project: Project) -> None:
    project.task("a", expected={"x": 1})
    old(project, row("a", 0, 0.0, {"x": 1}), row("a", 1, 1.0, {"x": 2}))
    result = project.run_apart("--rollout-replay", "old.jsonl", "-v")
    assert result.ret == 1
    assert "replay: 2 of 2 rows of " in text_of(result)
    assert outcomes(result) == {"passed": 1, "failed": 1}
    assert "tasks/a/instruction.md::codex-default-0 PASSED" in text_of(result)
    rows = new_rows(project)
    assert [(rows["a", sample]["reward"], rows["a", sample]["status"]) for sample in (0, 1)] == [
        (1.0, "completed"),
        (0.0, "completed"),
    ]
    assert rows["a", 1]["reasons"] == [{"path": "x", "expected": 1, "answered": 2}]


@pytest.mark.usefixtures("no_core")
def test_the_new_row_names_its_source_and_keeps_the_agent(project: Project) -> None:
    project.task("a", expected={"x": 1.1}, yaml="tolerance: {relative: 0.01}\n")
    old(project, row("a", 0, 0.0, {"x": 1.105}, attempt=2, started_at="2026-11-01T00:00:00+00:00"))
    assert project.run(*REPLAY).ret == 0
    one = new_rows(project)["a", 0]
    assert one["settings"] == {
        "timeout": 60.0,
        "network": {"access": "disabled"},
        "tolerance": {"relative": 0.01, "absolute": 0.0},
        "replay_of": {"file": "old.jsonl", "run_id": OLD, "rollout_id": f"{OLD}.a.codex-default.0"},
    }
    kept = ("session_id", "duration_s", "usage", "attempt", "started_at", "input_digest", "answer")
    assert [one[name] for name in kept] == [
        "sess_a0",
        12.5,
        {"total_tokens": 7},
        2,
        "2026-11-01T00:00:00+00:00",
        "i",
        {"x": 1.105},
    ]
    assert one["run_id"] != OLD
    assert one["rollout_id"] == f"{one['run_id']}.a.codex-default.0"
    assert one["grading_digest"] not in ("", "g")
    assert one["items"] is None
    assert one["planned"] == {"run": 9, "agent": 9, "tasks": 1, "group": 9}  # as it was recorded
    assert one["group_id"] == f"{OLD}.a.codex-default"
    assert one["notes"] == [
        "graded again: the task's instruction, files or environment are not what the agent was given"
    ]


@pytest.mark.usefixtures("no_core")
def test_a_row_without_an_answer_keeps_its_result(project: Project) -> None:
    project.task("a")
    missing = "no answer.json: the agent left no files in /workspace/outputs"
    no_json = {"answer_text": "x = 1", "notes": ["the answer is not valid JSON: Expecting value (line 1, column 1)"]}
    old(
        project,
        row("a", 0, 0.0, status="timeout"),
        row("a", 1, 0.0, status="failed", error="context_length_exceeded"),
        row("a", 2, None, error="POST /agents/sessions: 503"),
        row("a", 3, None, status="cancelled", error="the run was interrupted"),
        row("a", 4, 0.0, notes=["attempt 1: 503", missing]),
        row("a", 5, 0.0, **no_json),
        row("a", 6, None, {"x": 1}, error="the grader raised NameError: name 'y' is not defined"),
    )
    result = project.run(*REPLAY, "--rollout-gate", "none")
    assert outcomes(result) == {"errors": 2, "solved": 1, "unsolved": 4}
    rows = new_rows(project)
    assert [(rows["a", n]["status"], rows["a", n]["reward"]) for n in range(7)] == [
        ("timeout", 0.0),
        ("failed", 0.0),
        ("error", None),
        ("cancelled", None),
        ("completed", 0.0),
        ("completed", 0.0),
        ("completed", 1.0),  # the answer was there, only its grading had failed
    ]
    assert rows["a", 2]["error"] == "POST /agents/sessions: 503"
    assert rows["a", 6]["error"] is None
    assert rows["a", 4]["notes"][1:] == ["attempt 1: 503", missing]
    assert rows["a", 5]["notes"][1:] == no_json["notes"]


@pytest.mark.usefixtures("no_core")
def test_a_grader_of_the_project_grades_again(project: Project) -> None:
    folder = project.task("a")
    (folder / "grader.py").write_text("def grade(answer):\n    return answer.value['x'] / 4\n")
    old(project, row("a", 0, 1.0, {"x": 1}), row("a", 1, 1.0, {"y": 1}))
    result = project.run(*REPLAY, "--rollout-gate", "none")
    assert outcomes(result) == {"errors": 1, "unsolved": 1}
    assert new_rows(project)["a", 0]["reward"] == 0.25
    assert "KeyError" in new_rows(project)["a", 1]["error"]


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize(
    ("args", "selected"),
    [
        (("-k", "b"), ["b::0", "b::1"]),
        (("-m", "rollout(sample=1)"), ["a::1", "b::1"]),
        (("--rollout-task", "a"), ["a::0", "a::1"]),
        (("tasks/a/instruction.md::codex-default-1",), ["a::1"]),
    ],
)
def test_filters_of_pytest_select_rows(project: Project, args: tuple[str, ...], selected: list[str]) -> None:
    project.task("a")
    project.task("b")
    project.task("c")  # not in the file
    old(project, *(row(task, sample, 1.0, {"x": 1}) for task in "ab" for sample in (0, 1)))
    found = node_ids(project.run(*REPLAY, *args, "--collect-only", "-q"))
    assert found == [f"tasks/{one[0]}/instruction.md::codex-default-{one[-1]}" for one in selected]


@pytest.mark.usefixtures("no_core")
def test_rows_of_removed_tasks_are_named(project: Project) -> None:
    project.task("a")
    old(project, row("a", 0, 1.0, {"x": 1}), row("old", 0, 1.0, {"x": 1}))
    text = text_of(project.run(*REPLAY))
    assert "replay: 1 of 2 rows of " in text
    assert "no rollout selected of old" in text


@pytest.mark.usefixtures("no_core")
def test_samples_of_several_runs_are_numbered_on_and_repeated_rows_count_once(project: Project) -> None:
    project.task("a")
    old(
        project,
        row("a", 0, None, error="503"),
        row("a", 0, 0.0, {"x": 1}),  # a resume's
        row("a", 1, 1.0, {"x": 1}),
        row("a", 0, 0.0, {"x": 2}, run_id="20261102T000000Z-00bb"),
    )
    result = project.run(*REPLAY, "--rollout-gate", "none")
    assert outcomes(result) == {"solved": 2, "unsolved": 1}
    sources = {sample: one["settings"]["replay_of"]["run_id"] for (_, sample), one in new_rows(project).items()}
    assert sources == {0: OLD, 1: OLD, 2: "20261102T000000Z-00bb"}


@pytest.mark.usefixtures("no_core")
def test_groups_of_several_runs_are_not_merged(project: Project) -> None:
    """A replay of two policies' runs is two groups for training, each as complete as it was."""
    project.task("a", expected={"x": 1})
    planned = {"run": 2, "agent": 2, "tasks": 1, "group": 2}
    other = "20261102T000000Z-00bb"
    old(
        project,
        *(row("a", sample, 1.0, {"x": 1 + sample}, planned=planned) for sample in (0, 1)),
        *(row("a", sample, 1.0, {"x": 1 + sample}, planned=planned, run_id=other) for sample in (0, 1)),
    )
    project.run(*REPLAY, "--rollout-gate", "none")
    groups = select(read_rows(project.results, items=False), Choice()).groups
    assert [(group.used, group.complete, group.mean) for group in groups] == [(2, True, 0.5)] * 2


@pytest.mark.usefixtures("no_core")
def test_no_gate_passes_over_what_the_replayed_file_lacks(project: Project) -> None:
    """Rows that were planned and never ran, or were cut off, are missing in a replay as in a report."""
    planned = {"run": 6, "agent": 6, "tasks": 3, "group": 2}
    rows = [row(task, sample, 1.0, {"x": 1}, planned=planned) for task in "abc" for sample in (0, 1)]
    for task in "abc":
        project.task(task)
    cut = {"a row": rows[:5], "a task": rows[:4], "both": rows[1:3], "nothing": rows}
    for what, kept in cut.items():
        path = old(project, *kept, name=f"{what[-4:].strip()}.jsonl")
        missing = len(rows) - len(kept)
        for workers in ((), ("-n", "2")) if what == "both" else ((),):
            result = project.run("--rollout-replay", str(path), "--rollout-gate", "mean>=0.1", *workers)
            [line] = [line for line in result.outlines if line.startswith("gate mean>=0.1: ")]
            assert (f"{missing} did not run" in line, result.ret) == (bool(missing), int(bool(missing))), (what, line)
        gates = ("--rollout-gate", "mean>=0.1", "--rollout-allow-missing")
        assert project.run("--rollout-replay", str(path), *gates).ret == 0
    path = project.path / "both.jsonl"
    part = project.run("--rollout-replay", str(path), "--rollout-task", "b", "--rollout-gate", "mean>=0.1")
    assert part.ret == 1, "b lacks a sample"
    part = project.run("--rollout-replay", "row.jsonl", "--rollout-task", "b", "--rollout-gate", "mean>=0.1")
    assert part.ret == 0, "the user left out the task that lacks one"


REPLAYED = {
    "lone surrogates": {"x": "\ud835", "k\ud836": [1, {"\udfff": 2}]},
    "a replaced surrogate": {"x": "\ufffd"},
    "an escape": {"x": "\\ud835"},
    "large numbers": {"x": 10**300, "y": 9007199254740993, "z": -0.0},
    "an array": [1, "x", None],
    "null": None,
}


@pytest.mark.usefixtures("no_core")
def test_a_replay_of_unchanged_tasks_changes_no_reward(project: Project) -> None:
    """Each answer is graded as it was; a replay of the replay too. A masked one keeps its reward and says so."""
    project.task("a", expected={"x": "\ud835"})
    grades = [float(answer == REPLAYED["lone surrogates"]) for answer in REPLAYED.values()]
    rows = [row("a", sample, grades[sample], answer) for sample, answer in enumerate(REPLAYED.values())]
    rows.append(row("a", len(rows), 1.0, {"x": "[masked]"}, masked=True))
    invalid = "the answer is not valid JSON: byte 7 is not UTF-8"
    rows.append(row("a", len(rows), 0.0, answer_text='{"x": "\ufffd"}', notes=[invalid]))
    path = old(project, *rows)
    for _ in range(2):
        project.run("--rollout-replay", str(path), "--rollout-gate", "none")
        path = max(project.results)
        replayed = {record.sample: record for record in read_records(path)}
        assert [replayed[one.sample].reward for one in rows] == [one.reward for one in rows]
        assert [replayed[one.sample].answer for one in rows] == [one.answer for one in rows]
        assert [one.sample for one in replayed.values() if one.masked] == [len(REPLAYED)]
    assert replayed[len(REPLAYED)].notes.count(MASKED) == 1


GRADER = """def grade(answer, artifacts):
    return 1.0 if answer.value is None and not answer.problem else float(artifacts == {"a.txt": b"right"})
"""


def test_files_that_were_not_fetched_are_an_error_in_a_replay(project: Project, core: FakeCore) -> None:
    """A grader that gets fewer files than its task asks for would turn a right answer into a 0."""
    files = {"/workspace/outputs/a.txt": b"right", "/workspace/outputs/b.md": b"x" * 2000}
    core.script = lambda body: Script(answer=b'{"x": 1}', artifacts=files)
    grader = "def grade(artifacts):\n    return float(sorted(artifacts) == {})\n"
    folder = project.task("a", yaml="outputs: {files: ['*.txt', '*.md'], max_bytes: 1000}\n")
    (folder / "grader.py").write_text(grader.format(["a.txt"]))
    assert outcomes(project.run("tasks")) == {"passed": 1}
    [path] = project.results
    changes = {
        "outputs: {files: ['*.txt'], max_bytes: 1000}": (1.0, None),
        "outputs: {files: ['*.txt', '*.md'], max_bytes: 900}": (1.0, None),
        "outputs: {files: ['*.txt', '*.md', '*.log'], max_bytes: 1000}": (None, "*.log was not fetched when"),
        "outputs: {files: ['*.txt', '*.md'], max_bytes: 2000}": (None, "'b.md' is left out: it has 2,000 bytes"),
    }
    for yaml, (reward, error) in changes.items():
        (folder / "task.yaml").write_text(yaml)
        before = set(project.results)
        project.run("--rollout-replay", str(path), "--rollout-gate", "none")
        [replayed] = set(project.results) - before
        [record] = read_records(replayed)
        assert (record.reward, record.status) == (reward, "error" if error else "completed"), yaml
        assert (error or "") in str(record.error)


@pytest.mark.usefixtures("no_core")
def test_a_row_never_forgets_its_kept_files(project: Project) -> None:
    """A missing file is an error in a replay and in a replay of that, until it is back; never a 0."""
    folder = project.task("a", yaml="outputs: ['*.txt']\n")
    (folder / "grader.py").write_text(GRADER)
    sha256 = hashlib.sha256(b"right").hexdigest()
    kept = {"path": "a.txt", "size": 5, "sha256": sha256, "file": f".{OLD}.files/{OLD}.a/a1/0001"}
    asked = {"outputs": {"files": ["*.txt"], "max_bytes": 2**20, "max_total_bytes": 10 * 2**20}}
    rows = [
        row("a", 0, 1.0, {"x": 1}, outputs=[kept], settings=asked),
        row("a", 1, 0.5, {"x": "[masked]"}, outputs=[kept], masked=True, settings=asked),
        row("a", 2, 1.0, None, answer_json="null", timings={"fetch": 0.1}, settings=asked),
        row("a", 3, 0.0, None, notes=["no answer.json: the agent left no files in /workspace/outputs"]),
    ]
    path = old(project, *rows, name=f"runs/{OLD}.jsonl")
    for missing in (True, True, False):
        if not missing:
            project.write(f"runs/{kept['file']}", b"right")
        before = set(project.results)
        project.run("--rollout-replay", str(path), "--rollout-gate", "none")
        [path] = set(project.results) - before  # two runs of one second are in no order by name
        replayed = {record.sample: record for record in read_records(path)}
        assert [replayed[n].reward for n in range(4)] == [None if missing else 1.0, 0.5, 1.0, 0.0]
        assert ("missing, but rows of" in str(replayed[0].error)) == missing
        assert [len(replayed[n].outputs) for n in range(4)] == [1, 1, 0, 0]


@pytest.mark.usefixtures("no_core")
def test_workers_share_a_replay_and_gates_judge_it(project: Project) -> None:
    for name in "abc":
        project.task(name)
    planned = {"run": 12, "agent": 12, "tasks": 3, "group": 4}
    answers = [{"x": 1 if sample else 2} for sample in range(4)]
    old(project, *(row(task, n, 0.0, answer, planned=planned) for task in "abc" for n, answer in enumerate(answers)))
    result = project.run_apart(*REPLAY, "-n2", "--rollout-gate", "pass@1>=0.75", "--rollout-gate", "pass^2>=0.6")
    assert result.ret == 1
    assert gate_lines(result) == ["gate pass@1>=0.75: passed: 0.750 >= 0.75", "gate pass^2>=0.6: failed: 0.500 < 0.6"]
    assert len(new_rows(project)) == 12


@pytest.mark.usefixtures("no_core")
def test_a_replay_needs_no_agent_files(project: Project) -> None:
    project.task("a")
    agent = {"name": "short prompt", "slug": "short-prompt-1b5c35", "digest": "d"}
    old(project, row("a", 0, 0.0, {"x": 1}, agent=agent))
    result = project.run(*REPLAY)
    assert result.ret == 0
    assert "short prompt" in text_of(result)
    assert new_rows(project)["a", 0]["agent"]["digest"] == "d"


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("--harness", "codex"), "--harness: can't be combined with a replay, which has"),
        (("--samples", "2"), "--samples: can't be combined with a replay"),
        (("--rollout-out", "old.jsonl"), "--rollout-out: "),
        (("--rollout-replay", "none.jsonl"), "--rollout-replay: "),
        (("--rollout-replay", "empty.jsonl"), "--rollout-replay: "),
        (("--rollout-replay", "broken.jsonl"), "--rollout-replay: "),
        (("--rollout-replay", "pipe"), "--rollout-replay: "),
    ],
)  # fmt: skip
def test_an_invalid_replay_is_a_usage_error(project: Project, args: tuple[str, ...], error: str) -> None:
    project.task("a")
    old(project, row("a", 0, 1.0, {"x": 1}))
    project.write("empty.jsonl")
    project.write("broken.jsonl", "{}\n")
    os.mkfifo(project.path / "pipe")
    result = project.run_apart(*REPLAY, *args)
    assert usage_error(result).startswith(error)
    assert not project.results


@pytest.mark.usefixtures("no_core")
@pytest.mark.slow
def test_replay_of_ten_thousand_rows_grades_each(project: Project) -> None:
    for number in range(100):
        project.task(f"t{number}")
    old(project, *(row(f"t{index % 100}", index // 100, 0.0, {"x": 1}) for index in range(10_000)))
    result = project.run_apart(*REPLAY, "-q", "-p", "no:cacheprovider")
    assert result.ret == 0
    assert len(new_rows(project)) == 10_000
