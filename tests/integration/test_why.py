"""Why a reward is not 1 stands in the row and in every report, in the same words."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_core_rollouts.cli import main
from pytest_core_rollouts.report.html_data import details, index, scan
from tests.integration.conftest import Project, text_of
from tests.support.fake_core import FakeCore, Script

SECRET = "db-password-canary-77"
ANSWERS: dict[str, Script] = {
    "differs": Script(answer=json.dumps({"x": 2, "y": {"z": 1}}).encode()),
    "fenced": Script(answer=b"```json\n{}\n```"),
    "missing": Script(),
    "gives": Script(answer=b'{"x": 1}'),
    "says": Script(answer=b'{"x": 1}'),
    "slow": Script(never_ends=True),
    "leaks": Script(answer=json.dumps({"x": f"{'x' * 20}{SECRET}"}).encode()),
    "broken": Script(turn_status="failed", error={"code": "context_length_exceeded", "message": "Too long."}),
    "solved": Script(answer=b'{"x": 1, "y": 2}'),
}
WHYS: dict[str, str | None] = {
    "differs": "x: 1 expected, 2 answered (+1 more)",
    "fenced": "not JSON: code fence",
    "missing": "no answer.json",
    "gives": "grader.py gave 0.3",
    "says": "half of it",
    "slow": "over the limit of 0.5 s",
    "leaks": 'x: 1 expected, "xxxxxxxxxxxxxxxxxxxx[masked]" answered (+1 more)',
    "broken": "the Turn failed: context_length_exceeded: Too long.",
    "solved": None,
}


@pytest.fixture
def tasks(project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    monkeypatch.setenv("COLUMNS", "400")
    secret = "env:\n  DB_PASSWORD:\n    from_env: DB_PASSWORD\n    secret: true\n"
    yaml = {"leaks": secret, "slow": "timeout: 0.5\n"}
    for name in ANSWERS:
        project.task(name, expected={"x": 1, "y": 2}, yaml=yaml.get(name))
    project.write("tasks/gives/grader.py", "def grade(answer): return 0.3\n")
    grader = "from pytest_core_rollouts import Grade\ndef grade(answer): return Grade(0.5, note='half of it')\n"
    project.write("tasks/says/grader.py", grader)
    core.script = lambda body: ANSWERS[body["metadata"]["task"]]
    return project


def from_rows(project: Project) -> dict[str, Any]:
    return {row["task"]: row["why"] for row in project.records}


def summary_lines(result: pytest.RunResult, *words: str) -> dict[str, str]:
    """What pytest's short summary says of each task."""
    lines = [line.partition(" - ") for line in result.outlines if line.startswith(words) and "::" in line]
    return {place.split("/")[1]: text for place, _, text in lines}


def test_in_rows_and_every_report(tasks: Project, capfd: pytest.CaptureFixture[str]) -> None:
    result = tasks.run("tasks", "--junitxml=junit.xml", "--rollout-report=report.md")
    assert from_rows(tasks) == WHYS
    rewards = {row["task"]: row["reward"] for row in tasks.records}
    assert rewards == {**dict.fromkeys(WHYS, 0.0), "gives": 0.3, "says": 0.5, "solved": 1.0}
    unsolved = {task: why for task, why in WHYS.items() if why is not None}
    failed = {task: f"reward {rewards[task]:g}: {why}" for task, why in unsolved.items()}
    assert summary_lines(result, "FAILED") == failed
    assert SECRET not in text_of(result)

    report = (tasks.path / "report.md").read_text()
    for task, why in unsolved.items():
        assert f"\n- 1 x {task}: {why.replace('[', chr(92) + '[').replace(']', chr(92) + ']')}\n" in report
    capfd.readouterr()
    assert main(["report", str(tasks.results[0])]) == 0
    printed = capfd.readouterr().out
    assert printed.partition("Why rewards")[2] == report.partition("Why rewards")[2]

    xml = ElementTree.parse(tasks.path / "junit.xml")
    for case in xml.iter("testcase"):
        properties = {one.get("name"): one.get("value") for one in case.iter("property")}
        assert properties.get("why") == WHYS[str(case.get("classname")).split(".")[1]]
    messages = {str(one.get("message")).partition("\n")[0] for one in xml.iter("failure")}
    assert messages == set(failed.values())

    found = scan(tasks.results)
    data = index(found, ["x"])
    tasks_of = [data["tasks"][at] for at in data["rollouts"]["task"]]
    assert dict(zip(tasks_of, data["rollouts"]["brief"], strict=True)) == {
        task: why or "" for task, why in WHYS.items()
    }
    shown = [json.loads(text)["why"] for text in details(tasks.results, found)]
    assert dict(zip(tasks_of, shown, strict=True)) == WHYS
    assert "over the limit of 0.5 s" in [cause["text"] for cause in data["causes"]]


def test_with_gates_and_hidden_values(tasks: Project) -> None:
    result = tasks.run("tasks", "--rollout-gate=mean>=0", "-rA", "--rollout-hide-expected")
    hidden = {
        **WHYS,
        "differs": "x: 2 answered, not as expected (+1 more)",
        "leaks": 'x: "xxxxxxxxxxxxxxxxxxxx[masked]" answered, not as expected (+1 more)',
        "says": "the grader's note is (hidden)",
    }
    assert from_rows(tasks) == hidden
    rewards = {row["task"]: row["reward"] for row in tasks.records}
    assert summary_lines(result, "SOLVED", "UNSOLVED") == {
        task: f"reward {rewards[task]:g}" + ("" if why is None else f": {why}") for task, why in hidden.items()
    }


def test_a_replay_says_the_same_and_hides_what_is_to_be_hidden(tasks: Project) -> None:
    tasks.run("tasks")
    [first] = tasks.results
    tasks.run("tasks", "--rollout-replay", str(first), "--rollout-out=again.jsonl")
    again = [json.loads(line) for line in (tasks.path / "again.jsonl").read_text().splitlines()]
    assert {row["task"]: row["why"] for row in again} == WHYS
    result = tasks.run("tasks", f"--rollout-replay={first}", "--rollout-out=hidden.jsonl", "--rollout-hide-expected")
    hidden = [json.loads(line) for line in (tasks.path / "hidden.jsonl").read_text().splitlines()]
    for text in (*(row["why"] or "" for row in hidden), *result.outlines):
        assert "1 expected" not in text
