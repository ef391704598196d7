"""What goes to Core: the body that creates a Session, exactly; and what goes nowhere, over all the traffic of a run."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.rollout.session_creation import metadata, session_body
from pytest_core_rollouts.tasks.files import InputFile, TaskError
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.matrix import Agent, MatrixError
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.rollouts import RUN_ID, WRONG, on, plan, run
from tests.support.tables import rows

BYTES = bytes(range(256)) + b"\r\n\x00"


def test_the_least_that_a_session_is_asked_for() -> None:
    assert session_body(plan()) == {
        "environment": {"type": "openai_hosted", "network": {"access": "disabled"}},
        "input": "Add the numbers.",
        "metadata": {
            "run_id": RUN_ID,
            "rollout_id": f"{RUN_ID}.sum.default-default.0",
            "attempt": "1",
            "task": "sum",
            "agent": "default-default",
            "sample": "0",
        },
    }


def test_all_that_a_task_can_say() -> None:
    task = Task(
        id="sql/joins",
        instruction="Braces {stay} {rollout_id} and so does \u00e9\r\n",
        expected={"n": 1},
        files=(InputFile.of("data/all.bin", BYTES), InputFile.of(".env", b"")),
        env={"MODE": "fast"},
        packages={"npm": ("left-pad",), "python": ("rich==13.0", "attrs")},
        setup_commands=("make", "make check"),
        tags=("slow",),
        timeout=3.0,
    )
    body = session_body(plan(task, network=Network("restricted", ("example.org", "*.example.org"))))
    assert body["environment"] == {
        "type": "openai_hosted",
        "network": {"access": "restricted", "allowed_domains": ["example.org", "*.example.org"]},
        "files": [
            {"type": "inline", "path": "/workspace/.env", "data": ""},
            {"type": "inline", "path": "/workspace/data/all.bin", "data": base64.b64encode(BYTES).decode()},
        ],
        "env": {"MODE": "fast"},
        "packages": {"npm": ["left-pad"], "python": ["rich==13.0", "attrs"]},
        "setup_commands": [{"command": "make"}, {"command": "make check"}],
    }
    assert body["input"] == "Braces {stay} {rollout_id} and so does \u00e9\r\n"
    assert body["metadata"]["task"] == "sql/joins"
    assert body.keys() == {"environment", "input", "metadata"}


def test_all_that_an_agent_can_say() -> None:
    agent = Agent(
        harness="mcode",
        model="openai/gpt-5:free",
        name="careful",
        protocol="chat_completions",
        base_url="https://models.example/r/{rollout_id}/v1",
        api_key_env="MY_KEY",
        instructions="Be careful.",
        tools=({"type": "web_search"},),
        skills=({"type": "skill_reference", "skill_id": "s"},),
        harness_config={"effort": "low"},
        context_window=200_000,
        max_output_tokens=8_000,
    )
    rollout = plan(agent=agent, sample=7)
    body = session_body(rollout, model_key="sk-of-the-model")
    assert body["agent"] == {
        "model": "openai/gpt-5:free",
        "instructions": "Be careful.",
        "tools": [{"type": "web_search"}],
        "x_agents_core": {"harness": "mcode", "harness_config": {"effort": "low"}},
    }
    assert body["environment"]["skills"] == [{"type": "skill_reference", "skill_id": "s"}]
    assert body["x_agents_core"] == {
        "model_provider": {
            "protocol": "chat_completions",
            "base_url": f"https://models.example/r/{rollout.rollout_id}/v1",
            "api_key": "sk-of-the-model",
            "context_window": 200_000,
            "max_output_tokens": 8_000,
        }
    }


@rows(
    ("agent", "block"),
    [
        (Agent(harness="codex"), {"x_agents_core": {"harness": "codex"}}),
        (Agent(model="m"), {"model": "m"}),
        (Agent(harness="claude_sdk", model="m"), {"model": "m", "x_agents_core": {"harness": "claude_sdk"}}),
        (Agent(harness_config={"effort": "high"}), {"x_agents_core": {"harness_config": {"effort": "high"}}}),
        (Agent(instructions=""), {"instructions": ""}),
    ],
)
def test_what_an_agent_does_not_say_is_left_to_the_deployment(agent: Agent, block: dict[str, Any]) -> None:
    body = session_body(plan(agent=agent))
    assert body["agent"] == block
    assert "x_agents_core" not in body


@rows(("harness", "protocol"), [("codex", "responses"), ("claude_sdk", "anthropic")])
def test_a_model_provider_is_complete(harness: str, protocol: str) -> None:
    agent = Agent(harness=harness, model="m", base_url="https://models.example/v1", api_key_env="MODEL_API_KEY")
    (provider,) = session_body(plan(agent=agent), model_key="key")["x_agents_core"].values()
    assert provider == {"protocol": protocol, "base_url": "https://models.example/v1", "api_key": "key"}
    with pytest.raises(MatrixError, match="set MODEL_API_KEY"):
        session_body(plan(agent=agent))


def test_a_model_provider_without_its_key_costs_no_request() -> None:
    agent = Agent(harness="codex", model="m", base_url="https://models.example/v1", api_key_env="MODEL_API_KEY")
    with FakeCore() as core:
        ran = run(core, plan(agent=agent, retries=3))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert "set MODEL_API_KEY" in ran.record.error
        assert core.requests == []


def test_braces_next_to_the_rollout_id_are_valid() -> None:
    agent = Agent(harness="codex", model="m", base_url="https://models.example/{x}/{rollout_id}/{rollout_id}/{0}/v1")
    rollout = plan(agent=agent)
    (provider,) = session_body(rollout, model_key="key")["x_agents_core"].values()
    assert provider["base_url"] == f"https://models.example/{{x}}/{rollout.rollout_id}/{rollout.rollout_id}/{{0}}/v1"


def test_the_same_rollout_gives_the_same_body() -> None:
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        # the first answer is lost, so that the same key is sent again: Core would refuse another body
        core.fault = on("create", Fault(reset=True, processed=True), last=1)
        assert run(core).verdict == ("completed", 0.0)
        first, second = (request for request in core.requests if request.route == "create")
        assert first.body == second.body
        assert first.header("idempotency-key") == second.header("idempotency-key")
        assert len(core.sessions) == 1


def test_a_file_that_changed_since_is_an_error_without_a_request(tmp_path: Path) -> None:
    (tmp_path / "instruction.md").write_text("Add.")
    (tmp_path / "expected.json").write_text('{"n": 1}')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "data.csv").write_text("1,2")
    task = load_task(tmp_path, "t")
    (tmp_path / "files" / "data.csv").write_text("1,3")
    with pytest.raises(TaskError, match="changed since"):
        session_body(plan(task))
    with FakeCore() as core:
        ran = run(core, plan(task, retries=3))
        assert ran.verdict == ("error", None)
        assert "data.csv: changed since" in str(ran.record.error)
        assert core.requests == []


# Metadata


def test_metadata_stays_within_the_limits() -> None:
    task = Task(id="a/" + "deep/" * 59 + "t" * 3, instruction="x", expected={"n": 1})
    agent = Agent(harness="codex", model="m" * 200)
    labels = {f"label-{number}-{'k' * 80}": "v" * 600 for number in range(8)}
    rollout = plan(task, agent, labels=labels, sample=10**6)
    sent = metadata(rollout)
    assert len(task.id) == 300
    assert sent["task"] == task.id
    assert sent["rollout_id"] == rollout.rollout_id
    assert len(rollout.rollout_id) <= 120
    assert len(sent) == 6 + 8
    assert all(len(key) <= 64 and len(value) <= 512 for key, value in sent.items())
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        assert run(core, rollout).verdict == ("completed", 0.0)
        (request,) = (request for request in core.requests if request.route == "create")
        assert len((request.header("idempotency-key") or "").encode()) <= 128


def test_cut_names_differ_by_a_digest() -> None:
    value = "v" * 600
    cut = metadata(plan(labels={"policy": value}))["label.policy"]
    assert cut == "v" * 499 + "-" + hashlib.sha256(value.encode()).hexdigest()[:12]
    assert cut != metadata(plan(labels={"policy": value + "w"}))["label.policy"]
    assert metadata(plan(labels={"policy": "v" * 512}))["label.policy"] == "v" * 512


def test_labels_beyond_the_api_s_pairs_stay_in_the_record() -> None:
    labels = {f"label-{number:02}": "x" for number in range(20)}
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        ran = run(core, plan(labels=labels))
        assert ran.verdict == ("completed", 0.0)
        assert ran.record.labels == labels


def test_text_that_utf_8_can_not_hold_is_escaped() -> None:
    assert metadata(plan(labels={"who": "caf\udce9"}))["label.who"] == "caf\\udce9"


# What goes nowhere


CANARY = "canary-7f3d9a"


def test_no_expected_value_no_solution_and_no_stray_key_in_any_request(tmp_path: Path) -> None:
    (tmp_path / "instruction.md").write_text("Say the word.")
    (tmp_path / "expected.json").write_text(f'{{"word": "{CANARY}", "number": 918273645, "inside": ["{CANARY}-too"]}}')
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text("echo the-line-of-a-solution\n")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "data.csv").write_text("1,2")
    task = load_task(tmp_path, "t")
    agent = Agent(harness="codex", model="m", base_url="https://models.example/{rollout_id}/v1", api_key_env="K")
    key = "sk-model-5b1e"
    scripts = [
        Script(answer=b'{"word": "no"}'),
        Script(answer=b'{"word": "canary-7f3d9a", "number": 918273645, "inside": ["canary-7f3d9a-too"]}'),
        Script(never_ends=True),
        Script(turn_status="failed"),
        Script(session_failure="no room"),
        Script(requires_action=True),
    ]
    rewards = []
    for sample, script in enumerate(scripts):
        with FakeCore(script=lambda body, script=script: script) as core:  # type: ignore[misc]
            rollout = plan(task, agent, timeout=0.6, retries=1, sample=sample)
            rewards.append(run(core, rollout, model_key=lambda rollout: key).record.reward)
            assert core.requests
            for request in core.requests:
                sent = repr((request.target, request.headers)).encode() + request.body
                for secret in (CANARY, "918273645", "the-line-of-a-solution"):
                    assert secret.encode() not in sent
                    assert base64.b64encode(secret.encode()).strip(b"=")[:-1] not in sent
                assert sent.count(key.encode()) == (request.route == "create")
                assert sent.count(core.api_key.encode()) == 1
                assert request.header("authorization") == f"Bearer {core.api_key}"
    assert rewards == [0.0, 1.0, 0.0, None, None, 0.0]


def test_the_solution_is_only_sent_under_oracle(tmp_path: Path) -> None:
    (tmp_path / "instruction.md").write_text("Say the word.")
    (tmp_path / "expected.json").write_text('{"n": 1}')
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text("echo \u00e9\n", encoding="utf-8")
    task = load_task(tmp_path, "t")
    oracle = session_body(plan(task, Agent(harness="oracle")), core_is_ours=True)
    assert oracle["agent"] == {
        "x_agents_core": {"harness": "oracle", "harness_config": {"solution": "echo \u00e9\n"}},
    }
    with pytest.raises(MatrixError, match="never sent to another"):
        session_body(plan(task, Agent(harness="oracle")))
    for harness in ("default", "codex", "claude_sdk", "mcode", "nop"):
        assert "echo" not in str(session_body(plan(task, Agent(harness=harness))))
