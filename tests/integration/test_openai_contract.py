"""Everything that we can send to OpenAI's service is what the newest official client could send."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pytest_core_rollouts.options.agent_file import _RULES
from tests.integration.conftest import RIGHT, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script
from tests.support.openai_client import NEWEST, python_with_client

pytestmark = pytest.mark.slow

AGENT = """
name: all
harness: codex
model: gpt-6-astra
instructions: Be careful.
tools: [{type: web_search, mode: cached, context_size: low}]
skills: [{type: skill_reference, skill_id: skill_1}]
container_size: large
reasoning: xhigh
service_tier: flex
"""
NOT_THERE = {"protocol", "base_url", "api_key_env", "api_key", "harness_config", "context_window", "max_output_tokens"}
"""Keys of an agent file that need another Core, or a model of your own."""
TASK = """
network: {allowed_domains: [example.org, "*.example.org"]}
packages: {python: [rich], npm: [left-pad]}
setup_commands: [make]
env: {MODE: fast}
outputs: ["*.txt"]
"""


def test_every_member_that_is_sent_is_one_of_the_official_client(project: Project) -> None:
    python = python_with_client(NEWEST)
    assert {line.split(":")[0] for line in AGENT.split()} >= {f"{key}" for key in _RULES.keys() - NOT_THERE}
    project.write("all.yaml", AGENT)
    project.task("all", yaml=TASK, files={"in.txt": "1"})
    project.task("least")
    script = Script(answer=RIGHT, turn_seconds=0.5, subagents=1)
    with FakeCore(script=lambda body: script, official=True) as core:
        options = ("--rollout-container-size", "small", "--rollout-label", "policy=7", "--samples", "2")
        arguments = ("--model", "gpt-6-astra", "--rollout-agent", "all.yaml", *options)
        result = project.run_apart("tasks", "--core", "openai", *arguments, env={"OPENAI_BASE_URL": core.base_url})
        assert outcomes(result) == {"passed": 8}, text_of(result)
        given = {"key": core.api_key, "bodies": [session.body for session in core.sessions.values()]}
        done = subprocess.run(
            [python, Path(__file__).parents[1] / "support" / "sdk_contract.py", core.base_url],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all that is sent and answered is valid\n"
