"""A server that ignores idempotency keys: whatever happens to a create, one Session of the attempt runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.rollout.dialects import OPENAI
from pytest_core_rollouts.rollout.session_creation import session_body
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from tests.support.api import quick
from tests.support.fake_core import FakeCore, FakeSession, Fault, Request, Script
from tests.support.rollouts import RIGHT, Ran, on, only_session, plan, run

PATIENT = quick(read_timeout=0.5)


def planned(**changes: Any) -> Rollout:
    return plan(agent=Agent(harness="codex", model="m"), **changes)


def run_there(core: FakeCore, rollout: Rollout | None = None, **more: Any) -> Ran:
    return run(core, rollout or planned(), retry=PATIENT, dialect=OPENAI, **more)


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """The service. In the end none of its Sessions is left."""
    with FakeCore(script=lambda body: Script(answer=RIGHT), official=True) as running:
        yield running
        assert not [session.id for session in running.sessions.values() if not session.deleted]


def begin(core: FakeCore, rollout: Rollout, *attempts: int) -> list[FakeSession]:
    """Create Sessions as a process that died did."""

    async def main() -> None:
        async with Client(core.base_url, core.api_key) as client:
            for attempt in attempts:
                body = session_body(rollout, attempt=attempt, dialect=OPENAI)
                await client.create_session(body, idempotency_key=f"dead-{attempt}", once=True)

    before = len(core.sessions)
    asyncio.run(main())
    return list(core.sessions.values())[before:]


LOST = {
    "reset before it arrives": Fault(reset=True),
    "reset after it arrived": Fault(reset=True, processed=True),
    "no answer in time": Fault(hang=True, processed=True),
    "408": Fault(status=408, processed=True),
    "502 of a gateway, before": Fault(status=502, body=b"<html>"),
    "502 of a gateway, after": Fault(status=502, body=b"<html>", processed=True),
    "503 with a code": Fault(
        status=503, body=b'{"error": {"message": "x", "code": "server_is_overloaded"}}', processed=True
    ),
    "cut off in the body": Fault(cut=20),
    "cut off without a trace": Fault(cut=20, framing="close"),
    "a page instead of JSON": Fault(status=200, body=b"<html>", processed=True),
}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
@pytest.mark.parametrize("unlisted", [0, 1])
def test_a_create_whose_answer_is_lost_leaves_one_session_that_runs(
    core: FakeCore, fault: Fault, unlisted: int
) -> None:
    core.unlisted = unlisted
    core.fault = on("create", fault, last=1)
    ran = run_there(core)
    assert ran.verdict == ("completed", 1.0)
    assert ran.record.attempt == 1
    assert ran.record.session_id == only_session(core).id
    assert ran.warnings == ()
    assert core.counts["create"] == (1 if fault.lets_through else 2)


def test_several_creates_whose_answers_are_lost_leave_one_session_that_runs(core: FakeCore) -> None:
    core.fault = on("create", lambda request: Fault(status=502, processed=request.nth == 3), last=3)
    assert run_there(core).verdict == ("completed", 1.0)
    assert core.counts["create"] == 3
    assert only_session(core).deleted


def test_a_core_that_refuses_creates_for_good_and_made_one_leaves_none(core: FakeCore) -> None:
    """It is not listed until the attempt is given up, and is deleted then."""
    core.unlisted = 6
    core.fault = on("create", lambda request: Fault(status=200, body=b"<html>", processed=request.nth == 1))
    assert run_there(core, planned(retries=0)).verdict == ("error", None)
    assert core.counts["create"] == 4
    assert only_session(core).deleted


@pytest.mark.parametrize("status", [400, 429])
def test_an_answer_that_says_that_nothing_was_created_needs_no_look(core: FakeCore, status: int) -> None:
    core.fault = on("create", Fault(status=status, body=b'{"error": {"message": "no"}}'), last=1)
    assert run_there(core, planned(retries=0)).record.reward == (1.0 if status == 429 else None)
    assert core.counts["sessions"] == 0


def test_a_list_that_can_not_be_read_is_waited_for(core: FakeCore) -> None:
    def fault(request: Request) -> Fault | None:
        if request.route == "create" and request.nth == 1:
            return Fault(reset=True, processed=True)
        return Fault(status=502) if request.route == "sessions" and request.nth < 4 else None

    core.fault = fault
    assert run_there(core).verdict == ("completed", 1.0)
    assert only_session(core).deleted


def test_the_oldest_of_several_sessions_is_kept_and_the_others_are_deleted_at_once(core: FakeCore) -> None:
    core.unlisted = 2
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.3)
    core.fault = on("create", Fault(reset=True, processed=True), last=1)
    ran = run_there(core)
    assert ran.verdict == ("completed", 1.0)
    first, second = core.sessions.values()
    assert ran.record.session_id == first.id
    assert second.history[-1][1] == "deleted"
    assert second.history[-1][0] < first.history[-1][0]
    assert ran.warnings == ()


def test_a_session_that_comes_to_be_much_later_is_deleted_with_the_other(core: FakeCore) -> None:
    late: list[Request] = []

    def fault(request: Request) -> Fault | None:
        if request.route == "create" and request.nth == 1:
            late.append(request)
            return Fault(reset=True)
        if request.route == "delete" and late:
            core._create(late.pop())  # a gateway had held it back
        return None

    core.fault = fault
    assert run_there(core).verdict == ("completed", 1.0)
    assert len(core.sessions) == 2
    assert all(session.deleted for session in core.sessions.values())


def test_a_second_session_that_can_not_be_deleted_is_named(core: FakeCore) -> None:
    core.unlisted = 2

    def fault(request: Request) -> Fault | None:
        if request.route == "create" and request.nth == 1:
            return Fault(reset=True, processed=True)
        return Fault(status=403) if request.route == "delete" and "00002" in request.target else None

    core.fault = fault
    ran = run_there(core)
    assert ran.verdict == ("completed", 1.0)
    assert len(ran.warnings) == 1
    assert "Session sess_00000002 of" in ran.warnings[0]
    core.call(lambda: core.sessions["sess_00000002"].delete())


@pytest.mark.parametrize("unlisted", [0, 1])
def test_the_session_of_a_dead_process_is_adopted(core: FakeCore, unlisted: int) -> None:
    core.unlisted = unlisted
    [session] = begin(core, planned(), 1)
    ran = run_there(core, maybe_begun=True)
    assert ran.verdict == ("completed", 1.0)
    assert ran.record.session_id == session.id
    assert core.counts["create"] == 1


def test_a_later_attempt_of_a_dead_process_is_adopted(core: FakeCore) -> None:
    [session] = begin(core, planned(), 2)
    begin(core, planned(sample=1), 1)
    ran = run_there(core, maybe_begun=True)
    assert ran.verdict == ("completed", 1.0)
    assert (ran.record.attempt, ran.record.session_id) == (2, session.id)
    assert core.counts["create"] == 2
    assert json.dumps(ran.record.notes).count("attempt 2 was begun by another process") == 1
    assert run_there(core, planned(sample=1), maybe_begun=True).record.attempt == 1


def test_a_rollout_that_no_dead_process_began_is_created(core: FakeCore) -> None:
    assert run_there(core, maybe_begun=True).verdict == ("completed", 1.0)
    assert len(core.sessions) == 1
