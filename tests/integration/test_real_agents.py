"""Codex and Claude Code, the real programs, in real runs of pytest: the bundled tasks on scripted models."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, outcomes, text_of, usage_error
from tests.support.agents import KEY, needs_claude, needs_codex
from tests.support.scripted_models import Ask, Reply, Say, ScriptedModel, Shell

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_core")]

REPOSITORY = Path(__file__).parents[2]
TASKS = ("failed-logins", "inventory-bug", "orders-json", "salaries-sqlite", "sales-by-region")
SOLUTIONS = {task: (REPOSITORY / "tasks" / task / "solution" / "solve.sh").read_text() for task in TASKS}
INSTRUCTIONS = {task: (REPOSITORY / "tasks" / task / "instruction.md").read_text().strip() for task in TASKS}


def task_of(ask: Ask) -> str:
    """Which task an agent is at, by the instruction it was given."""
    [task] = [task for task, instruction in INSTRUCTIONS.items() if instruction in ask.text]
    return task


def solving(ask: Ask) -> Reply:
    """Look around, solve, say so."""
    solve = f"cat >/tmp/solve.sh <<'END-OF-SOLUTION'\n{SOLUTIONS[task_of(ask)]}\nEND-OF-SOLUTION\nbash /tmp/solve.sh"
    return (Shell("ls -la", thought="What is here?"), Shell(solve, remark="Now I know."), Say("Solved."))[ask.step]


def failing(ask: Ask) -> Reply:
    wrong = "mkdir -p outputs && echo '{\"total\": -1}' >outputs/answer.json"
    return (Shell(wrong), Say("Solved, I am sure."))[ask.step]


@pytest.fixture
def bundled(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    shutil.copytree(REPOSITORY / "tasks", project.path / "tasks")
    monkeypatch.setenv("MODEL_API_KEY", KEY)
    return project


def agents(project: Project, url: str) -> list[str]:
    """An agent file for each harness, and the options that name them."""
    options = ["tasks", "--core", "embedded"]
    for name, harness in (("cx", "codex"), ("cl", "claude_sdk")):
        lines = [f"harness: {harness}", "model: scripted-1", f"base_url: {url}/{{rollout_id}}/v1"]
        lines += ["api_key_env: MODEL_API_KEY", "instructions: Work carefully.", ""]
        project.write(f"{name}.yaml", "\n".join(lines))
        options += ["--rollout-agent", f"{name}.yaml"]
    return options


def rewards(project: Project) -> dict[tuple[str, str], tuple[str, Any]]:
    return {(row["agent"]["name"], row["task"]): (row["status"], row["reward"]) for row in project.records}


@needs_codex
@needs_claude
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_both_solve_every_bundled_task_side_by_side(bundled: Project, workers: tuple[str, ...]) -> None:
    with ScriptedModel(solving) as model:
        result = bundled.run_apart(*agents(bundled, model.url), *workers)
        assert outcomes(result) == {"passed": 10}, text_of(result)
    assert rewards(bundled) == {(agent, task): ("completed", 1.0) for agent in ("cx", "cl") for task in TASKS}
    ids = {row["rollout_id"] for row in bundled.records}
    assert {re.split("/", ask.path)[1] for ask in model.asks} == ids, "byte for byte the JSONL's"
    for row in bundled.records:
        kinds = [item["type"] for item in row["items"]]
        assert kinds.count("command_execution") == 2
        assert "reasoning" in kinds
        assert (row["usage"] is None) == (row["harness"] == "claude_sdk")
    for ask in model.asks:
        assert KEY in (ask.headers.get("x-api-key"), ask.headers.get("authorization", "").removeprefix("Bearer "))
    everything = text_of(result) + "".join(path.read_text() for path in bundled.results)
    assert KEY not in everything


@needs_codex
@needs_claude
def test_both_earn_0_with_wrong_answers(bundled: Project) -> None:
    with ScriptedModel(failing) as model:
        result = bundled.run_apart(*agents(bundled, model.url))
    assert outcomes(result) == {"failed": 10}, text_of(result)
    assert rewards(bundled) == {(agent, task): ("completed", 0.0) for agent in ("cx", "cl") for task in TASKS}


@pytest.mark.slow
@needs_codex
@needs_claude
def test_twenty_rollouts_run_at_the_same_time(bundled: Project) -> None:
    """All of them wait for their models at the same time."""
    with ScriptedModel(solving, delay=4.0) as model:
        result = bundled.run_apart(
            *agents(bundled, model.url), "--samples", "2", "--rollout-concurrency", "20", "--rollout-timeout", "300"
        )
    assert outcomes(result) == {"passed": 20}, text_of(result)
    assert model.peak >= 12
    assert len(bundled.records) == 20


@needs_codex
def test_model_parameters_are_sent_and_requests_are_captured(bundled: Project) -> None:
    params = {"temperature": 0.5, "seed": "{sample}", "metadata": {"rollout": "{rollout_id}"}}
    options = ["--rollout-model-params", json.dumps(params), "--rollout-capture", "kept/models", "--samples", "2"]
    url = ["--model", "my-policy", "--model-base-url", "URL/r/{rollout_id}/v1", "--harness", "codex"]
    with ScriptedModel(solving) as model:
        url[3] = url[3].replace("URL", model.url)
        result = bundled.run_apart("--core", "embedded", "--rollout-task", "orders-json", *url, *options)
        assert outcomes(result) == {"passed": 2}, text_of(result)
    assert {ask.body["temperature"] for ask in model.asks} == {0.5}
    for row in bundled.records:
        assert row["settings"]["model_params"] == params
        lines = (bundled.path / "kept" / "models" / f"{row['rollout_id']}.jsonl").read_text().splitlines()
        kept = [json.loads(line) for line in lines]
        assert [line["rollout_id"] for line in kept] == [row["rollout_id"]] * 3
        assert {line["request"]["seed"] for line in kept} == {row["sample"]}
        assert {line["request"]["metadata"]["rollout"] for line in kept} == {row["rollout_id"]}
        assert {line["session_id"] for line in kept} == {row["session_id"]}
        assert {line["model"] for line in kept} == {"my-policy"}
        assert kept[-1]["response"]["output"][0]["content"][0]["text"] == "Solved."
        assert KEY not in "".join(lines)


@needs_codex
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_capture_contains_no_secret_of_a_task(
    project: Project, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", KEY)
    monkeypatch.setenv("TASKS_TOKEN", "the-token-of-the-task")
    project.task("sum", yaml="env: {TOKEN: {from_env: TASKS_TOKEN, secret: true}}\n")
    work = 'echo "$TOKEN, again $TOKEN"; mkdir outputs; echo \'{"x": 1}\' >outputs/answer.json'
    options = [
        "tasks",
        "--core",
        "embedded",
        "--harness",
        "codex",
        "--model",
        "m",
        "--rollout-capture",
        "kept",
        *workers,
    ]
    with ScriptedModel(lambda ask: (Shell(work), Say("Done."))[ask.step]) as model:
        result = project.run_apart(*options, "--model-base-url", model.url)
        assert outcomes(result) == {"passed": 1}, text_of(result)
        assert "the-token-of-the-task, again" in json.dumps(model.asks[-1].body), "the agent itself may tell its model"
    [kept] = (project.path / "kept").iterdir()
    assert "the-token" not in kept.read_text()
    assert "[masked], again [masked]" in kept.read_text()


def test_a_missing_agent_program_is_a_usage_error(bundled: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled.write("empty/nothing")
    monkeypatch.setenv("PATH", str(bundled.path / "empty"))
    monkeypatch.setenv("NPM_CONFIG_PREFIX", str(bundled.path / "empty"))
    options = ["--model", "m", "--model-base-url", "http://127.0.0.1:9/v1", "tasks", "--core", "embedded"]
    message = usage_error(bundled.run_apart("--harness", "codex", *options))
    assert message.startswith("--core embedded, harness codex: the codex program is not installed: npm install -g")
    assert not bundled.results
    for options_again in (["--collect-only", "-q"], ["-k", "nothing-of-this-name"]):
        result = bundled.run_apart("--harness", "codex", *options, *options_again)
        assert "not installed" not in text_of(result), "only who runs something needs it"


def test_a_missing_model_key_is_a_usage_error(bundled: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_API_KEY")
    options = ["--model", "m", "--model-base-url", "http://127.0.0.1:9/v1", "tasks", "--core", "embedded"]
    message = usage_error(bundled.run_apart("--harness", "codex", *options))
    assert message == "harness codex: a model base URL needs its key; set the environment variable MODEL_API_KEY"
