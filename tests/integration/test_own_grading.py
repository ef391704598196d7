"""A project's own graders in a run: by hook, in the task's folder; further files; thresholds; secrets; the frontier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script

WORKERS = pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
SECRET = "hunter2-hunter2"


def rows(project: Project) -> dict[str, dict[str, Any]]:
    return {row["task"]: row for row in project.records}


def bodies(core: FakeCore) -> str:
    return "\n".join(request.body.decode("utf-8", "replace") for request in core.requests)


# grader.py


@WORKERS
def test_each_task_can_have_its_own_grader(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    for name, reward in (("a", 0.25), ("b", 1)):
        folder = project.task(name)
        (folder / "expected.json").unlink()
        project.write(f"tasks/{name}/grader.py", f"SECRET_OF_THE_GRADER = 1\ndef grade(answer): return {reward}\n")
    result = project.run("tasks", *workers)
    assert outcomes(result) == {"passed": 1, "failed": 1}, text_of(result)
    assert {task: row["reward"] for task, row in rows(project).items()} == {"a": 0.25, "b": 1.0}
    assert "SECRET_OF_THE_GRADER" not in bodies(core)


def test_metrics_of_a_grader_are_in_rows_reports_and_replays(project: Project) -> None:
    grader = (
        "from pytest_core_rollouts import Grade\n"
        "def grade(answer, rollout):\n"
        "    return Grade(1, metrics={'style': STYLE, **({'tests': 11} if rollout.sample else {})})\n"
    )
    project.task("a")
    project.write("tasks/a/grader.py", grader.replace("STYLE", "0.25 + rollout.sample / 2"))
    result = project.run("tasks", "--samples", "2", "--junitxml", "junit.xml")
    assert '<property name="metric style" value="0.5" />' in (project.path / "junit.xml").read_text()
    result.stdout.fnmatch_lines(["| mean of metric | *default |", "| style * 0.5 |", "| tests * 11 [[]1/2] |"])

    def metrics(path: Path) -> list[Any]:
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [(row["reward"], row["metrics"]) for row in sorted(found, key=lambda row: str(row["rollout_id"]))]

    file = project.results[0]
    assert metrics(file) == [(1.0, {"style": 0.25}), (1.0, {"style": 0.75, "tests": 11.0})]
    project.write("tasks/a/grader.py", grader.replace("STYLE", "1"))
    project.run("tasks", "--rollout-replay", str(file), "--rollout-out", "replayed.jsonl")
    replayed = metrics(project.path / "replayed.jsonl")
    assert replayed == [(1.0, {"style": 1.0}), (1.0, {"style": 1.0, "tests": 11.0})]
    project.write("tasks/a/grader.py", "def grade(answer): raise ValueError\n")
    project.run("tasks", "--rollout-replay", str(file), "--rollout-out", "failed.jsonl")
    assert metrics(project.path / "failed.jsonl") == [(None, {})] * 2


def test_reasons_of_a_grader_are_shown_key_by_key(project: Project) -> None:
    project.task("a")
    project.write(
        "tasks/a/grader.py",
        "from pytest_core_rollouts.grading.answers import Grade, Reason\n"
        "def grade(task, answer):\n"
        "    return Grade(0.5, (Reason('topics.r1', 'price', answer.value['x']),), 'half of the topics')\n",
    )
    result = project.run("tasks")
    result.stdout.fnmatch_lines(
        [
            'reward 0.5: topics.r1: "price" expected, 1 answered',
            "topics.r1:",
            '    expected "price"',
            "    answered 1",
            "note: half of the topics",
        ]
    )
    assert project.records[0]["reasons"] == [{"path": "topics.r1", "expected": "price", "answered": 1}]


ODD = """
import datetime, decimal, pathlib, signal
from pytest_core_rollouts.grading.answers import Grade
from pytest_core_rollouts.grading.comparing import Reason

VALUES = [
    pathlib.Path("/x"), decimal.Decimal("1.50"), {2, 1}, signal.SIGTERM, datetime.date(2026, 1, 2),
    float("nan"), b"\\xff", "\\ud835", (1, "a"),
]

def grade(answer):
    return Grade(0.5, tuple(Reason(str(n), one, one) for n, one in enumerate(VALUES)), "so \\ud835")
