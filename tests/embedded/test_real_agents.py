"""Codex and Claude Code, the real programs, on scripted models: what becomes of their events, settings and failures."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore
from tests.support.agents import HARNESSES, KEY, both, creation, needs_claude, needs_codex
from tests.support.scripted_models import Ask, Cut, Fail, FailInStream, Hang, Reply, Say, ScriptedModel, Shell, Tool
from tests.support.wire import Wire, events

pytestmark = pytest.mark.slow

WRITE = "mkdir -p outputs && echo '{\"x\": 1}' >outputs/answer.json && echo out && echo err >&2"


def steps(*replies: Reply) -> Any:
    """A script: one reply after the other, the last one for ever."""
    return lambda ask: replies[min(ask.step, len(replies) - 1)]


def finish(wire: Wire, harness: str, model: ScriptedModel, **members: Any) -> tuple[str, dict[str, Any]]:
    """A Session's id and its Turn, which has ended."""
    session_id = wire.ok("POST", "/sessions", 201, json=creation(harness, f"{model.url}/v1", **members))["id"]
    return session_id, wire.wait(session_id, seconds=60)


def shapes(items: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Items without ids and times."""
    fields: dict[str, Callable[[dict[str, Any]], tuple[Any, ...]]] = {
        "message": lambda item: (item["role"], item["content"][0]["text"]),
        "reasoning": lambda item: tuple(part["text"] for part in item["summary"]),
        "command_execution": lambda item: (item["exit_code"], item["output"].strip()),
        "function_call": lambda item: (item["name"],),
        "function_call_output": lambda item: (item["output"],),
    }
    return [(item["type"], item["status"], *fields[item["type"]](item)) for item in items]


@both
def test_what_an_agent_does_becomes_items_artifacts_and_usage(agents_wire: Wire, harness: str) -> None:
    script = steps(Shell(WRITE, thought="Let me think.", remark="I write it."), Shell("exit 3"), Say("Done."))
    with ScriptedModel(script) as model:
        session_id, turn = finish(agents_wire, harness, model)
    assert turn["status"] == "completed", turn
    items = agents_wire.items(session_id)
    assert shapes(items) == [
        ("message", "completed", "user", "Do as the script says."),
        ("reasoning", "completed", "Let me think."),
        ("message", "completed", "assistant", "I write it."),
        ("command_execution", "completed", 0, "out\nerr"),
        ("command_execution", "failed", 3, ""),
        ("message", "completed", "assistant", "Done."),
    ]
    assert all(item["turn_id"] == turn["id"] for item in items)
    assert WRITE.split("&&")[-1].strip() in items[3]["command"]
    assert agents_wire.artifacts(session_id) == {"/workspace/outputs/answer.json": b'{"x": 1}\n'}
    usage = {
        "input_tokens": 300,
        "input_tokens_details": {"cached_tokens": 120},
        "output_tokens": 60,
        "output_tokens_details": {"reasoning_tokens": 15},
        "total_tokens": 360,
    }
    assert turn["usage"] == (usage if harness == "codex" else None)


@both
def test_items_are_announced_as_they_happen(agents_wire: Wire, harness: str) -> None:
    """The event of a command's start comes while the command runs: it is what lets the command end."""
    wire = agents_wire
    script = steps(Shell("while [ ! -e go ]; do sleep 0.05; done", thought="Hm."), Say("Done."))
    body = creation(harness, "", environment={"env": {"X": "1"}})
    seen: list[dict[str, Any]] = []
    with ScriptedModel(script) as model:
        body["x_agents_core"]["model_provider"]["base_url"] = model.url
        session_id = wire.ok("POST", "/sessions", 201, json={**body, "input": None})["id"]
        headers = {**wire.headers, "Accept": "text/event-stream"}
        with wire.client.stream("GET", f"{wire.base_url}/agents/sessions/{session_id}/events", headers=headers) as live:
            threading.Thread(target=wire.say, args=(session_id, "Go."), daemon=True).start()
            for event in events(live):
                seen.append(event)
                if event["type"].endswith("item.added") and event["item"]["type"] == "command_execution":
                    assert wire.items(session_id)[-1]["status"] == "in_progress"
                    break
        assert wire.cancel(session_id).status_code == 202
        turn = wire.wait(session_id)
    assert turn["status"] == "cancelled"
    assert turn["usage"] is None
    kinds = [event["type"].removeprefix("agent.session.turn.") for event in seen]
    assert kinds.index("reasoning_summary_text.done") < kinds.index("item.done") < len(kinds) - 1
    assert shapes(wire.items(session_id)[:2])[1] == ("reasoning", "completed", "Hm.")
    assert wire.items(session_id)[2]["status"] == "incomplete"


@needs_claude
def test_tools_other_than_the_shell_are_calls_with_their_results(agents_wire: Wire) -> None:
    write = Tool("Write", {"file_path": "/workspace/outputs/a.txt", "content": "text"})
    with ScriptedModel(steps(write, Tool("Read", {"file_path": "/nowhere"}), Say("Done."))) as model:
        session_id, turn = finish(agents_wire, "claude_sdk", model)
    assert turn["status"] == "completed"
    items = agents_wire.items(session_id)[1:]
    assert [(item["type"], item["status"]) for item in items] == [
        ("function_call", "completed"),
        ("function_call_output", "completed"),
        ("function_call", "failed"),
        ("function_call_output", "failed"),
        ("message", "completed"),
    ]
    assert items[0]["arguments"] == write.input
    assert items[0]["call_id"] == items[1]["call_id"]
    assert items[3]["output"] is None
    assert "does not exist" in items[3]["error"]
    assert agents_wire.artifacts(session_id) == {"/workspace/outputs/a.txt": b"text"}


@needs_codex
def test_a_patch_is_a_call(agents_wire: Wire) -> None:
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a.txt\n+text\n*** End Patch\nEOF"
    with ScriptedModel(steps(Shell(patch), Say("Done."))) as model:
        session_id, turn = finish(agents_wire, "codex", model)
    assert turn["status"] == "completed"
    call = agents_wire.items(session_id)[1]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "apply_patch", "completed")
    assert [change["path"] for change in call["arguments"]["changes"]] == ["/workspace/a.txt"]


