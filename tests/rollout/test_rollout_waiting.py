"""How long a rollout waits, for what, and with how many requests."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from pytest_core_rollouts.rollout import poll_schedule, turn_watch
from pytest_core_rollouts.rollout.runner import Timeouts
from tests.support.api import quick
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.rollouts import RIGHT, TIMEOUTS, json_reply, on, only_session, plan, refused, run
from tests.support.waiting import no_hang


@pytest.fixture(autouse=True)
def silence_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events is only believed for a moment."""
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 0.3)


def test_time_that_core_asks_to_wait_is_given_back() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=1.2, stream="silent", answer=RIGHT)) as core:
        core.fault = on("turns", Fault(status=429, headers={"Retry-After": "0.7"}), last=1)
        assert run(core, plan(timeout=1.0)).verdict == ("completed", 1.0)


def test_a_core_that_asks_to_wait_is_not_asked_sooner() -> None:
    """Neither by the next try of a call nor by the next round of calls."""
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("create", Fault(status=503, headers={"Retry-After": "0.8"}), last=3)
        ran = run(core, plan(retries=0), retry=quick(patience=0.2), timeouts=replace(TIMEOUTS, outage=60.0))
        assert ran.verdict == ("completed", 1.0)
        asked = [request.at for request in core.requests if request.route == "create"]
        assert len(asked) == 4
        assert min(later - earlier for earlier, later in pairwise(asked)) >= 0.8


def test_time_is_given_back_up_to_as_much_again() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        core.fault = on("turns", Fault(status=429))
        began = time.monotonic()
        with no_hang():
            ran = run(core, plan(timeout=0.5, retries=0), retry=quick(patience=3600.0))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert "/turns" in ran.record.error
        assert time.monotonic() - began >= 1.0


def test_a_turn_that_outlives_everything_holds_its_slot_for_a_bounded_time() -> None:
    """The Turn never ends, so what ends the rollout is its own bounds: each is named."""
    bounds = replace(TIMEOUTS, cancel=1.0, delete=2.0)  # long enough for a request on a busy machine
    with FakeCore(script=lambda body: Script(never_ends=True, ignore_cancel=True)) as core:
        ran = run(core, plan(timeout=1.0), timeouts=bounds)
        assert ran.verdict == ("timeout", 0.0)
        assert only_session(core).cancels
        (note,) = ran.record.notes
        assert note == "the Turn had not ended 1 s after it was cancelled"
        (warning,) = ran.warnings
        assert only_session(core).id in warning
        assert "409" in warning


def test_a_cancel_that_core_refuses_leaves_it_a_timeout() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        core.fault = on("cancel", refused(500, "no"))
        ran = run(core, plan(timeout=1.0))
        assert ran.verdict == ("timeout", 0.0)
        assert "the Turn could not be cancelled" in ran.record.notes[0]
        assert only_session(core).id in ran.warnings[0]


def test_the_turn_list_is_asked_again_after_faults() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.3, answer=RIGHT)) as core:
        faults = [Fault(reset=True), Fault(status=502, body=b"<html>"), Fault(cut=5), Fault(status=200, body=b"{}")]
        core.fault = on("turns", lambda request: faults[request.nth - 1], last=len(faults))
        assert run(core).verdict == ("completed", 1.0)


# The stream