"""


@WORKERS
def test_values_that_json_can_not_express_give_the_same_row_in_a_worker(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.task("a")
    project.write("tasks/a/grader.py", ODD)
    result = project.run_apart("tasks", *workers)
    assert outcomes(result) == {"failed": 1}, text_of(result)
    assert result.ret == 1
    assert "INTERNALERROR" not in text_of(result)
    [row] = project.records
    assert (row["status"], row["reward"], row["notes"]) == ("completed", 0.5, ["so \\ud835"])
    plain = ["/x", "1.50", [1, 2], 15, "2026-01-02", None, "\ufffd", "\\ud835", [1, "a"]]
    assert [reason["expected"] for reason in row["reasons"]] == plain
    assert [reason["answered"] for reason in row["reasons"]] == plain


@WORKERS
def test_a_grader_that_raises_is_an_error_and_the_row_keeps_the_answer(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.task("a")
    project.write("tasks/a/grader.py", "def grade(answer):\n    return answer.value['no such key']\n")
    result = project.run("tasks", *workers)
    assert outcomes(result) == {"errors": 1}
    row = project.records[0]
    assert (row["status"], row["reward"], row["answer"], row["attempt"]) == ("error", None, {"x": 1}, 1)
    assert row["error"] == "the grader raised KeyError: 'no such key' (grader.py:2)"


def test_a_grader_with_a_syntax_error_is_a_collection_error(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("tasks/a/grader.py", "def grade(:\n")
    result = project.run("tasks")
    assert result.ret == 2
    assert "grader.py:1: invalid syntax" in text_of(result)
    assert not core.sessions


# The hook


def test_the_task_is_graded_normally_if_the_hook_returns_none(project: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=WRONG)
    project.task("a")
    project.task("deep/b")
    project.task("deep/c")
    project.write(
        "conftest.py",
        "def pytest_rollout_grade(task, answer, rollout):\n"
        "    assert rollout.task is task and answer.value == {'x': 2}\n"
        "    return 1.0 if task.id == 'a' else None\n",
    )
    project.write(
        "tasks/deep/conftest.py", "def pytest_rollout_grade(task):\n    return True if task.id != 'deep/c' else None\n"
    )
    result = project.run("tasks")
    assert {task: row["reward"] for task, row in rows(project).items()} == {"a": 1.0, "deep/b": 1.0, "deep/c": 0.0}
    assert outcomes(result) == {"passed": 2, "failed": 1}


def test_a_hook_only_grades_tasks_in_its_folder(project: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=WRONG)
    project.task("one/a")
    project.task("two/b")
    project.write("tasks/one/conftest.py", "def pytest_rollout_grade(): return 1.0\n")
    project.run("tasks")
    assert {task: row["reward"] for task, row in rows(project).items()} == {"one/a": 1.0, "two/b": 0.0}


def test_a_hook_that_returns_an_invalid_grade_is_an_error(project: Project) -> None:
    project.task("a")
    project.write("conftest.py", "def pytest_rollout_grade(): return 'yes'\n")
    assert outcomes(project.run("tasks")) == {"errors": 1}
    assert "pytest_rollout_grade: expected a number from 0 to 1 or a Grade, got 'yes'" in project.records[0]["error"]


# The threshold


@pytest.mark.parametrize(("reward", "outcome", "solved"), [(0.8, "passed", "1/1"), (0.79, "failed", "0/1")])
def test_a_rollout_passes_if_its_reward_reaches_pass_threshold(
    project: Project, reward: float, outcome: str, solved: str
) -> None:
    project.task("a", yaml="pass_threshold: 0.8")
    project.write("tasks/a/grader.py", f"def grade(): return {reward}\n")
    result = project.run("tasks")
    assert outcomes(result) == {outcome: 1}
    (line,) = [line for line in result.outlines if line.startswith("| default")]
    cells = [cell.strip() for cell in line.split("|")]
    assert (cells[3], cells[5]) == (f"{reward:.3f}", solved)


# Further files


@WORKERS
def test_output_files_are_kept_and_passed_to_the_grader(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    artifacts = {"/workspace/outputs/fix.patch": b"--- a\n+++ b\n", "/workspace/outputs/r/x.md": b"X"}
    core.script = lambda body: Script(artifacts=artifacts)
    project.task("a", yaml='outputs: [fix.patch, "r/*.md"]')
    project.write("tasks/a/grader.py", "def grade(artifacts): return sorted(artifacts) == ['fix.patch', 'r/x.md']\n")
    assert outcomes(project.run("tasks", *workers)) == {"passed": 1}
    (row,) = project.records
    folder = f".{row['run_id']}.files/{row['rollout_id']}/a1"
    assert [(one["path"], one["size"], one["file"]) for one in row["outputs"]] == [
        ("fix.patch", 12, f"{folder}/0001"),
        ("r/x.md", 1, f"{folder}/0002"),
    ]
    assert (project.path / "runs" / folder / "0001").read_bytes() == b"--- a\n+++ b\n"


# Secrets


@WORKERS
@pytest.mark.parametrize("reward", [0, "fault"])
def test_a_secret_variable_only_reaches_the_sandbox(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch, reward: int | str, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", SECRET)
    core.script = lambda body: Script(
        answer=json.dumps({"x": f"the token is {SECRET}"}).encode(),
        artifacts={"/workspace/outputs/log.txt": f"TOKEN={SECRET}".encode()},
        items=[{"type": "message", "id": "i1", "text": SECRET}],
    )
    project.task("a", yaml="env: {TOKEN: {from_env: TEAM_TOKEN, secret: true}, MODE: fast}\noutputs: [log.txt]")
    if reward == "fault":
        project.write("tasks/a/grader.py", "def grade(answer): raise ValueError(answer.value['x'])\n")
    result = project.run("tasks", "-vv", "--junitxml", "junit.xml", "--rollout-report", "report.md", *workers)
    assert result.ret == 1
    (session,) = core.sessions.values()
    assert session.body["environment"]["env"] == {"TOKEN": SECRET, "MODE": "fast"}
    assert SECRET not in text_of(result)
    assert "[masked]" in text_of(result)
    written = [path for path in project.path.rglob("*") if path.is_file() and "tasks" not in path.parts]
    assert any(path.name == "0001" for path in written)
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@WORKERS
def test_a_task_whose_variable_is_not_set_is_skipped(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.task("a", yaml="env: {TOKEN: {from_env: TEAM_TOKEN, secret: true}}")
    result = project.run("tasks", "-rs", *workers)
    assert outcomes(result) == {"skipped": 1}
    assert "task a needs TEAM_TOKEN in the environment" in text_of(result)
    assert not core.sessions


def test_a_secret_does_not_change_the_digest(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.task("a", yaml="env: {TOKEN: {from_env: TEAM_TOKEN, secret: true}}")
    for value in (SECRET, "another-secret"):
        monkeypatch.setenv("TEAM_TOKEN", value)
        project.run("tasks")
    assert len({row["input_digest"] for row in project.records}) == 1


# The frontier


@WORKERS
def test_xfail_can_be_limited_to_agents(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    core.script = lambda body: Script(answer=WRONG)
    project.task("a", yaml="xfail: {reason: too long, harnesses: [codex], models: [small]}")
    result = project.run(
        "tasks", "--harness", "codex", "--harness", "claude_sdk", "--model", "small", "--model", "large", *workers
    )
    assert outcomes(result) == {"failed": 3, "xfailed": 1}
    assert [(row["harness"], row["model"]) for row in project.records if row["settings"].get("xfail")] == [
        ("codex", "small")
    ]


@WORKERS
@pytest.mark.parametrize("passing", [2, 1])
def test_an_xfail_is_reported_as_gained_if_half_of_its_samples_pass(
    project: Project, core: FakeCore, passing: int, workers: tuple[str, ...]
) -> None:
    core.script = lambda body: Script(answer=RIGHT if int(body["metadata"]["sample"]) < passing else WRONG)
    project.task("a", yaml="xfail: nobody yet")
    project.task("b", yaml="xfail: nobody yet\nsamples: 1")
    core_script = core.script
    core.script = lambda body: Script(answer=WRONG) if body["metadata"]["task"] == "b" else core_script(body)
    result = project.run("tasks", "--samples", "4", "--rollout-report", "report.md", *workers)
    assert result.ret == 0
    report = (project.path / "report.md").read_text().splitlines()
    for text in (result.outlines, report):
        gained = [line for line in text if "gained: " in line]
        assert gained == (["- gained: a by default: 2 of 4 samples pass; its xfail can go"] if passing == 2 else [])
