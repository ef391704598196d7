from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest

from pytest_core_rollouts.tasks.matrix import (
    ROLLOUT_ID_LIMIT,
    Agent,
    MatrixError,
    Rollout,
    check_distinct,
    make_id,
    new_run_id,
    slug,
)
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from tests.support.tables import rows

ODD_NAMES = [
    "openai/gpt-5:free", "a[b]", "qwen:32b", "my model (v2)", "m#1", "a and b", "../../x", "a.", ".hidden", "CON ",
    "a/b", "a:b", "a b", "é", "模型", "", "-", "a\nb", "a|b", "x" * 200 + "/",
]  # fmt: skip


@rows("value", ["codex", "claude_sdk", "gpt-4.1", "o3", "MiniMax-M2.7", "not"])
def test_plain_names_are_their_own_slug(value: str) -> None:
    assert slug(value) == value


@rows("value", ODD_NAMES)
def test_odd_names_get_a_safe_slug_with_a_digest(value: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", slug(value))
    assert re.search(r"(?:^|-)[0-9a-f]{6}$", slug(value))


def test_slugs_never_collide() -> None:
    values = [*ODD_NAMES, "a-b", "a.b", "a"]
    assert len({slug(value) for value in values}) == len(values)


def test_a_slug_depends_on_nothing_but_its_value() -> None:
    assert slug("openai/gpt-5:free") == "openai-gpt-5-free-" + slug("openai/gpt-5:free")[-6:]
    assert slug("a/b") == slug("a/b")


def test_run_ids_are_utc_and_distinct_within_a_second() -> None:
    moment = datetime(2026, 3, 29, 2, 30, 7, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    ids = {new_run_id(moment) for _ in range(50)}
    assert len(ids) > 40
    assert all(re.fullmatch(r"20260328T210007Z-[0-9a-f]{4}", run_id) for run_id in ids)


def rollout(task_id: str = "sales", agent: Agent | None = None, sample: int = 0, run_id: str = "R-1") -> Rollout:
    task = Task(id=task_id, instruction="Do it.", expected={"x": 1})
    return Rollout(task, agent or Agent(), sample, run_id, timeout=900.0, network=Network.disabled())


def test_ids_name_run_task_agent_and_sample() -> None:
    one = rollout(agent=Agent("codex", "gpt-4.1"), sample=3)
    assert one.name == "codex-gpt-4.1-3"
    assert one.group_id == "R-1.sales.codex-gpt-4.1"
    assert one.rollout_id == "R-1.sales.codex-gpt-4.1.3"
    assert one.idempotency_key(2) == "R-1.sales.codex-gpt-4.1.3-a2"


def test_no_two_rollouts_share_an_id() -> None:
    tasks = ["a.b", "a", "a/b", "a-b", "suite/a/sum", "suite/b/sum"]
    agents = [Agent("codex", "c"), Agent(name="b.codex-c"), Agent(name="c"), Agent("codex", "c.0")]
    ids = [make_id("R", task, agent, sample) for task in tasks for agent in agents for sample in range(12)]
    assert len(set(ids)) == len(ids)


def test_long_names_are_cut_and_stay_distinct() -> None:
    long = [rollout("t" * 300 + str(n), Agent("codex", "m" * 200), sample) for n in range(2) for sample in (0, 1234567)]
    ids = {one.rollout_id for one in long}
    assert len(ids) == 4
    for one in long:
        assert len(one.rollout_id) <= ROLLOUT_ID_LIMIT
        assert re.fullmatch(r"[A-Za-z0-9._-]+", one.rollout_id)
        assert one.rollout_id.startswith(one.group_id)
        assert len(one.idempotency_key(99).encode()) <= 128


def test_the_rollout_id_is_filled_into_the_model_url_and_nothing_else_is() -> None:
    agent = Agent("codex", "p", base_url="https://infer.example/{rollout_id}/v1/{other}", api_key_env="K")
    one = rollout(agent=agent)
    assert one.model_base_url(1) == f"https://infer.example/{one.rollout_id}/v1/{{other}}"


def test_an_agents_digest_ignores_its_name_and_sees_everything_else() -> None:
    agent = Agent("codex", "m", name="a", instructions="Be brief.")
    assert agent.digest == Agent("codex", "m", name="b", instructions="Be brief.").digest
    others = [
        Agent("mcode", "m", instructions="Be brief."),
        Agent("codex", "n", instructions="Be brief."),
        Agent("codex", "m", instructions="Be long."),
        Agent("codex", "m", instructions="Be brief.", tools=[{"type": "function"}]),
        Agent("codex", "m", instructions="Be brief.", harness_config={"effort": "low"}),
    ]
    assert len({agent.digest, *(other.digest for other in others)}) == 6


@rows(
    ("agent", "message"),
    [
        (Agent("codecks"), "unknown harness 'codecks'"),
        (Agent("codex", protocol="responses"), "needs a model base URL"),
        (Agent("codex", base_url="https://x/v1"), "needs the model's name"),
        (Agent("codex", "m", protocol="anthropic", base_url="https://x/v1"), "speaks responses, not anthropic"),
        (Agent("codex", "m", protocol="smoke", base_url="https://x/v1"), "unknown model protocol 'smoke'"),
        (Agent("mcode", "m", base_url="https://x/v1"), "choose one with --model-protocol"),
        (Agent("mcode", "m", protocol="anthropic", base_url="https://x/v1"), "--rollout-context-window"),
        (Agent("oracle", "m", base_url="https://x/v1"), "uses no model"),
    ],
)
def test_agents_no_core_could_serve(agent: Agent, message: str) -> None:
    with pytest.raises(MatrixError, match=re.escape(message)) as caught:
        agent.check()
    assert "\n" not in str(caught.value)


def test_the_protocol_defaults_to_the_only_one_spoken() -> None:
    agent = Agent("claude_sdk", "m", base_url="https://x/v1")
    agent.check()
    assert agent.effective_protocol == "anthropic"
    assert Agent("claude_sdk", "m").effective_protocol is None


def test_agents_that_would_share_a_name() -> None:
    with pytest.raises(MatrixError, match="named twice"):
        check_distinct([Agent("codex"), Agent("codex")])
    with pytest.raises(MatrixError, match="give one of the agent files another `name`"):
        check_distinct([Agent("codex"), Agent(name="codex-default")])
    check_distinct([Agent("codex", "a/b"), Agent("codex", "a-b")])
