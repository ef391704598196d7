"""The live events: of a Session, and of a creation with `stream: true`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.embedded import events as events_module
from pytest_core_rollouts.embedded.events import BUFFERED_EVENTS, EventBus
from tests.support.wire import HOSTED, Wire, events, oracle

ASSISTANT = [
    "item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "item.done",
]


def _create_streaming(wire: Wire, solution: str, key: str | None = None, **environment: Any) -> list[dict[str, Any]]:
    body = {"environment": {**HOSTED, **environment}, "agent": oracle(solution), "input": "do it", "stream": True}
    headers = {**wire.headers, **({"Idempotency-Key": key} if key else {})}
    url = f"{wire.base_url}/agents/sessions"
    with wire.client.stream("POST", url, json=body, headers=headers) as response:
        assert response.status_code == 201
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["X-Request-Id"].startswith("req_")
        return list(events(response))


def test_creation_streams_to_the_end_of_its_turn(wire: Wire) -> None:
    seen = _create_streaming(wire, "echo one; sleep 0.3; echo two")
    session_id = seen[0]["session"]["id"]
    types = [event["type"] for event in seen]
    deltas = [event["delta"] for event in seen if event["type"] == "agent.output.command_execution_output.delta"]
    assert "".join(deltas) == "one\ntwo\n"
    assert len(deltas) >= 2  # live, not at the end
    expected = ["environment.pending", "environment.ready", "environment.connected", "turn.created", "turn.item.added"]
    expected = ["created", *expected, "in_progress", "turn.in_progress", "turn.item.added", "turn.item.done"]
    expected += [f"turn.{name}" for name in ASSISTANT] + ["turn.completed", "idle"]
    assert [type for type in types if not type.startswith("agent.output.")] == [f"agent.session.{e}" for e in expected]
    assert len({event["event_id"] for event in seen}) == len(seen)
    completed, idle = seen[-2:]
    assert completed["usage"] is None
    assert completed["turn"] == wire.turn(session_id)
    assert idle["session"] == wire.ok("GET", f"/sessions/{session_id}")
    indexes = [event["output_index"] for event in seen if event["type"] == "agent.session.turn.item.added"]
    assert indexes == [None, 0, 1]
    wire.end(session_id)


def test_creation_stream_ends_when_the_environment_fails(wire: Wire) -> None:
    seen = _create_streaming(wire, "true", setup_commands=[{"command": "exit 4"}])
    assert [event["type"] for event in seen[-3:]] == [
        "agent.session.environment.failed",
        "error",
        "agent.session.failed",
    ]
    assert seen[-2]["error"]["code"] == "sandbox_error"
    assert "exit status 4" in seen[-1]["session"]["error"]
    wire.end(seen[0]["session"]["id"])


def test_creation_stream_ends_when_the_turn_fails(wire: Wire) -> None:
    seen = _create_streaming(wire, "exit 1")
    assert [event["type"] for event in seen[-2:]] == ["agent.session.turn.failed", "agent.session.failed"]
    assert seen[-2]["turn"]["error"]["code"] == "internal_error"
    wire.end(seen[0]["session"]["id"])


def test_repeated_creation_streams_nothing_and_is_found_without_stream(wire: Wire) -> None:
    seen = _create_streaming(wire, "true", key="streamed")
    assert _create_streaming(wire, "true", key="streamed") == []
    session_id = seen[0]["session"]["id"]
    assert wire.create("true", key="streamed")["id"] == session_id
    wire.end(session_id)


def test_creation_stream_without_input_is_400(wire: Wire) -> None:
    body = {"environment": HOSTED, "agent": oracle("true"), "stream": True}
    assert wire.refused(400, "POST", "/sessions", json=body)["param"] == "input"


def test_stream_shows_only_new_events_until_the_session_is_deleted(wire: Wire) -> None:
    session_id, _ = wire.run("true")
    types: list[str] = []
    with wire.client.stream(
        "GET", f"{wire.base_url}/agents/sessions/{session_id}/events", headers=wire.headers
    ) as response:
        assert response.status_code == 200
        for _ in range(2):
            assert wire.say(session_id, "again").status_code == 202
            wire.wait(session_id)
        wire.end(session_id)
        types = [event["type"] for event in events(response)]
    assert types.count("agent.session.turn.completed") == 2
    assert types[0] == "agent.session.turn.created"  # nothing of the first Turn
    assert types[-1] == "agent.session.idle"


def test_all_subscribers_get_the_same_events(wire: Wire) -> None:
    session_id = wire.create("echo x", input=None)["id"]

    async def listen(client: httpx.AsyncClient) -> list[str]:
        url = f"{wire.base_url}/agents/sessions/{session_id}/events"
        async with client.stream("GET", url, headers=wire.headers) as response:
            ids = []
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    ids.append(line)
                if "agent.session.idle" in line:
                    break
            return ids

    async def main() -> list[list[str]]:
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            tasks = [asyncio.create_task(listen(client)) for _ in range(20)]
            await asyncio.sleep(1)
            await asyncio.to_thread(wire.say, session_id, "go")
            return await asyncio.gather(*tasks)

    seen = asyncio.run(main())
    assert all(one == seen[0] for one in seen)
    assert seen[0]
    wire.end(session_id)


def test_idle_stream_sends_keepalives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "KEEPALIVE_S", 0.05)

    async def main() -> list[bytes]:
        bus = EventBus()
        frames: list[bytes] = []
        async for frame in bus.subscribe().frames():
            frames.append(frame)
            if len(frames) == 4:
                bus.close()
        return frames

    assert asyncio.run(main()) == [b": connected\n\n", *[b": keepalive\n\n"] * 3]


def test_slow_reader_gets_an_error_and_is_disconnected() -> None:
    async def main() -> tuple[list[bytes], bool]:
        bus = EventBus()
        stream = bus.subscribe()
        for number in range(BUFFERED_EVENTS + 50):
            bus.publish("agent.session.idle", {"number": number})
        return [frame async for frame in stream.frames()], bus.has_subscribers

    frames, has_subscribers = asyncio.run(main())
    assert len(frames) == 1 + BUFFERED_EVENTS + 1
    assert b"stream_interrupted" in frames[-1]
    assert not has_subscribers


def test_reader_that_disconnects_is_unsubscribed() -> None:
    async def main() -> bool:
        bus = EventBus()
        frames = bus.subscribe().frames()
        await frames.__anext__()
        await frames.aclose()
        return bus.has_subscribers

    assert not asyncio.run(main())