# Failures

CONTEXT = Fail(400, {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "too long"})
PROMPT = Fail(400, {"type": "invalid_request_error", "message": "prompt is too long: 300000 tokens > 200000 maximum"})
FAILURES = [
    (Fail(401), "authentication_error", "answered 401: scripted: as the script wants it"),
    (Fail(403), "authentication_error", "answered 403"),
    (Fail(404), "agent_exited", "answered 404"),
    (Fail(400), "agent_exited", "answered 400"),
    (Fail(429), "rate_limit_exceeded", "answered 429"),
    (Fail(429, {"code": "insufficient_quota", "message": "pay"}), "usage_limit_exceeded", "answered 429"),
    (Fail(500), "server_error", "answered 500: scripted: as the script wants it"),
    (Fail(503), "server_overloaded", "answered 503"),
    (CONTEXT, "context_length_exceeded", "answered 400: context_length_exceeded: too long"),
    (PROMPT, "context_length_exceeded", "answered 400"),
    (Cut(), "connection_failed", "in the middle of a reply"),
    (Hang(), "request_timeout", "sent nothing for 2 seconds"),
    (Hang(after_headers=True), "request_timeout", "sent nothing for 2 seconds"),
]
OF_CODEX = [
    (FailInStream("context_length_exceeded"), "context_length_exceeded", "reported in its stream"),
    (FailInStream("rate_limit_exceeded"), "rate_limit_exceeded", "reported in its stream"),
    (FailInStream("server_error"), "server_error", "reported in its stream"),
    (Say("Half of", stop="max_output_tokens"), "max_output_tokens", "its limit of tokens"),
    (Say("I can", stop="content_filter"), "cyber_policy", "content filter"),
]
OF_CLAUDE = [
    (FailInStream("overloaded_error"), "server_overloaded", "reported in its stream"),
    (Say("Half of", stop="max_tokens"), "max_output_tokens", "its limit of tokens"),
    (Say("Half of", stop="model_context_window_exceeded"), "context_length_exceeded", "context window"),
    (Say("I can", stop="refusal"), "cyber_policy", "refused"),
]
MISSING = {str(param.values[0]): param.marks for param in HARNESSES}
SLOWLY = pytest.mark.slow  # Claude Code takes seconds over each


