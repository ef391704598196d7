"""The same tasks through a pytest session, the Engine, `check` and a replay give equal rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts import Agent, Engine, load_tasks
from pytest_core_rollouts.checking.collecting import collect_tasks
from pytest_core_rollouts.checking.runs import run_tasks
from tests.integration.conftest import Project, text_of

SECRET = "token-of-the-task-51d0"
AGENTS = (Agent("oracle"), Agent("nop"))
GRADER = """
from pytest_core_rollouts import Grade, Reason

def grade(answer, artifacts):
    found = sorted(artifacts)
    return Grade(0.25 * len(found), [Reason("$.files", ["a", "b"], found)], f"{len(found)} files, {answer.problem}")
"""
SOLUTIONS = {
    "solved": "echo '{\"n\": 1}' >outputs/answer.json",
    "unsolved": 'echo \'{"n": 2, "more": [1]}\' >outputs/answer.json',
    "not-json": "echo 'seven, I think' >outputs/answer.json",
    "no-answer": "true",
    "kept": "echo one >outputs/a.md; mkdir outputs/logs; echo two >outputs/logs/b.txt; rm -f outputs/answer.json",
    "grader-raises": "echo '{\"n\": 1}' >outputs/answer.json",
    "fails": "echo out of luck >&2; exit 3",
    "slow": "echo '{\"n\": 1}' >outputs/answer.json; sleep 600",
    "secret": 'echo "{\\"n\\": \\"$T\\"}" >outputs/answer.json',
    "hard": "echo '{\"n\": 2}' >outputs/answer.json",
}
YAML = {
    "solved": "tolerance: {absolute: 0.5}\ntags: [easy]\n",
    "kept": 'outputs: [a.md, "logs/*"]\npass_threshold: 0.5\n',
    "slow": "timeout: 3\n",
    "secret": "env: {T: {from_env: TASK_TOKEN, secret: true}}\n",
    "hard": "xfail: too hard\n",
}
GRADERS = {"kept": GRADER, "grader-raises": "def grade(answer):\n    raise RuntimeError('the grader is broken')\n"}

ALWAYS = {
    "rollout_id": "ids",
    "run_id": "ids",
    "group_id": "ids",
    "session_id": "ids",
    "request_ids": "ids",
    "started_at": "times",
    "duration_s": "times",
    "timings": "times",
}
"""The fields that differ between any two runs, and what they hold."""

ALLOWED: dict[str, dict[str, str]] = {
    "engine": {},
    "check": {
        "items": "check reads no trajectories: it only shows what went wrong",
        "outputs": "check writes no rows, so it keeps no files next to them",
        "planned": "nobody reads a report of check's rows",
        "settings.timeout": "the limit of a task that sets none is 300 s: a solution is a script",
    },
    "replay": {
        "items": "the trajectories stay in the replayed file",
        "settings.replay_of": "names the row that was graded again",
    },
}
"""The further fields in which the rows of a host may differ from a session's, and why."""


def write_tasks(project: Project) -> None:
    for name, solution in SOLUTIONS.items():
        folder = project.task(name, expected={"n": 1}, yaml=YAML.get(name), files={"data.csv": "n\n1\n"})
        project.write(f"tasks/{name}/solution/solve.sh", f"mkdir -p outputs\n{solution}\n")
        if name in GRADERS:
            (folder / "expected.json").unlink()
            project.write(f"tasks/{name}/grader.py", GRADERS[name])


Row = dict[str, Any]
Rows = dict[tuple[str, str, int], Row]


def read_rows(lines: Iterable[bytes], folder: Path) -> Rows:
    """The rows by task, agent and sample, without ids and times, with what is in kept files."""
    rows: Rows = {}
    for line in lines:
        row = json.loads(line)
        for output in row["outputs"]:
            output["content"] = (folder / output.pop("file")).read_text()
        row["items"] = None if row["items"] is None else [without_ids_and_times(item) for item in row["items"]]
        row.update({f"settings.{name}": value for name, value in row.pop("settings").items()})
        key = row["task"], row["agent"]["slug"], row["sample"]
        assert key not in rows
        rows[key] = {name: value for name, value in row.items() if name not in ALWAYS}
    return rows


def without_ids_and_times(item: Mapping[str, Any]) -> Row:
    varying = ("id", "session_id", "turn_id", "created_at", "duration_ms")
    return {name: value for name, value in item.items() if name not in varying}


def differences(rows: Rows, expected: Rows, allowed: Iterable[str]) -> list[str]:
    return [
        f"{key}: {name}: expected {expected[key].get(name)!r}, got {row.get(name)!r}"
        for key, row in rows.items()
        for name in sorted({*row, *expected[key]} - set(allowed))
        if row.get(name) != expected[key].get(name)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("no_core")
def test_session_engine_check_and_replay_give_equal_rows(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASK_TOKEN", SECRET)
    project.ini()
    write_tasks(project)
    options = ("--samples", "2", "--rollout-out", "session/rows.jsonl")
    session = project.run_apart("tasks", "--core", "embedded", "--harness", "oracle", "--harness", "nop", *options)
    assert session.ret == 1, text_of(session)
    replay = project.run_apart("tasks", "--rollout-replay", "session/rows.jsonl", "--rollout-out", "replay/rows.jsonl")
    assert replay.ret == 1, text_of(replay)
    tasks = load_tasks(project.path / "tasks")
    with Engine.embedded(out=project.path / "engine/rows.jsonl") as engine:
        list(engine.submit(tasks, AGENTS, samples=2).records())
    collected = collect_tasks([])
    checked = run_tasks(list(collected.tasks.values()), collected.grading, collected.places)

    def written(folder: str) -> Rows:
        return read_rows((project.path / folder / "rows.jsonl").open("rb"), project.path / folder)

    rows = {name: written(name) for name in ("session", "engine", "replay")}
    for row in rows["replay"].values():  # an answer with a masked secret can't be graded again, and the row says so
        row["notes"] = [note for note in row["notes"] if not note.startswith("not graded again: a known secret")]
    rows["check"] = read_rows((record.to_line() for record in checked), project.path)
    expected = {(task, agent.slug, sample) for task in SOLUTIONS for agent in AGENTS for sample in (0, 1)}
    assert rows["session"].keys() == rows["engine"].keys() == rows["replay"].keys() == expected
    assert rows["check"].keys() == {key for key in expected if key[1:] != (AGENTS[1].slug, 1)}
    found = {name: differences(rows[name], rows["session"], allowed) for name, allowed in ALLOWED.items()}
    assert found == {name: [] for name in ALLOWED}
