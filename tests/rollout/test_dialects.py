"""What each kind of server gets: the agent as it runs it, and the body that creates a Session."""

from __future__ import annotations

import pytest

from pytest_core_rollouts.rollout.dialects import OPENAGENTCORE, OPENAI, dialect_named, dialect_of
from pytest_core_rollouts.rollout.session_creation import session_body
from pytest_core_rollouts.tasks.matrix import Agent, MatrixError
from tests.support.fake_core import official
from tests.support.rollouts import RUN_ID, TASK, plan


def test_the_host_says_which_server_it_is() -> None:
    urls = {
        "https://api.openai.com/v1": OPENAI,
        "https://API.OpenAI.com.:443/v1/": OPENAI,
        " https://us.api.openai.com/v1": OPENAI,
        "https://core.example/api.openai.com/v1": OPENAGENTCORE,
        "https://notapi.openai.com.example/v1": OPENAGENTCORE,
        "https://xapi.openai.com/v1": OPENAGENTCORE,
        "https://[::1/v1": OPENAGENTCORE,
        None: OPENAGENTCORE,
    }
    assert {url: dialect_of(url) for url in urls} == urls
    assert dialect_named("openai") is OPENAI
    with pytest.raises(ValueError, match="expected 'openagentcore' or 'openai', got 'azure'"):
        dialect_named("azure")  # type: ignore[arg-type]


def test_openai_s_service_gets_its_own_members_and_no_extension() -> None:
    agent = Agent(
        model="gpt-6-astra",
        instructions="Be careful.",
        tools=({"type": "web_search"},),
        skills=({"type": "skill_reference", "skill_id": "s"},),
        container_size="small",
        reasoning="low",
        service_tier="flex",
    )
    resolved = OPENAI.resolve(agent)
    OPENAI.check(resolved)
    body = session_body(plan(TASK, resolved), attempt=2, dialect=OPENAI)
    assert body == {
        "agent": {
            "model": "gpt-6-astra",
            "instructions": "Be careful.",
            "tools": [{"type": "web_search"}],
            "reasoning": {"effort": "low"},
            "service_tier": "flex",
        },
        "environment": {
            "type": "openai_hosted",
            "network": {"access": "disabled"},
            "container_size": "small",
            "skills": [{"type": "skill_reference", "skill_id": "s"}],
        },
        "input": "Add the numbers.",
        "metadata": {
            "run_id": RUN_ID,
            "rollout_id": f"{RUN_ID}.sum.codex-gpt-6-astra.0",
            "attempt": "2",
            "task": "sum",
            "agent": "codex-gpt-6-astra",
            "sample": "0",
        },
    }
    assert official.problem(body) is None


def test_members_of_openai_s_service_are_refused_elsewhere() -> None:
    for agent in (Agent(container_size="small"), Agent(reasoning="low"), Agent(service_tier="flex")):
        with pytest.raises(MatrixError, match="requires OpenAI's service"):
            OPENAGENTCORE.check(agent)
        with pytest.raises(MatrixError, match="no default model"):
            OPENAI.check(agent)


def test_each_new_member_is_part_of_the_agent_s_digest() -> None:
    agents = [Agent(), Agent(container_size="small"), Agent(reasoning="low"), Agent(service_tier="flex")]
    assert len({agent.digest for agent in agents}) == 4
