"""A small client of the embedded Core for its tests: real HTTP, no retries, unchecked responses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

HOSTED = {"type": "openai_hosted", "network": {"access": "disabled"}}


def oracle(solution: str) -> dict[str, Any]:
    return {"x_agents_core": {"harness": "oracle", "harness_config": {"solution": solution}}}


class Wire:
    """Calls with the headers that the API requires; `headers` of a call are added or, with None, left out."""

    def __init__(self, client: httpx.Client, base_url: str, api_key: str) -> None:
        self.client = client
        self.base_url = base_url
        self.headers = {"Authorization": f"Bearer {api_key}", "OpenAI-Beta": "agents=v1"}

    def call(self, method: str, path: str, *, headers: dict[str, str | None] | None = None, **kwargs: Any) -> Any:
        merged = {**self.headers, **(headers or {})}
        sent = {name: value for name, value in merged.items() if value is not None}
        return self.client.request(method, f"{self.base_url}/agents{path}", headers=sent, **kwargs)

    def ok(self, method: str, path: str, status: int = 200, **kwargs: Any) -> Any:
        response = self.call(method, path, **kwargs)
        assert response.status_code == status, response.text
        return response.json()

    def refused(self, status: int, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return the `error` of a call that must fail with `status`."""
        response = self.call(method, path, **kwargs)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"type", "message", "code", "param"}
        assert isinstance(error, dict)
        return error

    def create(
        self, solution: str = "true", *, input: Any = "do it", key: str | None = None, **members: Any
    ) -> dict[str, Any]:
        body = {"environment": HOSTED, "agent": oracle(solution), "input": input, **members}
        session = self.ok("POST", "/sessions", 201, json=body, headers={"Idempotency-Key": key})
        assert isinstance(session, dict)
        return session

    def turn(self, session_id: str) -> dict[str, Any] | None:
        turns = self.ok("GET", f"/sessions/{session_id}/turns?limit=1")["data"]
        return turns[0] if turns else None

    def wait(self, session_id: str, *statuses: str, seconds: float = 20) -> dict[str, Any]:
        """Return the newest Turn once its status is one of `statuses` (default: it has ended)."""
        wanted = statuses or ("completed", "failed", "cancelled")
        deadline = time.monotonic() + seconds
        while True:
            turn = self.turn(session_id)
            if turn is not None and turn["status"] in wanted:
                return turn
            assert time.monotonic() < deadline, (turn, self.ok("GET", f"/sessions/{session_id}"))
            time.sleep(0.02)

    def run(self, solution: str, **members: Any) -> tuple[str, dict[str, Any]]:
        """Create a Session; return its id and its Turn, which has ended."""
        session_id = self.create(solution, **members)["id"]
        return session_id, self.wait(session_id)

    def items(self, session_id: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.ok("GET", f"/sessions/{session_id}/items?order=asc&limit=100")["data"]
        return items

    def artifacts(self, session_id: str) -> dict[str, bytes]:
        """Return the Artifacts' contents by path."""
        base = f"/sessions/{session_id}/artifacts"
        listed = self.ok("GET", f"{base}?order=asc&limit=100")["data"]
        return {one["path"]: self.call("GET", f"{base}/{one['id']}/content").content for one in listed}

    def cancel(self, session_id: str) -> Any:
        events = {"events": [{"type": "agent.session.input.cancel"}]}
        return self.call("POST", f"/sessions/{session_id}/events", json=events)

    def say(self, session_id: str, text: str, key: str | None = None) -> Any:
        message = {"role": "user", "content": [{"type": "input_text", "text": text}]}
        events = {"events": [{"type": "agent.session.input.message", "input": [message]}]}
        return self.call("POST", f"/sessions/{session_id}/events", json=events, headers={"Idempotency-Key": key})

    def end(self, session_id: str) -> None:
        """Cancel a running Turn and delete the Session."""
        deadline = time.monotonic() + 20
        while (response := self.call("DELETE", f"/sessions/{session_id}")).status_code == 409:
            self.cancel(session_id)
            assert time.monotonic() < deadline, response.text
            time.sleep(0.02)
        assert response.status_code == 200, response.text


def session_ids(wire: Wire) -> set[str]:
    """Return the ids of all Sessions of the Core (at most 100 are expected)."""
    return {session["id"] for session in wire.ok("GET", "/sessions?limit=100")["data"]}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream; comments are left out."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == name
            yield event
