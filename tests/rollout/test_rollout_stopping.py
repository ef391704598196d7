"""A stop at every stage of a rollout: what is known is kept, the Turn ended, the Session deleted or named,."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.rollout import poll_schedule
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task
from tests.support.api import QUICK, quick
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.rollouts import RIGHT, TIMEOUTS, Keeper, Ran, grade, on, only_session, plan, refused, run
from tests.support.waiting import HANG_SECONDS, no_hang

SECONDS = 1.5
INTERRUPTED = ("cancelled", None)


@pytest.fixture(autouse=True)
def silence_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events is only believed for a moment."""
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 0.3)


async def asked_for(core: FakeCore, route: str, *, answered: bool) -> None:
    """Return when a request of `route` has come (and was answered)."""
    for _ in range(2000):
        if any(request.route == route and (request.status or not answered) for request in core.requests):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"no request of {route} came")


def stop_at(core: FakeCore, route: str, *, answered: bool = True, retries: int = 1) -> Ran:
    """Run a rollout and ask for its stop when a request of `route` has come (and was answered)."""

    async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
        await asked_for(core, route, answered=answered)
        stop.request(SECONDS)
        await asyncio.wait({task}, timeout=HANG_SECONDS)
        assert task.done(), "it waits for something else than the deadline"

    return run(core, plan(timeout=3600, retries=retries), drive=drive)


def test_a_session_whose_creation_was_under_way_is_found_and_deleted() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        core.fault = on("create", Fault(delay=0.2))
        ran = stop_at(core, "create", answered=False)
        assert ran.verdict == INTERRUPTED
        assert ran.record.session_id == only_session(core).id
        assert only_session(core).deleted


def test_a_creation_that_hangs_is_given_up() -> None:
    with FakeCore() as core:
        core.fault = on("create", Fault(hang=True))
        ran = stop_at(core, "create", answered=False)
        assert ran.verdict == INTERRUPTED
        assert ran.record.session_id is None
        assert ran.record.duration_s is None


def test_a_core_that_is_down_does_not_hold_up_a_stop() -> None:
    with FakeCore() as core:
        core.fault = on("create", Fault(status=503))
        ran = stop_at(core, "create", answered=False)
        assert ran.verdict == INTERRUPTED


def test_a_session_that_waits_for_its_sandbox_is_named() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=None)) as core:
        ran = stop_at(core, "turns")
        assert ran.verdict == INTERRUPTED
        (warning,) = ran.warnings
        assert only_session(core).id in warning
        assert "409" in warning


@pytest.mark.parametrize("route", ["turns", "session"])
def test_a_running_turn_is_cancelled(route: str) -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, cancel_seconds=0.2)) as core:
        ran = stop_at(core, route)
        assert ran.verdict == INTERRUPTED
        assert ran.record.error == "the run was interrupted"
        assert [what for _, what in only_session(core).history][2:] == ["cancel", "cancelled", "deleted"]
        assert ran.warnings == ()


def test_a_turn_that_ignores_its_cancel_is_named() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, ignore_cancel=True)) as core:
        ran = stop_at(core, "turns")
        assert ran.verdict == INTERRUPTED
        assert "had not ended" in ran.record.notes[0]
        assert only_session(core).id in ran.warnings[0]


@pytest.mark.parametrize(
    ("route", "fault", "note"),
    [
        ("cancel", Fault(hang=True), "the Turn could not be cancelled: "),
        ("turns", Fault(hang=True), "the Turn had not ended "),
        ("turns", Fault(status=403), "the Turn was cancelled, but its status can't be read: "),
    ],
    ids=["the cancel hangs", "the status hangs", "the status is refused"],
)
def test_the_note_of_a_cancelled_turn_says_which_request_failed(route: str, fault: Fault, note: str) -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        core.fault = lambda request: fault if request.route == route and core.counts["cancel"] else None
        ran = stop_at(core, "turns")
        assert ran.verdict == INTERRUPTED
        assert ran.record.notes[0].startswith(note)


def test_a_turn_that_completes_all_the_same_is_graded() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, completes_on_cancel=True, answer=RIGHT)) as core:
        ran = stop_at(core, "turns")
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.items
        assert only_session(core).deleted


