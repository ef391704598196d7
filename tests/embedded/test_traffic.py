"""What requests and replies say about an agent: histories, compaction, sub-agents, tools of servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_core_rollouts.embedded.harnesses import traffic
from pytest_core_rollouts.embedded.harnesses.traffic import Traffic
from pytest_core_rollouts.embedded.model import Exchange
from pytest_core_rollouts.embedded.trajectory import Trajectory
from tests.embedded.test_command_harness import contents

PATHS = {"chat_completions": b"/v1/chat/completions", "responses": b"/v1/responses", "anthropic": b"/v1/messages"}
USAGE = {"input_tokens": 10, "output_tokens": 5}


class Conversation:
    """A Turn whose requests and replies the test makes."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.items: list[dict[str, Any]] = []
        self.traffic = Traffic(Trajectory("turn", self.items, lambda *_: None), "Do it.")

    def exchange(self, conversation: Any, reply: Mapping[str, Any], **members: Any) -> Conversation:
        member = "input" if self.protocol == "responses" else "messages"
        exchange = Exchange(self.protocol, b"POST", PATHS[self.protocol], PATHS[self.protocol], keeps=True)
        exchange.on_request(json.dumps({member: conversation, **members}).encode(), whole=True)
        exchange.on_response(200, b"application/json")
        exchange.on_chunk(json.dumps({"usage": USAGE, **reply}).encode())
        exchange.on_end()
        self.traffic.add(exchange)
        return self

    @property
    def contents(self) -> list[Any]:
        self.traffic.close()
        assert not self.traffic.warnings()
        assert {item["status"] for item in self.items} <= {"completed", "failed"}
        return contents(self.items)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def calls(*ids: str) -> dict[str, Any]:
    made = [{"id": id, "function": {"name": "bash", "arguments": json.dumps({"command": id})}} for id in ids]
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": made}}]}


def result(id: str, text: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def test_compaction_and_sub_agents_tell_only_what_is_new() -> None:
    start = [{"role": "system", "content": "You are."}, user("Context of the task."), user("Do it.")]
    talk = Conversation("chat_completions")
    title = [user("Give a title to: Do it.")]
    grown = [*start, calls("a")["choices"][0]["message"], result("a", "done a")]
    talk.exchange(title, says("A title")).exchange(start, calls("a")).exchange(grown, calls("b"))
    talk.exchange([user("You are a sub-agent. Look.")], calls("c"))
    talk.exchange([user("You are a sub-agent. Look."), result("c", "looked")], says("Seen."))
    talk.exchange(grown, calls("b"))  # asked again
    talk.exchange([user("Summary: a is done."), result("b", "done b")], says("All done."))
    assert talk.contents == [
        ("assistant", "A title"),
        ("user", "Context of the task."),
        ("bash", {"command": "a"}),
        "done a",
        ("bash", {"command": "b"}),
        ("user", "You are a sub-agent. Look."),
        ("bash", {"command": "c"}),
        "looked",
        ("assistant", "Seen."),
        ("bash", {"command": "b"}),
        ("user", "Summary: a is done."),
        "done b",
        ("assistant", "All done."),
    ]


def test_responses_that_the_server_stores_and_tools_that_it_runs() -> None:
    talk = Conversation("responses")
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    patch = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"}
    talk.exchange("Do it.", {"id": "r1", "output": [thought, search, patch]})
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]}
    said = {"type": "message", "content": [{"type": "output_text", "text": "More?"}]}
    talk.exchange([output], {"id": "r2", "output": [said]}, previous_response_id="r1")
    more = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Yes."}]}]
    talk.exchange(more, {"id": "r3", "output": [said]}, previous_response_id="r2")
    talk.exchange(more, {"id": "r4", "output": []}, previous_response_id="r3")
    assert talk.contents == [
        ("thought", "Hm."),
        ("web_search_call", {"query": "x"}),
        ("patch", "*** Begin"),
        "ok",
        ("assistant", "More?"),
        ("user", "Yes."),
        ("assistant", "More?"),
        ("user", "Yes."),
    ]


def test_messages_with_marks_for_caching_errors_of_tools_and_odd_arguments() -> None:
    talk = Conversation("anthropic")
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    server = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    first = {"role": "user", "content": [{"type": "text", "text": "Do it.", "cache_control": {"type": "ephemeral"}}]}
    talk.exchange([first], {"content": [{"type": "thinking", "thinking": "Hm."}, server, call]})
    failed = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "no"}]}
    later = [user("Do it."), {"role": "assistant", "content": [call]}, {"role": "user", "content": [failed]}]
    talk.exchange(later, {"content": [{"type": "text", "text": "It failed."}]})
    assert talk.contents == [
        ("thought", "Hm."),
        ("web_search", {}),
        ("Bash", {"command": "ls"}),
        None,
        ("assistant", "It failed."),
    ]
    assert [item.get("error") for item in talk.items if item["type"] == "function_call_output"] == ["no"]
    odd = [
        {"id": str(n), "function": {"name": "x", "arguments": text}} for n, text in enumerate(('{"a": NaN}', "{", ""))
    ]
    chat = Conversation("chat_completions").exchange([user("Do it.")], {"choices": [{"message": {"tool_calls": odd}}]})
    assert chat.contents == [("x", '{"a": NaN}'), ("x", "{"), ("x", "")], "what is no JSON stays a text"


def test_tokens_are_summed_and_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation("anthropic")
    cached = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2, "output_tokens": 5}
    talk.exchange([user("Do it.")], {"content": [], "usage": cached}).exchange([user("Do it.")], {"content": []})
    assert talk.traffic.usage(in_flight=0) == {
        "input_tokens": 52,
        "input_tokens_details": {"cached_tokens": 30},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 62,
    }
    assert talk.traffic.usage(in_flight=1) is None
    assert talk.exchange([user("Do it.")], {"content": [], "usage": None}).traffic.usage(in_flight=0) is None
    monkeypatch.setattr(traffic, "TEXT_LIMIT", 20)
    monkeypatch.setattr(traffic, "REQUESTS_LIMIT", 1000)
    for text in ("x" * 15, "y" * 15, "z" * 1000):
        talk.exchange([user(text)], {"content": [{"type": "text", "text": "Understood."}]})
    assert talk.traffic.warnings() == [
        "Items are missing: 1 x a request after too much text",
        "Items are missing: 1 x a request after too many others",
    ]
    assert (
        contents(talk.items) == [("user", "x" * 15), ("assistant", "Understood.")] + [("assistant", "Understood.")] * 2
    )
