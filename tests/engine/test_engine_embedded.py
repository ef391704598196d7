"""`Engine.embedded` from its first rollout to its end: the oracle and the real codex on the same tasks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from pytest_core_rollouts import (
    Agent,
    CoreError,
    Engine,
    Group,
    RolloutRecord,
    load_harness,
    load_tasks,
    read_records,
)
from tests.support.agents import KEY, needs_codex
from tests.support.running import descendants, until
from tests.support.scripted_models import Ask, Reply, Say, ScriptedModel, Shell

GRADER = """
def grade(answer, artifacts):
    return 0.5 * (artifacts.get("notes.md") == b"seen\\n") + 0.5 * (answer.value == {"sum": 6})
"""


def write_tasks(root: Path) -> Path:
    for name in ("by-value", "by-grader"):
        (root / name / "files").mkdir(parents=True)
        (root / name / "files" / "numbers.txt").write_text("1\n2\n3\n")
        (root / name / "instruction.md").write_text(f"Add the numbers of numbers.txt ({name}).")
        (root / name / "solution").mkdir()
        (root / name / "solution" / "solve.sh").write_text(
            "mkdir -p outputs; printf '{\"sum\": %d}' $(($(paste -sd+ numbers.txt))) >outputs/answer.json\n"
        )
    (root / "by-value" / "expected.json").write_text('{"sum": 6}')
    (root / "by-grader" / "grader.py").write_text(GRADER)
    (root / "by-grader" / "task.yaml").write_text("outputs: [notes.md]\n")
    return root


def policy(ask: Ask) -> Reply:
    """Solves the first sample of each task, and earns nothing with the second."""
    answer = 6 if "-0/v1" in ask.path or ".0/v1" in ask.path else 7
    command = f"mkdir -p outputs; echo seen >outputs/notes.md; echo '{{\"sum\": {answer}}}' >outputs/answer.json"
    return (Shell(command), Say("Done."))[ask.step]


def rewards(groups: list[Group]) -> dict[tuple[str, str], tuple[float | None, ...]]:
    return {(group.agent.harness, group.task.id): group.rewards for group in groups}


@needs_codex
def test_embedded_engine_runs_the_oracle_and_codex(tmp_path: Path) -> None:
    """Grading, rows, kept files, captures, masking and the end are those of a session on the embedded Core."""
    tasks = load_tasks(write_tasks(tmp_path / "tasks"))
    out, captures, saved = tmp_path / "runs" / "rows.jsonl", tmp_path / "captures", list[RolloutRecord]()
    before = set(descendants(os.getpid()))
    with ScriptedModel(policy) as model:
        codex = Agent("codex", "my-policy", base_url=f"{model.url}/{{rollout_id}}/v1", api_key=KEY)
        with Engine.embedded(out=out, save=saved.append, capture=captures) as engine:
            run = engine.submit(tasks, [Agent("oracle"), codex], samples=2, timeout=120)
            groups = list(run.groups())
            again = [record.reward for record in engine.submit(tasks[:1], Agent("oracle")).records()]
    assert rewards(groups) == {
        ("oracle", "by-value"): (1.0, 1.0),
        ("oracle", "by-grader"): (0.5, 0.5),
        ("codex", "by-value"): (1.0, 0.0),
        ("codex", "by-grader"): (1.0, 0.5),
    }
    assert len(again) == 1
    assert run.warnings == []
    rows = {row.rollout_id: row for row in read_records(out)}
    assert len(rows) == len(saved) == 9
    for group in groups:
        for record in group.records:
            row = rows[record.rollout_id]
            assert (row.status, row.reward, row.why) == ("completed", record.reward, record.why)
            assert row.planned == {"run": 8, "agent": 4, "tasks": 2, "group": 2}
            assert [item["type"] for item in row.items or ()].count("command_execution") == 1
            kept = [(out.parent / file["file"]).read_text() for file in row.outputs]
            assert kept == (["seen\n"] if (group.agent.harness, group.task.id) == ("codex", "by-grader") else [])
            if group.agent.harness == "codex":
                lines = (captures / f"{record.rollout_id}.jsonl").read_text().splitlines()
                assert len([line for line in lines if json.loads(line)]) >= 2
    everything = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*.jsonl"))
    assert KEY not in everything
    assert {ask.headers["authorization"] for ask in model.asks} == {f"Bearer {KEY}"}
    until(lambda: set(descendants(os.getpid())) <= before, "the end of the Core and its sandboxes")


def test_missing_program_is_an_error_before_the_first_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for package in ("codex_cli_bin", "claude_agent_sdk"):
        monkeypatch.setitem(sys.modules, package, None)
    tasks = load_tasks(write_tasks(tmp_path / "tasks"))
    saved = list[RolloutRecord]()
    with Engine.embedded(save=saved.append, out=tmp_path / "rows.jsonl") as engine:
        for harness, package in (("codex", "@openai/codex"), ("claude_sdk", "@anthropic-ai/claude-code")):
            agent = Agent(harness, "my-policy", base_url="http://127.0.0.1:9/v1", api_key=KEY)
            with pytest.raises(CoreError, match=f"is not installed: npm install -g {package}"):
                engine.submit(tasks, [Agent("nop"), agent])
    assert saved == []
    assert not (tmp_path / "rows.jsonl").exists()


def test_harness_file_runs_and_can_show_neither_earlier_nor_later_tasks(tmp_path: Path) -> None:
    """The Core only knows the tasks of its first run, but its sandboxes would show what a harness mounts."""
    (tmp_path / "shared").mkdir()
    first = load_tasks(write_tasks(tmp_path / "tasks"))
    base_url = "http://127.0.0.1:9/v1"

    def agent(name: str, mount: str) -> Agent:
        (tmp_path / f"{name}.yaml").write_text(
            f"command: [bash, -c, exit 3]\nprotocol: responses\nexit_codes: [3]\nmounts: [{mount}]\n"
        )
        return Agent(harness_file=load_harness(tmp_path / f"{name}.yaml"), model="m", base_url=base_url, api_key=KEY)

    with Engine.embedded(out=tmp_path / "runs" / "rows.jsonl") as engine:
        [record, *_] = engine.submit(first, agent("own", "shared")).records()
        assert (record.harness, record.status, record.reward) == ("own", "completed", 0.0)
        later = load_tasks(write_tasks(tmp_path / "shared" / "tasks"))
        with pytest.raises(CoreError, match=r"own.yaml:4: mounts\[0\]: .* because it holds .*/shared"):
            engine.submit(later, Agent("nop"))
    with Engine.embedded(out=tmp_path / "runs" / "rows.jsonl") as engine:
        list(engine.submit(first, Agent("nop")).records())
        with pytest.raises(CoreError, match=r"other.yaml:4: mounts\[0\]: .* because it lies in .*/tasks/by-value"):
            engine.submit(later[:1], agent("other", "tasks/by-value/files"))