def cases() -> Iterator[Any]:
    for case in (*FAILURES, *OF_CODEX):
        yield pytest.param("codex", *case, marks=MISSING["codex"])
    for index, case in enumerate((*FAILURES, *OF_CLAUDE)):
        marks = () if index % 6 == 0 else (SLOWLY,)
        yield pytest.param("claude_sdk", *case, marks=(*MISSING["claude_sdk"], *marks))


@pytest.mark.parametrize(("harness", "reply", "code", "message"), list(cases()))
def test_a_failure_of_the_model_is_the_turns_error(
    agents_wire: Wire, harness: str, reply: Reply, code: str, message: str
) -> None:
    """It comes after a command that went well, whose Item stays."""
    with ScriptedModel(steps(Shell("echo first"), reply)) as model:
        session_id, turn = finish(agents_wire, harness, model)
    assert turn["status"] == "failed"
    assert turn["error"]["code"] == code, turn
    assert message in turn["error"]["message"]
    assert KEY not in json.dumps(turn)
    assert shapes(agents_wire.items(session_id))[1][:2] == ("command_execution", "completed")
    assert not agents_wire.artifacts(session_id)


@needs_codex
@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (Fail(404), "resource_not_found", "answered 404"),
        (Fail(400), "invalid_request", "answered 400"),
        (Fail(307, headers={"Location": "http://127.0.0.1:9/v1"}), "invalid_request", "set the final base URL"),
        (FailInStream("invalid_request_error"), "invalid_request", "reported in its stream"),
    ],
)
def test_before_its_first_reply_an_agent_is_not_to_blame(
    agents_wire: Wire, reply: Reply, code: str, message: str
) -> None:
    """Later the same faults can come from requests that the agent makes by hand."""
    with ScriptedModel(lambda ask: reply) as model:
        _, turn = finish(agents_wire, "codex", model)
    assert (turn["status"], turn["error"]["code"]) == ("failed", code), turn
    assert message in turn["error"]["message"]


