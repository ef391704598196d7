"""Sessions that a run left behind: found, ended, deleted; those that stay are named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.rollout.session_deletion import Sweep, sweep
from tests.support.api import BODY, QUICK, quick
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.rollouts import RUN_ID, on, refused
from tests.support.waiting import no_hang


def left(core: FakeCore, number: int, run_id: str = RUN_ID, **metadata: str) -> list[str]:
    """So many Sessions of a run, made and forgotten."""

    async def main() -> list[str]:
        async with Client(core.base_url, core.api_key, retry=QUICK) as client:
            body = {**BODY, "metadata": {"run_id": run_id, **metadata}}
            return [
                (await client.create_session(body, idempotency_key=f"key-{len(core.sessions)}"))["id"]
                for _ in range(number)
            ]

    return asyncio.run(main())


def swept(core: FakeCore, *, since: float | None = None, seconds: float = 30.0, retry: Any = QUICK) -> Sweep:
    made: list[Client] = []

    def connect() -> Client:
        made.append(Client(core.base_url, core.api_key, retry=retry))
        return made[-1]

    with no_hang():
        return asyncio.run(sweep(connect, RUN_ID, since=since, seconds=seconds))


def test_nothing_left_is_one_request() -> None:
    with FakeCore() as core:
        assert swept(core) == Sweep()
        assert len(core.requests) == 1


def test_only_this_run_s_sessions_are_deleted_over_all_pages() -> None:
    with FakeCore() as core:
        others = left(core, 30, "20261129T120000Z-9999")
        mine = left(core, 230)
        others += left(core, 30, "another")
        for session in list(core.sessions.values())[:3]:
            session.body["metadata"] = None
        found = swept(core)
        assert sorted(found.deleted) == sorted(mine)
        assert (found.left, found.problem) == ({}, None)
        assert [session.id for session in core.sessions.values() if not session.deleted] == others
        assert core.counts["cancel"] == 0


def test_busy_sessions_are_cancelled_and_deleted() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, cancel_seconds=0.3)) as core:
        mine = left(core, 12)
        found = swept(core)
        assert sorted(found.deleted) == mine
        assert all(session.cancels == 1 for session in core.sessions.values())


def test_those_that_stay_busy_keep_no_other_and_are_named() -> None:
    stubborn = Script(never_ends=True, ignore_cancel=True)
    with FakeCore(script=lambda body: stubborn if body["metadata"].get("kind") else Script()) as core:
        kept = left(core, 15, kind="stubborn")
        gone = left(core, 20)
        found = swept(core, seconds=1.0)
        assert sorted(found.deleted) == gone
        assert sorted(found.left) == kept
        assert all("409 conflict_error" in reason for reason in found.left.values())
        assert found.problem is None


def test_a_session_that_waits_for_its_sandbox_is_named() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=None)) as core:
        mine = left(core, 2)
        found = swept(core, seconds=0.8)
        assert sorted(found.left) == mine
        assert found.deleted == []


def test_a_session_that_was_deleted_meanwhile_is_not_a_fault() -> None:
    with FakeCore() as core:
        left(core, 3)
        core.fault = on("delete", refused(404, "Resource not found.", "not_found_error"), last=1)
        found = swept(core)
        assert (found.left, found.problem) == ({}, None)


def test_the_list_is_read_back_to_the_run_s_start() -> None:
    with FakeCore() as core:
        old = left(core, 150, "before")
        mine = left(core, 5)
        for session_id in old:
            core.sessions[session_id].created_at -= 3600
        found = swept(core, since=time.time() - 60)
        assert sorted(found.deleted) == mine
        assert core.counts["sessions"] == 1


def test_without_a_start_all_of_the_list_is_read() -> None:
    with FakeCore() as core:
        mine = left(core, 1)
        core.sessions[mine[0]].created_at = 1
        left(core, 150, "after")
        assert swept(core).deleted == mine
        assert core.counts["sessions"] == 2


@pytest.mark.parametrize("fault", [Fault(reset=True), Fault(hang=True), Fault(status=503), refused(401, "no")])
def test_a_core_that_does_not_answer_is_a_problem_that_is_named(fault: Fault) -> None:
    with FakeCore() as core:
        left(core, 1)
        core.fault = lambda request: fault
        found = swept(core, seconds=0.6, retry=quick(patience=60.0))
        assert found.problem is not None
        assert found.problem.startswith("GET /agents/sessions?")
        assert (found.deleted, found.left) == ([], {})


def test_what_was_listed_before_the_list_broke_off_is_deleted() -> None:
    with FakeCore() as core:
        mine = left(core, 150)
        core.fault = on("sessions", refused(400, "no"), first=2)
        found = swept(core)
        assert found.problem is not None
        assert sorted(found.deleted) == mine[50:]


@pytest.mark.parametrize("answer", [lambda request: Fault(hang=True), lambda request: refused(500, "no")])
def test_a_core_that_deletes_nothing_is_left_in_time(answer: Callable[[Request], Fault]) -> None:
    with FakeCore() as core:
        mine = left(core, 10)
        core.fault = on("delete", answer)
        found = swept(core, seconds=0.8, retry=quick(patience=60.0))
        assert sorted(found.left) == mine
        assert found.deleted == []


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_a_server_whose_clock_is_wrong_hides_no_session(ahead: float) -> None:
    with FakeCore(clock_ahead=ahead) as core:
        mine = left(core, 3)
        assert sorted(swept(core, since=time.time() - 60).deleted) == mine


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_neither_does_it_end_the_list_too_late(ahead: float) -> None:
    with FakeCore(clock_ahead=ahead) as core:
        left(core, 150)
        assert swept(core, since=time.time() + 60).deleted == []
        assert core.counts["sessions"] == 1


def test_sessions_that_hold_the_only_result_are_named_and_stay() -> None:
    with FakeCore() as core:
        mine = left(core, 3)
        found = asyncio.run(
            sweep(lambda: Client(core.base_url, core.api_key), RUN_ID, since=None, seconds=5.0, spare="not written yet")
        )
        assert found.left == dict.fromkeys(mine[::-1], "not written yet")
        assert not any(session.deleted for session in core.sessions.values())
