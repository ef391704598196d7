"""After many Sessions, a third of them killed, nothing of them is left on the machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore
from tests.support.agents import creation, needs_claude, needs_codex
from tests.support.scripted_models import Ask, Reply, Say, ScriptedModel, Shell

pytestmark = [pytest.mark.slow, needs_codex, needs_claude]

SESSIONS = 200
AT_ONCE = 16
CANCEL = {"events": [{"type": "agent.session.input.cancel"}]}


def script(ask: Ask) -> Reply:
    """Leaves a process behind, and files; half of a rollout's time goes by in a command."""
    work = "mkdir -p outputs && echo {} >outputs/answer.json; setsid sleep 7775.75 >/dev/null 2>&1 & sleep 1"
    return Shell(work) if ask.step == 0 else Say("Done.")


class Core:
    """What there is of the Core and its sandboxes on this machine."""

    def __init__(self, core: EmbeddedCore) -> None:
        assert core.pid is not None
        self.pid = core.pid
        self.folders = core._folders

    def state(self) -> dict[str, Any]:
        """Counts that have to be the same before and after."""
        process = Path(f"/proc/{self.pid}")
        return {
            "descendants": sorted(self.descendants()),
            "files": [sorted(path.name for path in folder.rglob("*")) for folder in self.folders],
            "open files": len(list((process / "fd").iterdir())),
            "sockets": sum(str(self.folders[-1]) in line for line in Path("/proc/net/unix").read_text().splitlines()),
            "mounts": Path("/proc/mounts").read_text().count("rollouts"),
            "sleepers": len(with_argument(b"7775.75")),
        }

    def descendants(self) -> list[int]:
        found, pending = [], [self.pid]
        while pending:
            try:
                tasks = list(Path(f"/proc/{pending.pop()}/task").iterdir())
                children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
            except OSError:
                continue  # it ended meanwhile
            found += children
            pending += children
        return found


def with_argument(argument: bytes) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if argument in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            pass  # it ended meanwhile
    return found


class Sessions:
    def __init__(self, core: EmbeddedCore, client: httpx.AsyncClient, urls: dict[str, str]) -> None:
        self._core = Core(core)
        self._not_in_sandboxes = set(self._core.descendants())
        self._client = client
        self._url = f"{core.base_url}/agents/sessions"
        self._headers = {"Authorization": f"Bearer {core.api_key}", "OpenAI-Beta": "agents=v1"}
        self._urls = urls
        self._free = asyncio.Semaphore(AT_ONCE)
        self._random = random.Random(7)

    async def call(self, method: str, path: str = "", **kwargs: Any) -> Any:
        response = await self._client.request(method, self._url + path, headers=self._headers, **kwargs)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    async def run(self, number: int) -> str:
        """A Session from its creation to its deletion; how its Turn ended. Two of six are killed, in two ways."""
        async with self._free:
            harness = "claude_sdk" if number % 4 == 0 else "codex"
            session_id = (await self.call("POST", json=creation(harness, self._urls[harness])))["id"]
            if number % 6 == 1:
                turns: list[Any] = []
                while not turns:  # input that waits for the sandbox can't be cancelled
                    await asyncio.sleep(0.05)
                    turns = (await self.call("GET", f"/{session_id}/turns?limit=1"))["data"]
                await asyncio.sleep(self._random.uniform(0, 1.0))  # its command takes a second
                await self.call("POST", f"/{session_id}/events", json=CANCEL)
            elif number % 6 == 2:
                await asyncio.sleep(self._random.uniform(0.05, 2.5))
                self.kill_one()
            status = ""
            while status not in ("completed", "failed", "cancelled"):
                await asyncio.sleep(0.2)
                turns = (await self.call("GET", f"/{session_id}/turns?limit=1"))["data"]
                status = turns[0]["status"] if turns else ""
            await self.call("DELETE", f"/{session_id}")
            return status

    def kill_one(self) -> None:
        """SIGKILL for any process in any sandbox, from outside."""
        victims = sorted(set(self._core.descendants()) - self._not_in_sandboxes)
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(victims), signal.SIGKILL)


def test_nothing_is_left_after_two_hundred_sessions() -> None:
    core = EmbeddedCore.reserve()
    core.start(model_retries=0)
    try:

        async def main(model: ScriptedModel, count: int) -> Counter[str]:
            limits = httpx.Limits(max_connections=AT_ONCE)
            async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
                sessions = Sessions(core, client, dict.fromkeys(("codex", "claude_sdk"), model.url))
                return Counter(await asyncio.gather(*(sessions.run(number) for number in range(count))))

        with ScriptedModel(script) as model:
            asyncio.run(main(model, 1))  # starts the Core's own helper, which is not to be killed
            settled(core, {})
            asyncio.run(main(model, 8))  # what is made once is made now
            before = settled(core, {})
            outcomes = asyncio.run(main(model, SESSIONS))
        assert sum(outcomes.values()) == SESSIONS
        assert outcomes["completed"] >= SESSIONS // 2, outcomes
        assert outcomes["cancelled"] >= SESSIONS // 12, outcomes
        assert outcomes["failed"] >= 1, outcomes
        assert settled(core, before) == before
        assert core.errors() == ""
    finally:
        folders = core._folders
        core.stop()
    assert not any(folder.exists() for folder in folders)
    assert with_argument(b"7775.75") == []


def settled(core: EmbeddedCore, wanted: dict[str, Any]) -> dict[str, Any]:
    """The state, once it is as wanted or has had a minute to become so."""
    deadline = time.monotonic() + 60
    state = Core(core).state()
    while state != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
        state = Core(core).state()
    return state