@both
def test_a_model_that_nobody_serves(agents_wire: Wire, harness: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    session_id = agents_wire.ok("POST", "/sessions", 201, json=creation(harness, f"http://127.0.0.1:{port}/v1"))["id"]
    turn = agents_wire.wait(session_id, seconds=60)
    assert turn["error"]["code"] == "connection_failed"
    assert f"http://127.0.0.1:{port} can't be reached" in turn["error"]["message"]


@pytest.mark.slow
@both
def test_a_passing_fault_of_the_server_costs_no_rollout(harness: str) -> None:
    core = EmbeddedCore.reserve()
    core.start()
    faults = [Fail(503), Fail(500)]
    try:
        with (
            httpx.Client(timeout=30, trust_env=False) as client,
            ScriptedModel(lambda ask: faults.pop() if faults else Say("Done.")) as model,
        ):
            _, turn = finish(Wire(client, core.base_url, core.api_key), harness, model)
        assert turn["status"] == "completed", turn
        assert not faults
    finally:
        core.stop()


@both
def test_an_agent_that_is_killed_from_within_is_not_a_model_failure(agents_wire: Wire, harness: str) -> None:
    name = {"codex": "codex", "claude_sdk": "claude"}[harness]
    kill = (
        f"sleep 0.5; for p in /proc/[0-9]*; do case $(readlink $p/exe) in */{name}) kill -9 ${{p#/proc/}};; esac; done"
    )
    with ScriptedModel(steps(Shell(kill), Say("still here"))) as model:
        session_id, turn = finish(agents_wire, harness, model)
    assert turn["error"] == {"code": "agent_killed", "message": turn["error"]["message"]}
    assert "was ended by signal 9" in turn["error"]["message"]
    assert agents_wire.items(session_id)[1]["status"] == "incomplete"


# Cancelling

STAGES = {
    "before its first request": lambda ask: Hang(),
    "while a reply comes": lambda ask: Hang(after_headers=True),
    "while a command runs": steps(Shell("touch here; sleep 60; touch there")),
    "between replies": steps(Shell("true"), Hang()),
}


@both
@pytest.mark.parametrize("stage", STAGES)
def test_cancelling_at_every_stage_keeps_finished_items(agents_wire: Wire, harness: str, stage: str) -> None:
    wire = agents_wire
    with ScriptedModel(STAGES[stage]) as model:
        session_id = wire.ok("POST", "/sessions", 201, json=creation(harness, model.url))["id"]
        deadline = time.monotonic() + 20
        expected = {"while a command runs": 1, "between replies": 2}.get(stage, 1)
        while len(model.asks) < expected or (stage == "while a command runs" and len(wire.items(session_id)) < 2):
            assert time.monotonic() < deadline, (wire.turn(session_id), model.requests)
            time.sleep(0.02)
        before = [item for item in wire.items(session_id) if item["status"] != "in_progress"]
        assert wire.cancel(session_id).status_code == 202
        turn = wire.wait(session_id)
        assert (turn["status"], turn["error"]) == ("cancelled", None)
        after = wire.items(session_id)
        assert after[: len(before)] == before
        assert all(item["status"] == "incomplete" for item in after[len(before) :])
        wire.end(session_id)


# Settings


@both
def test_instructions_the_model_and_the_base_url_arrive(agents_wire: Wire, harness: str) -> None:
    instructions = 'Über alles: "be brief".\n\\ and \x7f too\t' + "x" * 200_000
    with ScriptedModel(steps(Say("Done."))) as model:
        url = f"{model.url}/rollouts/20261129T182233Z-1f0c.a_b.codex-x%20y.0/v1"
        body = creation(harness, url, agent={"instructions": instructions}, input="x" * 300_000)
        session_id = agents_wire.ok("POST", "/sessions", 201, json=body)["id"]
        assert agents_wire.wait(session_id)["status"] == "completed"
    [ask] = model.asks
    end = {"codex": "/responses", "claude_sdk": "/messages?beta=true"}[harness]
    assert ask.path == f"/rollouts/20261129T182233Z-1f0c.a_b.codex-x%20y.0/v1{end}"
    assert instructions in ask.text
    assert "x" * 300_000 in ask.text
    assert ask.body["model"] == "scripted-1"


CONFIGS = [
    ("codex", {"model_reasoning_effort": "high"}, lambda body: body["reasoning"]["effort"] == "high"),
    ("codex", {"model_reasoning_effort": "minimal"}, lambda body: body["reasoning"]["effort"] == "minimal"),
    ("claude_sdk", {"effort": "low"}, lambda body: body["output_config"]["effort"] == "low"),
    (
        "claude_sdk",
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        lambda body: body["thinking"] == {"type": "enabled", "budget_tokens": 2048},
    ),
    ("claude_sdk", {"thinking": {"type": "disabled"}}, lambda body: body.get("thinking", {}).get("type") != "enabled"),
]


@pytest.mark.parametrize(
    ("harness", "config", "arrived"), [pytest.param(*case, marks=MISSING[case[0]]) for case in CONFIGS]
)
def test_harness_config_arrives(agents_wire: Wire, harness: str, config: dict[str, Any], arrived: Any) -> None:
    with ScriptedModel(steps(Say("Done."))) as model:
        # Claude Code minds a budget only for models it knows to have one.
        agent = {"model": "claude-haiku-4-5"} if "thinking" in config else {}
        _, turn = finish(agents_wire, harness, model, config=config, agent=agent)
    assert turn["status"] == "completed", turn
    [ask] = model.asks
    assert arrived(ask.body), ask.body


REFUSED = [
    ("codex", {"effort": "low"}, ".effort"),
    ("codex", {"model_reasoning_effort": "huge"}, ".model_reasoning_effort"),
    ("claude_sdk", {"model_reasoning_effort": "low"}, ".model_reasoning_effort"),
    ("claude_sdk", {"effort": 3}, ".effort"),
    ("claude_sdk", {"thinking": "much"}, ".thinking"),
    ("claude_sdk", {"thinking": {"type": "enabled"}}, ".thinking.budget_tokens"),
    ("claude_sdk", {"thinking": {"type": "enabled", "budget_tokens": True}}, ".thinking.budget_tokens"),
    ("claude_sdk", {"thinking": {"type": "disabled", "budget_tokens": 4096}}, ".thinking.budget_tokens"),
]


@pytest.mark.parametrize(("harness", "config", "member"), REFUSED)
def test_harness_config_is_checked(wire: Wire, harness: str, config: dict[str, Any], member: str) -> None:
    error = wire.refused(400, "POST", "/sessions", json=creation(harness, "https://x.example", config=config))
    assert error["code"] == "unsupported_or_invalid_configuration"
    assert error["param"] == f"agent.x_agents_core.harness_config{member}"


@pytest.mark.parametrize("harness", ["codex", "claude_sdk"])
def test_a_model_has_to_be_given(wire: Wire, harness: str) -> None:
    body = creation(harness, "https://x.example")
    error = wire.refused(400, "POST", "/sessions", json={**body, "x_agents_core": {}})
    assert error["code"] == "model_provider_required"
    assert "base_url and api_key" in error["message"]
    del body["agent"]["model"]
    assert wire.refused(400, "POST", "/sessions", json=body)["param"] == "agent.model"


def skill(name: str, files: dict[str, str]) -> dict[str, Any]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for path, text in files.items():
            opened.writestr(path, text)
    data = base64.b64encode(archive.getvalue()).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": name, "description": "Counts sheep.", "source": source}


@both
def test_skills_are_there_and_announced_to_the_model(agents_wire: Wire, harness: str) -> None:
    main = "---\nname: count-sheep\ndescription: Counts sheep in any meadow.\n---\nCount them.\n"
    sent = skill("count-sheep", {"count-sheep/SKILL.md": main, "count-sheep/lib/count.py": "print(7)"})
    folder = {"codex": ".codex", "claude_sdk": ".claude"}[harness]
    look = f"python3 /home/agent/{folder}/skills/count-sheep/lib/count.py"
    with ScriptedModel(steps(Shell(look), Say("Done."))) as model:
        session_id, turn = finish(agents_wire, harness, model, environment={"skills": [sent]})
    assert turn["status"] == "completed", turn
    assert shapes(agents_wire.items(session_id))[1] == ("command_execution", "completed", 0, "7")
    assert "Counts sheep in any meadow." in json.dumps(model.asks[0].body)
    shown = agents_wire.ok("GET", f"/sessions/{session_id}")["environment"]["skills"]
    assert shown == [{"type": "inline", "name": "count-sheep", "description": "Counts sheep."}]


@both
def test_a_second_turn_goes_on_where_the_first_one_ended(agents_wire: Wire, harness: str) -> None:
    def script(ask: Ask) -> Reply:
        return Say("It is a secret.") if "Tell" in ask.text else Say("Seven.")

    with ScriptedModel(script) as model:
        session_id, first = finish(agents_wire, harness, model, input="Think of a number.")
        assert first["status"] == "completed"
        assert agents_wire.say(session_id, "Tell me.").status_code == 202
        second = agents_wire.wait(session_id)
    assert second["id"] != first["id"]
    assert second["status"] == "completed", second
    assert "Think of a number." in model.asks[-1].text
    assert "Seven." in json.dumps(model.asks[-1].body)
    assert agents_wire.items(session_id)[-1]["content"][0]["text"] == "It is a secret."


@both
def test_a_turn_after_a_failed_one_works(agents_wire: Wire, harness: str) -> None:
    replies: list[Reply] = [Fail(401)]
    with ScriptedModel(lambda ask: replies[0]) as model:
        session_id, first = finish(agents_wire, harness, model)
        assert first["status"] == "failed"
        replies[0] = Say("Now it works.")
        assert agents_wire.say(session_id, "Once more.").status_code == 202
        assert agents_wire.wait(session_id)["status"] == "completed"
