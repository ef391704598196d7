"""Streams that are split and joined again; tokens found in replies of every kind; how failures are reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_core_rollouts.embedded.model.failures import of_event, of_status
from pytest_core_rollouts.embedded.model.streams import EVENT_LIMIT, EventReader, assembly_for
from pytest_core_rollouts.embedded.model.tokens import Tokens, tokens_of
from pytest_core_rollouts.embedded.model.upstream import MissingLabel, fill
from tests.support.tables import rows


@given(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=3, max_size=3), st.data())
def test_events_do_not_depend_on_chunks(ends: list[str], data: st.DataObject) -> None:
    text = "".join(f"event: x{end}data: {number}{end}data:more{end}: note{end}{end}" for number, end in enumerate(ends))
    stream = text.encode() + b"data: never ended"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = EventReader()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == [b"0\nmore", b"1\nmore", b"2\nmore"]


def test_endless_event_is_dropped() -> None:
    reader = EventReader()
    for _ in range(EVENT_LIMIT // (1 << 20) + 1):
        assert list(reader.feed(b"data: " + b"x" * (1 << 20))) == []
    assert reader.overflowed
    assert list(reader.feed(b"\n\ndata: 1\n\n")) == []


def assembled(protocol: str, *events: Any) -> Any:
    assembly = assembly_for(protocol)
    for event in events:
        assembly.add(event)
    return assembly.reply()


def test_messages_are_put_together() -> None:
    tool = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}

    def delta(index: int, **members: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": members}

    reply = assembled(
        "anthropic",
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        delta(0, type="thinking_delta", thinking="Hm"),
        delta(0, type="thinking_delta", thinking="m."),
        delta(0, type="signature_delta", signature="abc"),
        {"type": "content_block_start", "index": 1, "content_block": tool},
        delta(1, type="input_json_delta", partial_json='{"comm'),
        delta(1, type="input_json_delta", partial_json='and": "ls"}'),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )
    assert reply == {
        "id": "m",
        "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": "abc"},
            {**tool, "input": {"command": "ls"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }


def test_chat_completions_are_put_together_with_their_tokens() -> None:
    def call(**members: Any) -> dict[str, Any]:
        return {"index": 0, "delta": {"tool_calls": [{"index": 0, **members}]}}

    def choice(text: str, id: int) -> dict[str, Any]:
        logprobs = {"content": [{"token": text, "logprob": -float(id)}]}
        return {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "token_ids": [id]}

    reply = assembled(
        "chat_completions",
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_token_ids": [9, 8]},
        {"id": "c", "choices": [choice("He", 1)]},
        {"id": "c", "choices": [choice("llo", 2)]},
        {"id": "c", "choices": [call(id="t", type="function", function={"name": "f", "arguments": "{"})]},
        {"id": "c", "choices": [call(function={"arguments": "}"})]},
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"id": "c", "choices": [], "usage": {"total_tokens": 4}},
    )
    message = {
        "role": "assistant",
        "content": "Hello",
        "tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert reply["choices"][0]["message"] == message
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["usage"] == {"total_tokens": 4}
    assert tokens_of(reply) == Tokens([9, 8], [1, 2], [-1.0, -2.0])


def test_a_response_without_output_gets_its_items() -> None:
    item = {"type": "message", "content": []}
    events = [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"id": "r", "status": "completed"}},
    ]
    assert assembled("responses", *events) == {"id": "r", "status": "completed", "output": [item]}
    assert assembled("responses") is None


LOGPROBS = [{"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "b", "logprob": -9}]}]
REPLIES = [
    ({"output": [{"content": [{"type": "output_text", "logprobs": LOGPROBS}]}]}, Tokens(logprobs=[-0.1])),
    ({"choices": [{"logprobs": {"content": LOGPROBS}}, {"logprobs": {"content": LOGPROBS}}]}, Tokens(logprobs=[-0.1])),
    ({"choices": [{"token_ids": [1], "logprobs": None}], "prompt_token_ids": [2]}, Tokens([2], [1])),
    (
        {"choices": [{"logprobs": {"content": [{"token": "token_id:5", "logprob": -1}]}}]},
        Tokens(token_ids=[5], logprobs=[-1.0]),
    ),
    (
        {"choices": [{"logprobs": {"tokens": ["token_id:5", "x"], "token_logprobs": [None, -2]}}]},
        Tokens(logprobs=[0.0, -2.0]),
    ),
    (
        {"meta_info": {"output_token_logprobs": [[-0.5, 11, None], [-0.25, 12, "x"]]}, "input_token_ids": [3]},
        Tokens([3], [11, 12], [-0.5, -0.25]),
    ),
    (  # vLLM's Responses with enable_response_messages
        {
            "input_messages": [
                {"type": "raw_message_tokens", "tokens": [1]},
                {"type": "raw_message_tokens", "tokens": [2]},
            ],
            "output_messages": [{"type": "raw_message_tokens", "tokens": [3, 4]}, {"type": "other", "tokens": [9]}],
        },
        Tokens([1, 2], [3, 4]),
    ),
    (  # SGLang, with return_token_ids
        {"choices": [{"prompt_token_ids": [1, 2], "response_token_ids": [3]}, {"response_token_ids": [9]}]},
        Tokens([1, 2], [3]),
    ),
    ({"sglext": {"input_ids": [1, 2], "output_ids": [[3, 4], [9]]}, "choices": []}, Tokens([1, 2], [3, 4])),
    (  # what the model itself calls token ids
        {
            "content": [{"type": "tool_use", "input": {"token_ids": [6], "prompt_token_ids": [6]}}],
            "metadata": {"token_ids": [6]},
        },
        Tokens(),
    ),
    ({"output": [], "token_ids": "no list", "logprobs": 5}, Tokens()),
    ("no JSON", Tokens()),
    (None, Tokens()),
]


@rows(("reply", "tokens"), REPLIES)
def test_tokens_are_found_in_replies_of_every_server(reply: Any, tokens: Tokens) -> None:
    assert tokens_of(reply) == tokens


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "logprobs",
                        "content",
                        "delta",
                        "index",
                        "usage",
                        "type",
                        "token_ids",
                        "response",
                        "error",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_odd_replies_raise_nothing(reply: Any) -> None:
    tokens_of(reply)
    if isinstance(reply, dict):
        of_event(reply)
        for protocol in ("responses", "anthropic", "chat_completions"):
            assembled(protocol, reply, {**reply, "type": "message_delta"}, reply)


def test_messages_of_servers_become_one_short_line() -> None:
    failure = of_status(500, json.dumps({"error": {"message": "a\nb" + "x" * 9999, "type": "t"}}).encode())
    assert failure is not None
    assert failure.message.startswith("The model's server answered 500: t: a bxxx")
    assert len(failure.message) < 600
    plain = of_status(502, b"<html>\n<b>Bad gateway</b>")
    assert plain is not None
    assert plain.message == "The model's server answered 502: <html> <b>Bad gateway</b>"
    for body in (b"", b"[]", b'{"error": null}', b'{"error": {}}', b"\xff", b'"x"', b"1"):
        assert of_status(418, body) is not None
    assert of_status(204, b"") is None


def test_placeholders_are_filled_in_or_an_error() -> None:
    params = {"seed": "{sample}", "deep": [{"user": "s{sample}-{rollout_id}"}], "n": 1, "same": "{other}"}
    filled = {"seed": 7, "deep": [{"user": "s7-r"}], "n": 1, "same": "{other}"}
    assert fill(params, sample="7", rollout_id="r") == filled
    with pytest.raises(MissingLabel, match=r"metadata\.sample"):
        fill(params, sample=None, rollout_id="r")