def test_a_turn_that_fails_meanwhile_is_not_tried_again() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:

        def fail(request: Request) -> None:
            only_session(core)._end("failed")

        core.fault = on("cancel", fail)
        ran = stop_at(core, "turns", retries=3)
        assert ran.verdict == ("failed", None)
        assert len(core.sessions) == 1


@pytest.mark.parametrize("route", ["artifacts", "content", "items"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_turn_that_had_completed_is_fetched_and_graded(route: str, answered: bool) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on(route, Fault(delay=0.2))
        ran = stop_at(core, route, answered=False)
        assert ran.verdict == ("completed", 1.0)
        assert only_session(core).deleted
        assert ran.warnings == ()


@pytest.mark.parametrize("route", ["artifacts", "content"])
def test_an_answer_that_does_not_come_is_given_up(route: str) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on(route, Fault(hang=True))
        ran = stop_at(core, route, answered=False)
        assert ran.verdict == INTERRUPTED
        assert only_session(core).id in ran.warnings[0]


@pytest.mark.parametrize("fault", [Fault(delay=0.2), Fault(hang=True), refused(500, "no")])
def test_a_stop_while_deleting_changes_nothing_of_the_result(fault: Fault) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("delete", fault)
        ran = stop_at(core, "delete", answered=False)
        assert ran.verdict == ("completed", 1.0)
        assert only_session(core).deleted or only_session(core).id in ran.warnings[0]


def test_a_stop_between_two_attempts_makes_no_other() -> None:
    with FakeCore(script=lambda body: Script(session_failure="no room")) as core:
        core.fault = on("delete", Fault(delay=0.2))
        ran = stop_at(core, "delete", answered=False, retries=3)
        assert ran.verdict == INTERRUPTED
        assert ran.record.notes == ["attempt 1: the Session failed without a Turn: no room"]
        assert len(core.sessions) == 1
        assert only_session(core).deleted


def stop_while_grading(grader: Callable[[Task, Answer, Rollout], Grade], grading: threading.Event) -> Ran:
    async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
        await asyncio.to_thread(grading.wait, 10)
        stop.request(0.6)
        await asyncio.wait({task}, timeout=5)
        assert task.done()

    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        return run(core, plan(), drive=drive, grade=grader)


def test_a_grader_under_way_may_finish() -> None:
    grading = threading.Event()

    def slow(task: Task, answer: Answer, rollout: Rollout) -> Grade:
        grading.set()
        time.sleep(0.2)
        return grade(task, answer, rollout)

    assert stop_while_grading(slow, grading).verdict == ("completed", 1.0)


def test_a_grader_that_takes_too_long_leaves_the_answer() -> None:
    grading, release = threading.Event(), threading.Event()

    def hangs(task: Task, answer: Answer, rollout: Rollout) -> Grade:
        grading.set()
        release.wait(30)
        return grade(task, answer, rollout)

    ran = stop_while_grading(hangs, grading)
    release.set()
    assert ran.verdict == INTERRUPTED
    assert ran.record.answer == {"n": 1}


def test_a_stop_asked_for_before_makes_no_session() -> None:
    async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
        stop.request(SECONDS)

    with FakeCore() as core:
        ran = run(core, drive=drive)
        assert ran.verdict == INTERRUPTED
        assert core.requests == []


def test_a_run_that_is_cancelled_itself_keeps_its_row() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        keeper = Keeper(core)

        async def main() -> None:
            async with Client(core.base_url, core.api_key, retry=QUICK) as client:
                running = RolloutRunner(grade=grade, save=keeper, timeouts=TIMEOUTS).run(client, plan())
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(running, 0.5)

        asyncio.run(main())
        (record,) = keeper.records
        assert (record.status, record.reward) == INTERRUPTED


def test_retries_of_a_request_end_with_the_stop() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("artifacts", Fault(status=503))

        async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
            await asked_for(core, "artifacts", answered=False)
            stop.request(0.5)

        with no_hang():
            ran = run(core, plan(timeout=3600), retry=quick(patience=3600.0), drive=drive)
        assert ran.record.reward is None
