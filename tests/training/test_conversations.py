"""Items as messages."""

from __future__ import annotations

import json
from typing import Any

from pytest_core_rollouts.training.conversations import conversation
from tests.support.trajectories import agent_message, command, item, thought, user
from tests.support.trajectories import conversation as trajectory

MEMBERS = ["role", "content", "reasoning_content", "tool_calls", "tool_call_id"]


def roles(messages: list[dict[str, Any]]) -> str:
    return " ".join(message["role"] for message in messages)


def called(message: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


def test_thought_word_and_deed_are_one_message() -> None:
    messages = conversation(
        [user(1, "Count."), thought(2, "How?"), agent_message(3, "I look."), command(4, "ls", "a\n")]
    )
    assert roles(messages) == "user assistant tool"
    assert messages[1]["reasoning_content"] == "How?"
    assert messages[1]["content"] == "I look."
    assert called(messages[1]) == [("item_4", "shell", {"command": "ls"})]
    assert messages[2] == dict(zip(MEMBERS, ("tool", "a\n", "", [], "item_4"), strict=True))


def test_what_comes_after_a_result_is_a_new_message() -> None:
    messages = conversation(
        [command(1, "a", ""), command(2, "b", ""), agent_message(3, "Done."), agent_message(4, "Really.")]
    )
    assert roles(messages) == "assistant tool assistant tool assistant assistant"


def test_calls_at_once_and_their_results() -> None:
    calls = [item("function_call", n, call_id=f"c{n}", name="Read", arguments={"n": n}) for n in (1, 2)]
    results = [item("function_call_output", n + 2, call_id=f"c{n}", output=f"r{n}", error=None) for n in (1, 2)]
    messages = conversation([*calls, *results])
    assert roles(messages) == "assistant tool tool"
    assert called(messages[0]) == [("c1", "Read", {"n": 1}), ("c2", "Read", {"n": 2})]
    assert [(message["tool_call_id"], message["content"]) for message in messages[1:]] == [("c1", "r1"), ("c2", "r2")]


def test_reasoning_after_a_message_begins_another() -> None:
    messages = conversation(
        [thought(1, "a"), thought(2, "b"), agent_message(3, "x"), thought(4, "c"), agent_message(5, "y")]
    )
    texts = [(message["reasoning_content"], message["content"]) for message in messages]
    assert texts == [("a\n\nb", "x"), ("c", "y")]


def test_failures_are_part_of_a_conversation() -> None:
    failed = [
        command(1, "false", "no\n", 3),
        item("mcp_call", 2, server_label="docs", name="search", arguments={}, output=None, error={"code": "timeout"}),
    ]
    texts = [message["content"] for message in conversation(failed) if message["role"] == "tool"]
    assert texts == ["no\n\n[exit code 3]", '[error: {"code": "timeout"}]']


def test_nothing_is_lost_of_kinds_that_are_not_known() -> None:
    [message, result] = conversation([item("send_subagent_input_call", 1, agent_id="a1", input="go on")])
    assert called(message) == [("item_1", "send_subagent_input_call", {"agent_id": "a1", "input": "go on"})]
    assert result["role"] == "tool"


def test_texts_of_any_shape() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}]
    items = [item("message", 1, role="developer", content=parts), {"type": "message", "role": "user"}, "no item", None]
    assert [(message["role"], message["content"]) for message in conversation(items)] == [
        ("system", "a[input_image]"),
        ("user", ""),
    ]


def test_every_message_has_the_same_members_of_the_same_types() -> None:
    messages = conversation(trajectory("sales-by-region"))
    assert {tuple(message) for message in messages} == {tuple(MEMBERS)}
    for name, kind in zip(MEMBERS, (str, str, str, list, str), strict=True):
        assert {type(message[name]) for message in messages} == {kind}
    ids = [call["id"] for message in messages for call in message["tool_calls"]]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids
