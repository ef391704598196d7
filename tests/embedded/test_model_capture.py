"""What the model proxy adds to requests and what it keeps of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.embedded.model import CaptureFailed, TurnLabels
from pytest_core_rollouts.embedded.model.exchange import Capture
from tests.support.proxies import KEY, Reader, Server, Writer, asyncio_test, proxied, replying, serving, sse
from tests.support.tables import rows

# Parameters


@asyncio_test
async def test_parameters_are_only_merged_into_requests_for_replies(tmp_path: Path) -> None:
    params = {
        "seed": "{sample}",
        "user": "{rollout_id}/{sample}",
        "stop": None,
        "metadata": {"deep": {"b": 2}},
        "include": ["message.output_text.logprobs"],
    }
    request = {"model": "m", "stop": "x", "metadata": {"a": 1, "deep": {"a": 1}}, "include": [], "seed": 0}
    async with serving(replying(b"{}")) as server, proxied(tmp_path, server.url, params=params) as (_, client):
        await client.post("/responses", json=request)
        await client.post("/responses/input_tokens", json=request)
    merged = {
        "model": "m",
        "metadata": {"a": 1, "deep": {"a": 1, "b": 2}},
        "include": ["message.output_text.logprobs"],
        "seed": 3,
        "user": "run.task.agent.3/3",
    }
    assert [json.loads(body) for body in server.bodies] == [merged, request]


@asyncio_test
async def test_token_ids_are_requested_in_the_way_of_the_protocol(tmp_path: Path) -> None:
    """A parameter that the user sets has precedence; null removes it."""
    for protocol, path, added, params in [
        ("responses", "/responses", {"enable_response_messages": True}, {}),
        ("chat_completions", "/chat/completions", {"return_token_ids": True, "logprobs": True}, {}),
        ("chat_completions", "/chat/completions", {"logprobs": False}, {"return_token_ids": None, "logprobs": False}),
        ("anthropic", "/messages", {}, {}),
    ]:
        settings: dict[str, Any] = {"params": params, "capture_tokens": True, "protocol": protocol}
        async with serving(replying(b"{}")) as server, proxied(tmp_path, server.url, **settings) as (_, client):
            await client.post(path, json={"model": "m"})
        assert [json.loads(body) for body in server.bodies] == [{"model": "m", **added}]


@asyncio_test
async def test_request_that_parameters_cannot_be_merged_into_is_refused(tmp_path: Path) -> None:
    async with serving(replying(b"{}")) as server, proxied(tmp_path, server.url, params={"seed": 1}) as (_, client):
        assert (await client.post("/responses", content=b"[1]")).status_code == 400
        assert (await client.post("/responses", content=b"nonsense")).status_code == 400
        packed = await client.post("/responses", content=b"x", headers={"Content-Encoding": "zstd"})
        assert packed.status_code == 415
        assert server.heads == []


# Capture

COMPLETED = {
    "type": "response.completed",
    "response": {
        "id": "r",
        "model": "m-2026",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "hé", "logprobs": []}]}],
        "echo": KEY,
    },
}
DELTA = {"type": "response.output_text.delta", "delta": "hé", "logprobs": [{"token": "token_id:7", "logprob": -0.5}]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@asyncio_test
async def test_a_capture_holds_requests_replies_and_tokens_and_no_key(tmp_path: Path) -> None:
    stream = replying(sse(DELTA, COMPLETED), "200 OK", "Content-Type: text/event-stream")
    settings: dict[str, Any] = {"capture": tmp_path, "params": {"seed": 1}, "secrets": ["a-token-of-the-task", "and"]}
    async with serving(stream) as server, proxied(tmp_path, server.url, **settings) as (_, c):
        texts = [KEY, f"this and {json.dumps(KEY)}", "a-token-of-the-task"]
        await c.post("/responses", json={"model": "m", "input": texts}, headers={"Authorization": "Bearer dummy"})
        await c.get("/models")  # asks for no reply
    path = tmp_path / "run.task.agent.3.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "sk-real" not in path.read_text()
    [line] = lines(path)
    assert {key: line[key] for key in ("schema", "rollout_id", "sample", "session_id", "turn_id")} == {
        "schema": 1,
        "rollout_id": "run.task.agent.3",
        "sample": "3",
        "session_id": "session-1",
        "turn_id": "turn-1",
    }
    assert line["request"] == {"model": "m", "input": ["[masked]", 'this and "[masked]"', "[masked]"], "seed": 1}
    assert line["response"]["output"][0]["content"][0]["text"] == "hé"
    assert (line["status"], line["streamed"], line["truncated"], line["error"]) == (200, True, False, None)
    assert (line["model"], line["protocol"], line["path"]) == ("m-2026", "responses", "/responses")
    assert (line["token_ids"], line["logprobs"], line["prompt_token_ids"]) == ([7], [-0.5], None)
    assert line["duration_s"] > 0
    assert line["started_at"].endswith("Z")


@asyncio_test
async def test_failed_and_cut_exchanges_are_captured_too(tmp_path: Path) -> None:
    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        if len(server.heads) == 1:
            writer.write(b"HTTP/1.1 429 Slow Down\r\nContent-Length: 20\r\n\r\n" + b'{"error": "too fast"}'[:20])
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + sse(DELTA))
            await writer.drain()
            await asyncio.sleep(60)

    async with serving(handler) as server:
        async with proxied(tmp_path, server.url, capture=tmp_path) as (proxy, client):
            assert (await client.post("/responses", json={})).status_code == 429
            assert proxy.failure is not None
            assert proxy.failure.code == "rate_limit_exceeded"
            server.asked.clear()
            asking = asyncio.create_task(client.post("/responses", json={}))
            await server.asked.wait()
            await asyncio.sleep(0.1)
        asking.cancel()
    first, second = lines(tmp_path / "run.task.agent.3.jsonl")
    assert first["status"] == 429
    assert first["error"].startswith("rate_limit_exceeded: ")
    assert (second["status"], second["error"]) == (200, "cancelled: The Turn ended first.")
    assert proxy.failure.code == "rate_limit_exceeded", "the model's last failure, not the Turn's end"


@asyncio_test
async def test_a_capture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    async with serving(replying(b"{}")) as server:
        with pytest.raises(CaptureFailed, match="can't be written"):
            async with proxied(tmp_path, server.url, capture=tmp_path / "missing") as (_, client):
                await client.post("/responses", json={})


HALVES = {
    "begun": b'{"sch',
    "long": b'{"schema":1,"rollout_id":"' + b"x" * 200_000,
    "power cut": b'{"schema":1\0\0\0',
    "nothing of it": b"\0\0",
}


@rows("left", HALVES.values(), ids=HALVES)
@rows("whole", [b"", b'{"schema":1,"whole":true}\n'], ids=["only line", "after a line"])
def test_half_a_line_of_a_killed_writer_is_replaced(tmp_path: Path, whole: bytes, left: bytes) -> None:
    captured = Capture(tmp_path, {"rollout_id": "r", "session_id": "s"})
    captured.path.write_bytes(whole + left)
    captured.append({"request": "again"})
    added = {"schema": 1, "rollout_id": "r", "session_id": "s", "request": "again"}
    assert lines(captured.path) == [*(json.loads(line) for line in whole.splitlines()), added]


def test_file_that_is_not_a_capture_is_not_changed(tmp_path: Path) -> None:
    captured = Capture(tmp_path, {"rollout_id": "r", "session_id": "s"})
    captured.path.write_bytes(b"somebody's notes")
    with pytest.raises(OSError, match="the last line is not part of a capture; move the file away"):
        captured.append({"request": "again"})
    assert captured.path.read_bytes() == b"somebody's notes"


@asyncio_test
async def test_session_without_a_usable_rollout_id_is_captured_under_its_own_id(tmp_path: Path) -> None:
    for rollout_id in (None, "../../etc/x", ".", "", "a/b", "-rf", ".envrc", "a\nb", "x" * 129):
        labels = TurnLabels("session-9", "turn-1", rollout_id=rollout_id)
        async with (
            serving(replying(b"{}")) as server,
            proxied(tmp_path, server.url, labels=labels, capture=tmp_path) as (_, client),
        ):
            await client.post("/responses", json={})
    assert len(lines(tmp_path / "session-9.jsonl")) == 9
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"session-9.jsonl"}


@asyncio_test
async def test_reply_that_the_model_cut_short_counts_as_sampled(tmp_path: Path) -> None:
    stopped = {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}}
    stream = replying(sse(DELTA, stopped), "200 OK", "Content-Type: text/event-stream")
    async with serving(stream) as server, proxied(tmp_path, server.url, capture=tmp_path) as (proxy, client):
        await client.post("/responses", json={})
        assert proxy.failure is not None
        assert proxy.failure.code == "max_output_tokens"
    [line] = lines(tmp_path / "run.task.agent.3.jsonl")
    assert (line["error"], line["token_ids"], line["logprobs"]) == (None, [7], [-0.5])
