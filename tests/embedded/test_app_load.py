"""Many Sessions at once: none is lost or mixed up, cancelled ones leave nothing, and the Core can end at any time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore
from tests.support.wire import HOSTED, Wire, oracle

CANCEL = {"events": [{"type": "agent.session.input.cancel"}]}


class Rollouts:
    """Runs rollouts at the same time over one pool of connections."""

    def __init__(self, core: EmbeddedCore, client: httpx.AsyncClient) -> None:
        self._client = client
        self._url = f"{core.base_url}/agents/sessions"
        self._headers = {"Authorization": f"Bearer {core.api_key}", "OpenAI-Beta": "agents=v1"}

    async def call(self, method: str, path: str = "", **kwargs: Any) -> httpx.Response:
        return await self._client.request(method, self._url + path, headers=self._headers, **kwargs)

    async def run(self, number: int, *, cancel: bool) -> tuple[str, str | None]:
        """Return the Turn's status, and the answer if there is one."""
        solution = f"mkdir outputs && echo {number} >outputs/answer.json" + ("; sleep 60" if cancel else "")
        body = {"environment": HOSTED, "agent": oracle(solution), "input": str(number)}
        session_id = (await self.call("POST", json=body)).json()["id"]
        turn: dict[str, Any] = {"status": "none yet"}
        while turn["status"] not in ("completed", "failed", "cancelled"):
            await asyncio.sleep(0.1)
            turns = (await self.call("GET", f"/{session_id}/turns?limit=1")).json()["data"]
            turn = turns[0] if turns else turn
            if cancel and turn["status"] == "in_progress":
                assert (await self.call("POST", f"/{session_id}/events", json=CANCEL)).status_code == 202
        items = (await self.call("GET", f"/{session_id}/items?order=asc")).json()["data"]
        assert items[0]["content"][0]["text"] == str(number)
        artifacts = (await self.call("GET", f"/{session_id}/artifacts")).json()["data"]
        contents = [(await self.call("GET", f"/{session_id}/artifacts/{one['id']}/content")).text for one in artifacts]
        assert (await self.call("DELETE", f"/{session_id}")).status_code == 200
        return turn["status"], contents[0] if contents else None


def _client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=50, max_keepalive_connections=50)
    return httpx.AsyncClient(timeout=60, trust_env=False, limits=limits)


@pytest.mark.slow
def test_hundred_sessions_at_once_get_their_answers_and_leave_nothing(core: EmbeddedCore) -> None:
    async def main() -> list[tuple[str, str | None]]:
        async with _client() as client:
            rollouts = Rollouts(core, client)
            return await asyncio.gather(*(rollouts.run(number, cancel=number % 5 == 0) for number in range(100)))

    results = asyncio.run(main())
    assert Counter(status for status, _ in results) == {"completed": 80, "cancelled": 20}
    for number, (_, answer) in enumerate(results):
        assert answer == (None if number % 5 == 0 else f"{number}\n")
    _nothing_left(core)


def _nothing_left(core: EmbeddedCore) -> None:
    deadline = time.monotonic() + 10
    artifacts, isolation = core._folders
    while left := [*artifacts.iterdir(), *(isolation / "sessions").iterdir()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert not [command for command in _children(core) if "bwrap" in command]


def _children(core: EmbeddedCore) -> list[str]:
    """Return the command lines of the process's children."""
    threads = Path(f"/proc/{core.pid}/task").iterdir()
    pids = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("after", [0.05, 0.3, 1.0])
def test_core_that_ends_at_any_time_leaves_nothing(after: float, killed: bool) -> None:
    core = EmbeddedCore.reserve()
    core.start()
    body = {"environment": HOSTED, "agent": oracle("mkdir outputs; sleep 7775.25"), "input": "x"}

    async def create(client: httpx.AsyncClient) -> None:
        try:
            await Rollouts(core, client).call("POST", json=body)
        except httpx.TransportError:
            return  # the Core has ended

    async def main() -> None:
        async with _client() as client:
            tasks = [asyncio.create_task(create(client)) for _ in range(100)]
            await asyncio.sleep(after)
            if killed and core.pid is not None:
                os.kill(core.pid, signal.SIGKILL)
            await asyncio.to_thread(core.stop)
            await asyncio.gather(*tasks)

    folders = core._folders
    asyncio.run(main())
    assert not any(folder.exists() for folder in folders)
    deadline = time.monotonic() + (60 if killed else 0)  # a killed Core can't wait for the end of its sandboxes
    while left := [process for process in Path("/proc").glob("[0-9]*") if _sleeps(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _sleeps(process: Path) -> bool:
    try:
        return b"7775.25" in (process / "cmdline").read_bytes() and int(process.name) != os.getpid()
    except OSError:
        return False  # it ended meanwhile


def test_endless_output_is_cut_and_does_not_block_requests(wire: Wire) -> None:
    session_id = wire.create("yes & sleep 1.5")["id"]
    wire.wait(session_id, "in_progress")
    answered = 0
    while (turn := wire.turn(session_id)) and turn["status"] == "in_progress":
        wire.ok("GET", "/sessions?limit=1")
        answered += 1
    assert answered >= 2
    output = wire.items(session_id)[1]["output"]
    assert output.endswith("[cut after 1048576 bytes]\n")
    wire.end(session_id)
