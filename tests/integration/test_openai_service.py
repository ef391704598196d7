"""A run on OpenAI's own service, as a user starts it: what is sent, and what rows say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Script

RUN = ("tasks", "--core", "openai", "--model", "gpt-6-astra")


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """OpenAI's service: each create makes a Session, and in the end none is left."""
    with FakeCore(script=lambda body: Script(answer=RIGHT), official=True) as running:
        yield running
        assert not [session.id for session in running.sessions.values() if not session.deleted]


def test_a_run_sends_what_the_service_takes(project: Project, core: FakeCore) -> None:
    project.task("a", yaml="packages: {python: [rich]}\nsetup_commands: [make]\n", files={"in.txt": "1"})
    project.task("b")
    project.write("careful.yaml", "model: gpt-6-nova\nreasoning: high\nservice_tier: flex\ncontainer_size: large\n")
    result = project.run(
        *RUN, "--harness", "codex", "--rollout-agent", "careful.yaml", "--rollout-container-size=small"
    )
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert {row["harness"] for row in project.records} == {"codex"}
    bodies = [json.dumps(session.body) for session in core.sessions.values()]
    assert not any("x_agents_core" in body for body in bodies)
    sizes = {
        session.body["agent"]["model"]: session.body["environment"]["container_size"]
        for session in core.sessions.values()
    }
    assert sizes == {"gpt-6-astra": "small", "gpt-6-nova": "large"}
    assert len({row["agent"]["digest"] for row in project.records}) == 2


def test_a_key_is_not_enough_to_run_on_the_service(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    project.task()
    assert usage_error(project.run("tasks", "--model", "gpt-6-astra")).startswith("no Core configured")
