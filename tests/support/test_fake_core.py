"""The fake Core is strict about requests and does what its scripts say; other tests build on that."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.agents_api import APIStatusError, Client, ConnectionFailed, RetryPolicy
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.tables import rows

BODY = {"environment": {"type": "openai_hosted"}, "input": "Do it."}


def post(core: FakeCore, content: bytes | None = None, changed: dict[str, str | None] | None = None) -> httpx.Response:
    """A create with `content`; in `changed`, headers to replace, or to leave out where they are None."""
    headers = {
        "Authorization": f"Bearer {core.api_key}",
        "OpenAI-Beta": "agents=v1",
        "Content-Type": "application/json",
    }
    wanted = {name: value for name, value in {**headers, **(changed or {})}.items() if value is not None}
    content = json.dumps(BODY).encode() if content is None else content
    return httpx.post(f"{core.base_url}/agents/sessions", content=content, headers=wanted, trust_env=False)


@rows(
    ("headers", "status", "code"),
    [
        ({"Authorization": None}, 401, None),
        ({"Authorization": "Bearer wrong"}, 401, None),
        ({"OpenAI-Beta": None}, 400, "invalid_beta"),
        ({"OpenAI-Beta": "agents=v2"}, 400, "invalid_beta"),
        ({"Content-Type": None}, 400, "invalid_request_error"),
        ({"Idempotency-Key": "x" * 129}, 400, "invalid_request_error"),
    ],
)
def test_headers_are_checked(headers: dict[str, str | None], status: int, code: str | None) -> None:
    with FakeCore() as core:
        response = post(core, changed=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert response.headers["x-request-id"].startswith("req_")
        assert core.sessions == {}


def hosted(**more: Any) -> dict[str, Any]:
    return {**BODY, "environment": {"type": "openai_hosted", **more}}


def inline(path: str, size: int = 1) -> dict[str, str]:
    return {"type": "inline", "path": path, "data": base64.b64encode(b"x" * size).decode()}


BAD_BODIES: dict[str, Any] = {
    "no JSON": b"{",
    "duplicate key": b'{"environment": {"type": "openai_hosted", "type": "openai_hosted"}}',
    "lone surrogate": b'{"environment": {"type": "openai_hosted"}, "input": "\\ud800"}',
    "NaN": b'{"environment": {"type": "openai_hosted"}, "metadata": {"a": NaN}}',
    "a list": [],
    "no environment": {},
    "unknown member": {**BODY, "inputs": "x"},
    "unknown member of the environment": hosted(networks={}),
    "unknown member of the agent": {**BODY, "agent": {"harness": "codex"}},
    "unknown access": hosted(network={"access": "off"}),
    "metadata too long": {**BODY, "metadata": {"a": "x" * 513}},
    "metadata too many": {**BODY, "metadata": {str(n): "" for n in range(17)}},
    "metadata no string": {**BODY, "metadata": {"a": 1}},
    "input too long": {**BODY, "input": "x" * (512 * 1024 + 1)},
    "file outside": hosted(files=[inline("/etc/passwd")]),
    "file with dots": hosted(files=[inline("/workspace/../x")]),
    "file too large": hosted(files=[inline("/workspace/x", 5 * 1024 * 1024 + 1)]),
    "too many files": hosted(files=[inline(f"/workspace/{n}") for n in range(51)]),
    "file no Base64": hosted(files=[{"type": "inline", "path": "/workspace/x", "data": "!"}]),
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BAD_BODIES.items()])
def test_bodies_are_checked(body: Any) -> None:
    with FakeCore() as core:
        response = post(core, body if isinstance(body, bytes) else json.dumps(body).encode())
        assert response.status_code == 400
        assert core.sessions == {}


def test_good_body() -> None:
    with FakeCore() as core:
        files = [inline("/workspace/a/b.csv"), inline("/workspace/empty", 0)]
        assert post(core, json.dumps(hosted(files=files, network={"access": "disabled"})).encode()).status_code == 201


def play(script: Script, seconds: float, *, cancel_after: float | None = None) -> tuple[Any, Any, list[str]]:
    """Session and Turn after `seconds`, and the Session's history."""

    async def main() -> tuple[Any, Any]:
        async with Client(core.base_url, core.api_key) as client:
            session = await client.create_session(BODY, idempotency_key="key")
            if cancel_after is not None:
                await asyncio.sleep(cancel_after)
                await client.cancel(session["id"])
            await asyncio.sleep(seconds)
            return await client.get_session(session["id"]), await client.latest_turn(session["id"])

    with FakeCore(script=lambda body: script) as core:
        session, turn = asyncio.run(main())
        return session, turn, [what for _, what in core.by_key["key"].history]


