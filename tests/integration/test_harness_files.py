"""Any agent as a harness, in real runs of pytest: the bundled tasks on scripted models, and what is refused first."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.conftest import Project, outcomes, text_of, usage_error
from tests.integration.test_real_agents import REPOSITORY, failing, solving
from tests.support.agents import KEY
from tests.support.scripted_models import Ask, Reply, Say, Script, ScriptedModel, Shell

pytestmark = pytest.mark.usefixtures("no_core")

EXAMPLES = REPOSITORY / "examples" / "harnesses"


@pytest.fixture
def bundled(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The bundled tasks, with the examples in the same project."""
    shutil.copytree(REPOSITORY / "tasks", project.path / "tasks")
    shutil.copytree(EXAMPLES, project.path / "agents")
    monkeypatch.setenv("MODEL_API_KEY", KEY)
    return project


def options(url: str, harness: str = "agents/tiny.yaml") -> tuple[str, ...]:
    return ("tasks", "--core", "embedded", "--harness", harness, "--model", "m", "--model-base-url", f"{url}/v1")


def captured(project: Project, row: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (project.path / "captures" / f"{row['rollout_id']}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_agent_of_twenty_lines_solves_the_bundled_tasks(bundled: Project) -> None:
    with ScriptedModel(solving) as model:
        result = bundled.run(*options(model.url), "--rollout-capture", "captures")
    assert outcomes(result) == {"passed": 5}, text_of(result)
    rows = bundled.records
    assert {(row["harness"], row["model"], row["reward"]) for row in rows} == {("tiny", "m", 1.0)}
    for row in rows:
        kinds = [item["type"] for item in row["items"]]
        call = ["function_call", "function_call_output"]
        assert kinds == ["message", "reasoning", *call, "message", *call, "message"]
        assert row["usage"]["total_tokens"] == 360
        lines = captured(bundled, row)
        assert [line["turn_id"] for line in lines] == [row["items"][0]["turn_id"]] * 3
        assert KEY not in json.dumps([row, lines])


VENV = REPOSITORY / ".venv" / "agents-venv"
INSTALL = (
    f"needs its program: python3 -m venv {VENV.relative_to(REPOSITORY)} && "
    f"{VENV.relative_to(REPOSITORY)}/bin/pip install mini-swe-agent openai-agents"
)


def solving_for_mini(ask: Ask) -> Reply:
    """As `solving`, but this agent ends by a command."""
    return solving(ask) if ask.step < 2 else Shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


@pytest.mark.slow
@pytest.mark.skipif(not VENV.exists(), reason=INSTALL)
@pytest.mark.parametrize(("name", "script"), [("mini", solving_for_mini), ("sdk", solving)])
def test_agents_with_packages_solve_the_bundled_tasks(bundled: Project, name: str, script: Script) -> None:
    (bundled.path / "agents" / "venv").symlink_to(VENV)
    with ScriptedModel(script) as model:
        capture = ("--rollout-capture", "captures", "--rollout-timeout", "300")
        result = bundled.run(*options(model.url, f"agents/{name}.yaml"), *capture)
    assert outcomes(result) == {"passed": 5}, text_of(result)
    for row in bundled.records:
        assert (row["harness"], row["reward"], row["usage"]["total_tokens"]) == (name, 1.0, 360)
        assert sum(item["type"] == "function_call" for item in row["items"]) == (2 if name == "sdk" else 3)
        assert len(captured(bundled, row)) == 3


def test_ini_key_and_agent_file_name_a_harness_file_relative_to_themselves(bundled: Project) -> None:
    bundled.write("agents/sure.yaml", "harness: tiny.yaml\nmodel: m\nbase_url: URL/v1\ninstructions: Be sure.\n")
    with ScriptedModel(failing) as model:
        agent = bundled.path / "agents" / "sure.yaml"
        agent.write_text(agent.read_text().replace("URL", model.url))
        bundled.ini(f"rollout_model_base_url = {model.url}/v1")
        options = ("--core", "embedded", "--model", "n", "--rollout-agent", "agents/sure.yaml")
        result = bundled.run("tasks/orders-json", *options, "--rollout-harness", "agents/tiny.yaml")
        assert outcomes(result) == {"failed": 2}, text_of(result)
        assert any("Be sure." in ask.text for ask in model.requests)
    assert {(row["agent"]["slug"], row["harness"]) for row in bundled.records} == {("sure", "tiny"), ("tiny-n", "tiny")}
    replayed = bundled.run("tasks", "--rollout-replay", str(bundled.results[0].relative_to(bundled.path)))
    assert outcomes(replayed) == {"failed": 2}, text_of(replayed)


def test_skill_reaches_the_agent_of_a_harness_file_and_its_effect_is_compared(bundled: Project) -> None:
    bundled.write("agents/skills/csv/SKILL.md", "---\nname: csv\ndescription: How to read CSV.\n---\nUse csv.\n")
    bundled.write("agents/able.yaml", f"{(EXAMPLES / 'tiny.yaml').read_text()}skills: .agents/skills\n")

    def script(ask: Ask) -> Reply:
        return Shell("cat ~/.agents/skills/csv/SKILL.md && exit 3") if ask.step == 0 else Say("Done.")

    with ScriptedModel(script) as model:
        for name, skills in (("plain", ""), ("skilled", "skills: [skills/csv]\n")):
            agent = f"harness: able.yaml\nmodel: m\nbase_url: {model.url}/v1\n{skills}"
            bundled.write(f"agents/{name}.yaml", agent)
        agents = ("--rollout-agent", "agents/plain.yaml", "--rollout-agent", "agents/skilled.yaml")
        result = bundled.run("tasks/orders-json", "--core", "embedded", *agents)
    assert outcomes(result) == {"failed": 2}, text_of(result)
    outputs = {row["agent"]["slug"]: row["items"][2]["output"] for row in bundled.records}
    assert "No such file" in outputs["plain"]
    assert "description: How to read CSV." in outputs["skilled"]
    verb = ("-m", "pytest_core_rollouts", "compare", str(bundled.results[0]))
    compared = subprocess.run([sys.executable, *verb], capture_output=True, text=True, cwd=bundled.path)
    assert "skilled" in compared.stdout, compared


def refusal(project: Project, mounts: str, *more: str) -> str:
    project.write("agents/own.yaml", f"command: [python3, -c, pass]\nprotocol: responses\nmounts: [{mounts}]\n")
    return usage_error(project.run(*options("http://127.0.0.1:9", "agents/own.yaml"), *more))


def test_what_cannot_run_is_refused_before_anything_is_paid_for(
    bundled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled.write("results/old.txt", "")
    where = f"{bundled.path}/agents/own.yaml:3: mounts[0]: "
    for mounts, reason in (
        ("../tasks", f"a sandbox can't show it, because it lies in {bundled.path}/tasks"),
        ("../tasks/orders-json/files", f"a sandbox can't show it, because it lies in {bundled.path}/tasks"),
        ("..", f"a sandbox can't show it, because it holds {bundled.path}"),
        ("../results", f"a sandbox can't show it, because it lies in {bundled.path}/results"),
    ):
        error = refusal(bundled, mounts, "--rollout-capture", "results")
        assert where in error, error
        assert reason in error
    assert "own.yaml:3: mounts[0]:" in refusal(bundled, "none")
    error = usage_error(bundled.run("tasks", "--core", "http://127.0.0.1:9/v1", "--harness", "agents/tiny.yaml"))
    assert "harness tiny: requires --core embedded; a harness file runs a program of this machine" in error
    error = usage_error(bundled.run("tasks", "--core", "embedded", "--harness", "agents/tiny.yaml"))
    assert "harness tiny: the embedded Core has no default model; pass --model NAME" in error
    error = usage_error(bundled.run("tasks", "--core", "embedded", "--harness", "agents/none.yaml"))
    assert "agents/none.yaml: can't be read: No such file or directory" in error
    for key in (KEY, f"sk-{'a1' * 12}"):
        bundled.write("agents/key.yaml", f"command: [echo]\nprotocol: responses\nenv: {{OPENAI_API_KEY: {key}}}\n")
        error = usage_error(bundled.run(*options("http://127.0.0.1:9", "agents/key.yaml")))
        assert "agents/key.yaml: " in error
        assert "and agents can read it; write {api_key}" in error
        assert key not in error
    bundled.write("agents/arg.yaml", "command: [echo, '{instruction}']\nprotocol: responses\n")
    bundled.write("tasks/orders-json/instruction.md", "x" * 140_000)
    error = usage_error(bundled.run(*options("http://127.0.0.1:9", "agents/arg.yaml")))
    assert "agents/arg.yaml: the instruction of task orders-json has 140,000 bytes" in error
    assert not bundled.results