@pytest.mark.parametrize("prepare_seconds", [0.0, 0.1, 0.8])
def test_a_rollout_costs_at_most_eight_requests_while_its_stream_lives(
    prepare_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a Turn that runs for longer than a stream without events is believed."""
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 1.0)
    with FakeCore(script=lambda body: Script(prepare_seconds=prepare_seconds, turn_seconds=3, answer=RIGHT)) as core:
        assert run(core, timeouts=Timeouts(first_poll=0.4)).verdict == ("completed", 1.0)
        first_look = {0.0: ["turns"], 0.1: [], 0.8: ["turns"]}  # none: the stream had announced the Turn
        assert [request.route for request in core.requests] == [
            *("create", "events", *first_look[prepare_seconds], "turns", "artifacts", "content", "items", "delete"),
        ]


def test_what_happened_before_a_stream_that_opens_late_is_looked_for_once_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 20.0)
    with FakeCore(script=lambda body: Script(prepare_seconds=0.4, session_failure="no room")) as core:
        core.fault = on("events", Fault(delay=0.8))
        ran = run(core, plan(timeout=60, retries=0), timeouts=Timeouts(first_poll=0.1))
        assert ran.record.error == "the Session failed without a Turn: no room"
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 5


def test_the_end_of_a_turn_is_seen_at_once_over_the_stream() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=0.1, turn_seconds=1.7, answer=RIGHT)) as core:
        ran = run(core)
        ((ended, _),) = [entry for entry in only_session(core).history if entry[1] == "completed"]
        looks = [request.at for request in core.requests if request.route == "turns" and request.at > ended]
        assert looks[0] - ended < 0.15
        assert 1.5 <= ran.record.timings["turn"] < 1.9
        assert ran.record.timings["prepare"] < 0.5


@pytest.mark.parametrize("stream", ["silent", "dropped", "scrambled"])
def test_a_stream_of_no_use_costs_no_rollout(stream: str) -> None:
    with FakeCore(
        script=lambda body: Script(prepare_seconds=0.1, turn_seconds=0.6, stream=stream, answer=RIGHT)
    ) as core:
        ran = run(core, retry=quick(stream_silence=0.8))
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 3
        assert core.counts["events"] == 1


@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(reset=True), Fault(status=200, body=b"{}"), Fault(hang=True)]
)
def test_without_a_stream_the_clock_does(fault: Fault) -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.5, answer=RIGHT)) as core:
        core.fault = on("events", fault)
        assert run(core).verdict == ("completed", 1.0)


def test_a_failure_announced_by_the_stream_is_found_at_once() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=0.5, session_failure="no room")) as core:
        ran = run(core, plan(timeout=60, retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 0.75


def test_without_a_stream_looks_grow_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_schedule, "BACKOFF_FIRST", 0.02)
    monkeypatch.setattr(poll_schedule, "BACKOFF_MAX", 0.3)
    with FakeCore(script=lambda body: Script(turn_seconds=2.0, answer=RIGHT)) as core:
        core.fault = on("events", Fault(status=503))
        assert run(core).verdict == ("completed", 1.0)
        counts = Counter(request.route for request in core.requests)
        # five looks while the pause doubles, then one each 0.3 s, half of them with the Session
        assert counts["turns"] <= 5 + 2.0 / 0.3 + 2
        assert counts["session"] <= counts["turns"] / turn_watch.SESSION_POLL_INTERVAL + 1


def test_a_stream_that_falls_silent_hands_over_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 20.0)
    with FakeCore(script=lambda body: Script(turn_seconds=1.0, stream="silent", answer=RIGHT)) as core:
        ran = run(core, plan(timeout=60), retry=quick(stream_silence=0.8))
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 3


def test_looks_without_a_stream_are_one_request_each_15_seconds() -> None:
    requests_a_look = 1 + 1 / turn_watch.SESSION_POLL_INTERVAL
    assert poll_schedule.BACKOFF_MAX / requests_a_look >= 15


def test_an_event_that_comes_before_its_truth_does_not_end_the_watch() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=0.1, turn_seconds=0.5, answer=RIGHT)) as core:
        stale = {"id": "turn_sess_00000001", "status": "in_progress"}
        page = {"object": "list", "data": [stale], "has_more": False, "last_id": stale["id"]}

        def late(request: Request) -> Fault | None:
            session = only_session(core)
            ended = [at for at, what in session.history if what == "completed"]
            return json_reply(page) if ended and time.monotonic() < ended[0] + 0.3 else None

        core.fault = on("turns", late)
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 3


def test_a_cancelled_turn_may_take_its_time() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, cancel_seconds=0.6)) as core:
        ran = run(core, plan(timeout=1.0), timeouts=Timeouts(cancel=30.0))
        assert ran.verdict == ("timeout", 0.0)
        assert ran.record.notes == []
        assert only_session(core).deleted