@rows(
    ("script", "session_status", "turn_status"),
    [
        (Script(), "idle", "completed"),
        (Script(turn_seconds=60), "in_progress", "in_progress"),
        (Script(turn_seconds=60, session_status="paused"), "paused", "in_progress"),
        (Script(settle_seconds=60), "in_progress", "completed"),
        (Script(turn_status="failed"), "failed", "failed"),
        (Script(turn_status="cancelled"), "idle", "cancelled"),
        (Script(turn_status="expired"), "idle", "expired"),
        (Script(requires_action=True), "requires_action", "waiting"),
        (Script(session_failure="no sandbox"), "failed", None),
        (Script(prepare_seconds=None), "idle", None),
    ],
)
def test_lives(script: Script, session_status: str, turn_status: str | None) -> None:
    session, turn, _ = play(script, 0.1)
    assert session["status"] == session_status
    assert (turn and turn["status"]) == turn_status
    assert session["error"] == script.session_failure or session_status == "failed"
    assert [action["type"] for action in session["required_actions"]] == (
        ["function_call"] if script.requires_action else []
    )


@rows(
    ("script", "turn_status"),
    [
        (Script(never_ends=True), "cancelled"),
        (Script(never_ends=True, cancel_seconds=60), "in_progress"),
        (Script(never_ends=True, ignore_cancel=True), "in_progress"),
        (Script(never_ends=True, completes_on_cancel=True), "completed"),
        (Script(requires_action=True), "cancelled"),
        (Script(), "completed"),
    ],
)
def test_cancels(script: Script, turn_status: str) -> None:
    _, turn, history = play(script, 0.1, cancel_after=0.1)
    assert turn["status"] == turn_status
    assert history.count("cancel") == 1


def test_busy_session_is_deleted_once_it_is_idle() -> None:
    async def main() -> None:
        async with Client(core.base_url, core.api_key) as client:
            session = await client.create_session(BODY, idempotency_key="key")
            await asyncio.sleep(0.1)
            with pytest.raises(APIStatusError, match="409"):
                await client.delete_session(session["id"])
            await asyncio.sleep(0.3)
            await client.delete_session(session["id"])
            with pytest.raises(APIStatusError, match="409 idempotency_conflict"):
                await client.create_session(BODY, idempotency_key="key")

    with FakeCore(script=lambda body: Script(settle_seconds=0.3)) as core:
        asyncio.run(main())


def test_problem_of_a_hook_is_reported() -> None:
    def broken(request: object) -> Fault:
        raise ZeroDivisionError

    with pytest.raises(AssertionError, match="ZeroDivisionError"), FakeCore(fault=broken) as core:
        post(core)


def test_down_and_back_with_its_sessions() -> None:
    async def create() -> str:
        async with Client(core.base_url, core.api_key, retry=RetryPolicy(patience=0)) as client:
            return (await client.create_session(BODY, idempotency_key="key"))["id"]

    with FakeCore() as core:
        before = asyncio.run(create())
        core.go_down()
        with pytest.raises(ConnectionFailed):
            asyncio.run(create())
        core.come_back()
        assert asyncio.run(create()) == before


def test_hundreds_of_sessions_at_once() -> None:
    async def one(number: int) -> str:
        async with Client(core.base_url, core.api_key) as client:
            session = await client.create_session(BODY, idempotency_key=f"key-{number}")
            while True:
                turn = await client.latest_turn(session["id"])
                if turn and turn["status"] == "completed":
                    return session["id"]
                await asyncio.sleep(0.2)

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(300)))

    with FakeCore(script=lambda body: Script(turn_seconds=0.5), record=False) as core:
        assert len(set(asyncio.run(main()))) == len(core.sessions) == 300
        assert core.requests == []
        assert core.counts["create"] == 300
