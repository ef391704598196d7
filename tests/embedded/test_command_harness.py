"""Any program as a harness, on scripted models of all three protocols: Items and usage come from its model traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import KEY
from tests.support.scripted_models import Calls, Reply, Say, ScriptedModel, Shell, Tool
from tests.support.wire import HOSTED, Wire

AGENT = str(Path(__file__).parents[1] / "support" / "any_agent.py")
PROTOCOLS = ("chat_completions", "responses", "anthropic")
LOOK = "python3 -c \"import os; print(sorted(name for name in os.environ if 'BASE_URL' in name or 'API_KEY' in name))\""


def creation(url: str, protocol: str, *command: str, **members: Any) -> dict[str, Any]:
    config = {"name": "own", "protocol": protocol, "command": list(command), "mounts": [AGENT]}
    provider = {"protocol": protocol, "base_url": url, "api_key": KEY}
    return {
        "environment": HOSTED,
        "agent": {
            "model": "m",
            "x_agents_core": {"harness": "command", "harness_config": config | members.pop("config", {})},
            **members.pop("agent", {}),
        },
        "input": "Do as the script says.",
        "x_agents_core": {"model_provider": provider},
        **members,
    }


def finish(wire: Wire, body: dict[str, Any], seconds: float = 60) -> tuple[str, dict[str, Any]]:
    session_id = wire.ok("POST", "/sessions", 201, json=body)["id"]
    return session_id, wire.wait(session_id, seconds=seconds)


def steps(*replies: Reply) -> Any:
    """A script: one reply after the other, by the number of results that the agent has sent."""
    after: dict[int, Reply] = {}
    results = 0
    for reply in replies:
        after[results] = reply
        results += len(reply.tools) if isinstance(reply, Calls) else 1
    return lambda ask: after[ask.step]


def told(items: list[dict[str, Any]]) -> list[Any]:
    """Items in short: who said what, which tool was called with what, and what it returned."""
    short: list[Any] = []
    for item in items:
        if item["type"] == "message":
            short.append((item["role"], item["content"][0]["text"]))
        elif item["type"] == "reasoning":
            short.append(("thought", item["summary"][0]["text"]))
        elif item["type"] == "function_call":
            short.append((item["name"], item["arguments"]))
        else:
            short.append(item["output"])
    return short


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", ["whole", "streamed"])
def test_items_and_usage_are_read_from_the_traffic(agents_wire: Wire, protocol: str, form: str) -> None:
    both = Calls([Tool("bash", {"command": "echo one"}), Tool("bash", {"command": LOOK})])
    shell = Shell("mkdir outputs && echo 1 >outputs/x && echo two", thought="Hm.", remark="I write.")
    with ScriptedModel(steps(both, shell, Say("Done."))) as model:
        url = model.url if protocol == "anthropic" else f"{model.url}/v1"
        body = creation(url, protocol, "python3", AGENT, protocol, form, "{instruction}")
        session_id, turn = finish(agents_wire, body)
    assert turn["status"] == "completed", turn
    names = ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"] if protocol == "anthropic" else []
    assert told(agents_wire.items(session_id)) == [
        ("user", "Do as the script says."),
        ("bash", {"command": "echo one"}),
        ("bash", {"command": LOOK}),
        "one",
        str(names or ["OPENAI_API_KEY", "OPENAI_BASE_URL"]),
        ("thought", "Hm."),
        ("assistant", "I write."),
        ("bash", {"command": "mkdir outputs && echo 1 >outputs/x && echo two"}),
        "two",
        ("assistant", "Done."),
    ], "the agent prints other things"
    assert agents_wire.artifacts(session_id) == {"/workspace/outputs/x": b"1\n"}
    details = (0, 0) if protocol == "anthropic" else (120, 15)
    assert turn["usage"] == {
        "input_tokens": 300,
        "input_tokens_details": {"cached_tokens": details[0]},
        "output_tokens": 60,
        "output_tokens_details": {"reasoning_tokens": details[1]},
        "total_tokens": 360,
    }
    paths = {"chat_completions": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
    assert {ask.path for ask in model.requests} == {paths[protocol]}
    assert all(KEY in str(ask.headers) for ask in model.requests), "the proxy adds the key"
