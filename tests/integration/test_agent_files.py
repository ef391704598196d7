"""Agent files: a column of the matrix each, and all they say goes over the wire."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Project, node_ids, outcomes, usage_error
from tests.support.fake_core import FakeCore


def test_agents_that_only_differ_in_instructions_are_two_agents(project: Project, core: FakeCore) -> None:
    project.task()
    project.write("agents/terse.yaml", "harness: codex\nmodel: m\ninstructions: Be terse.\n")
    project.write("agents/careful.yaml", "harness: codex\nmodel: m\ninstructions: |\n  Check twice.\n  Then answer.\n")
    result = project.run(
        "--rollout-agent", "agents/terse.yaml", "--rollout-agent", "agents/careful.yaml", "--samples", "2"
    )
    assert outcomes(result) == {"passed": 4}
    sent = {session.metadata["agent"]: session.body["agent"] for session in core.sessions.values()}
    wire = {"model": "m", "x_agents_core": {"harness": "codex"}}
    assert sent == {
        "terse": {**wire, "instructions": "Be terse."},
        "careful": {**wire, "instructions": "Check twice.\nThen answer.\n"},
    }
    rows = project.records
    assert {row["agent"]["name"] for row in rows} == {"terse", "careful"}
    assert len({row["agent"]["digest"] for row in rows}) == 2
    heads = {cell.strip() for line in result.outlines for cell in line.split("|")}
    assert {"terse", "careful"} <= heads


def test_agent_files_can_be_combined_with_options(project: Project) -> None:
    project.task()
    project.write("terse.yaml", "harness: codex\nname: short and sweet")
    listed = node_ids(project.run("--rollout-agent", "terse.yaml", "--harness", "mcode", "--collect-only", "-q"))
    assert [line.rpartition("::")[2][:15] for line in listed] == ["short-and-sweet", "mcode-default-0"]


def test_an_agent_file_can_name_its_own_provider_and_key(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "own-key-55aa55aa")
    monkeypatch.setenv("MODEL_API_KEY", "model-key-77bb77bb")
    project.task()
    project.write(
        "own.yaml",
        "harness: codex\nmodel: m\nbase_url: https://m.example/{rollout_id}/v1\n"
        "api_key_env: OWN_KEY\nharness_config: {effort: low}\n",
    )
    args = (
        "--harness",
        "claude_sdk",
        "--model",
        "n",
        "--model-base-url",
        "https://n.example",
        "--rollout-agent",
        "own.yaml",
    )
    assert outcomes(project.run(*args, "--rollout-harness-config", "codex:top=1")) == {"passed": 2}
    own, other = (
        next(session for session in core.sessions.values() if session.metadata["agent"] == name)
        for name in ("own", "claude_sdk-n")
    )
    assert own.body["agent"]["x_agents_core"]["harness_config"] == {"effort": "low", "top": 1}
    assert own.body["x_agents_core"]["model_provider"] == {
        "protocol": "responses",
        "base_url": f"https://m.example/{own.metadata['rollout_id']}/v1",
        "api_key": "own-key-55aa55aa",
    }
    assert other.body["x_agents_core"]["model_provider"] == {
        "protocol": "anthropic",
        "base_url": "https://n.example",
        "api_key": "model-key-77bb77bb",
    }
    rows = b"".join(path.read_bytes() for path in project.results)
    assert b"own-key" not in rows
    assert b"model-key" not in rows


def test_two_agents_with_one_name_are_a_usage_error(project: Project) -> None:
    project.task()
    project.write("a.yaml", "name: codex-default")
    line = usage_error(project.run("--rollout-agent", "a.yaml", "--harness", "codex"))
    assert line == "two agents are named 'codex-default'; give one of the agent files another `name`"
