"""Sessions in the test's own process: the deadline of waiting input, and faults of this machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.embedded import sessions
from pytest_core_rollouts.embedded.harnesses import HARNESSES
from pytest_core_rollouts.embedded.requests import read_creation
from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox
from pytest_core_rollouts.embedded.sessions import Runtime, Session, Slots
from tests.support.wire import HOSTED, oracle


def _run(artifacts: Path, body: dict[str, Any], then: Callable[[Session], Awaitable[None]]) -> Session:
    """Run a Session in this process; destroy it after `then`, and check that its folder is gone."""
    isolation = Isolation.probe()

    async def main() -> Session:
        one = asyncio.Semaphore(1)
        request = read_creation({"agent": oracle("mkdir outputs; touch outputs/x"), **body}, HARNESSES)
        runtime = Runtime(isolation, artifacts, writing=one, preparing=one, running=one, thinking=Slots(1))
        session = Session(request, runtime)
        session.start(request.environment)
        try:
            await asyncio.wait_for(then(session), 20)
        finally:
            await session.destroy()
        return session

    try:
        session = asyncio.run(main())
        assert list(isolation.sessions.iterdir()) == []
        return session
    finally:
        isolation.close()


async def _settled(session: Session) -> None:
    async for frame in session.bus.subscribe().frames():
        if frame.startswith((b"event: agent.session.idle", b"event: agent.session.failed")):
            return


def test_session_fails_if_its_environment_is_not_ready_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "INPUT_DEADLINE_S", 0.3)
    slow = {**HOSTED, "setup_commands": [{"command": "sleep 60"}]}
    session = _run(tmp_path, {"environment": slow, "input": "x"}, _settled)
    assert session.turns == []
    assert session.error == "The environment was not ready within 0 seconds."


def test_turn_fails_if_artifacts_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    session = _run(tmp_path / "file", {"environment": HOSTED, "input": "x"}, _settled)
    assert session.turn is not None
    error = session.turn.wire()["error"]
    assert error["code"] == "sandbox_error"
    assert "Not a directory" in error["message"]
    assert session.artifacts == []


def test_exception_in_a_harness_fails_the_turn_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(HARNESSES["oracle"]), "run", broken)
    session = _run(tmp_path, {"environment": HOSTED, "input": "x"}, _settled)
    assert session.turn is not None
    assert session.turn.wire()["error"]["code"] == "internal_error"
    assert "a bug" in caplog.text


def test_session_deleted_while_its_files_are_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes them can't be cancelled, and its folder stayed until the Core ended."""
    writing, may_end = threading.Event(), threading.Event()
    write_files = Sandbox.write_files

    def slow(sandbox: Sandbox, files: Iterable[tuple[str, bytes]]) -> None:
        writing.set()
        may_end.wait(20)
        write_files(sandbox, files)

    async def delete(session: Session) -> None:
        await asyncio.to_thread(writing.wait, 20)
        asyncio.get_running_loop().call_later(0.1, may_end.set)

    monkeypatch.setattr(Sandbox, "write_files", slow)
    files = [{"type": "inline", "path": "/workspace/a/b", "data": "eHl6"}]
    assert (
        _run(tmp_path, {"environment": {**HOSTED, "files": files}}, delete).turns == []
    )  # checks that nothing is left


def test_file_contents_are_not_kept_in_memory_once_written(tmp_path: Path) -> None:
    environment = {**HOSTED, "files": [{"type": "inline", "path": "/workspace/a", "data": "eHl6"}]}
    session = _run(tmp_path, {"environment": environment, "input": "x"}, _settled)
    assert session.request.environment.files == []
    assert session.wire()["environment"]["files"][0]["size_bytes"] == 3


def test_agents_that_need_more_memory_take_more_slots_in_turn() -> None:
    async def main() -> list[str]:
        slots, held = Slots(3), []
        free = asyncio.Event()

        async def hold(name: str, count: int) -> None:
            async with slots.take(count):
                held.append(name)
                await free.wait()

        turns = [asyncio.create_task(hold(name, count)) for name, count in (("a", 0), ("b", 2), ("huge", 9), ("c", 1))]
        for _ in range(10):
            await asyncio.sleep(0)
        assert held == ["a", "b"], "the next one waits for all slots, and those behind it wait for their turn"
        turns[2].cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert held == ["a", "b"]
        free.set()
        await asyncio.wait(turns)
        async with slots.take(9):
            return held

    assert asyncio.run(main()) == ["a", "b", "c"], "a Turn that was cancelled gave back what it had"
