"""Every way in which a rollout can end, over real HTTP: its status, its reward, its messages."""

from __future__ import annotations

import pytest

from pytest_core_rollouts.rollout import poll_schedule
from pytest_core_rollouts.tasks.matrix import Agent
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.rollouts import (
    RIGHT,
    WRONG,
    json_reply,
    on,
    only_session,
    plan,
    refused,
    run,
    scripted,
)
from tests.support.tables import rows
from tests.support.waiting import no_hang

USAGE = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}


@pytest.fixture(autouse=True)
def silence_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events is only believed for a moment."""
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 0.3)


def test_a_right_answer_is_rewarded_and_its_session_deleted() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT, usage=USAGE, turn_seconds=0.1)) as core:
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.error is None
        assert ran.record.answer == {"n": 1}
        assert ran.record.usage == USAGE
        assert ran.record.attempt == 1
        assert ran.record.reasons == []
        assert ran.record.duration_s is not None
        assert 0.1 <= ran.record.duration_s < 5
        assert list(ran.record.timings) == ["create", "prepare", "turn", "fetch"]
        assert ran.record.session_id == only_session(core).id
        assert {"create", "turns", "artifacts", "content", "items"} <= ran.record.request_ids.keys()
        assert only_session(core).deleted
        assert only_session(core).cancels == 0
        assert not ran.warnings


def test_a_wrong_answer_earns_nothing_and_gets_no_other_attempt() -> None:
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("completed", 0.0)
        assert ran.record.reasons == [{"path": "n", "expected": 1, "answered": 2}]
        assert len(core.sessions) == 1


def test_the_limit_ends_the_turn_and_counts_as_a_failure() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, usage=USAGE)) as core:
        ran = run(core, plan(timeout=0.4, retries=3))
        assert ran.verdict == ("timeout", 0.0)
        assert ran.record.duration_s is not None
        assert 0.4 <= ran.record.duration_s < 2
        assert ran.record.usage == USAGE
        assert ran.record.items
        assert [what for _, what in only_session(core).history] == ["created", "turn", "cancel", "cancelled", "deleted"]
        assert len(core.sessions) == 1


@rows(("answer", "reward"), [(RIGHT, 1.0), (WRONG, 0.0)])
def test_a_turn_that_completes_while_it_is_cancelled_is_graded(answer: bytes, reward: float) -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, completes_on_cancel=True, answer=answer)) as core:
        ran = run(core, plan(timeout=0.3))
        assert ran.verdict == ("completed", reward)
        assert only_session(core).deleted


@rows(
    "code",
    [
        "context_length_exceeded",
        "max_output_tokens",
        "policy_violation",
        "misalignment_policy_violation",
    ],
)
def test_what_the_agent_brought_upon_itself_is_a_failure(code: str) -> None:
    with FakeCore(
        script=lambda body: Script(turn_status="failed", error={"code": code, "message": "Too much."})
    ) as core:
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("failed", 0.0)
        assert ran.record.error == f"the Turn failed: {code}: Too much."
        assert ran.record.items
        assert len(core.sessions) == 1


@rows("code", ["internal_error", "rate_limit_exceeded", "sandbox_error", "a_code_of_next_year"])
def test_any_other_failure_of_a_turn_is_missing_data(code: str) -> None:
    with FakeCore(
        script=lambda body: Script(turn_status="failed", error={"code": code, "message": "It broke."})
    ) as core:
        ran = run(core, plan(retries=0))
        assert ran.verdict == ("failed", None)
        assert ran.record.error == f"the Turn failed: {code}: It broke."
        assert ran.record.items


def test_a_failure_without_a_code_is_missing_data_too() -> None:
    with FakeCore(script=lambda body: Script(turn_status="failed")) as core:
        turn = {"id": "turn_1", "status": "failed", "error": None}
        core.fault = on("turns", json_reply({"object": "list", "data": [turn], "has_more": False, "last_id": "turn_1"}))
        ran = run(core, plan(retries=0))
        assert ran.verdict == ("failed", None)
        assert ran.record.error == "the Turn failed: no code: no message"


@rows(
    ("status", "code", "advice"),
    [
        (404, "model_not_found", "check the model's name ('gpt-6-typo'), and that the key's project may use it"),
        (429, "insufficient_quota", "add credit or raise the limit of the key's account"),
        (429, "billing_not_active", "add credit or raise the limit of the key's account"),
    ],
)
def test_a_create_that_no_rollout_can_make_stops_the_run_at_once(status: int, code: str, advice: str) -> None:
    with FakeCore() as core:
        core.fault = on("create", refused(status, "No.", code))
        ran = run(core, plan(agent=Agent(model="gpt-6-typo"), retries=3))
        assert ran.verdict == ("error", None)
        assert ran.outcome.fatal is not None
        assert ran.outcome.fatal.endswith(f"HTTP {status} {code}: No. [request id req_of_the_test]; {advice}")
        assert core.counts == {"create": 1}


def test_turns_of_subagents_are_not_the_agent_s() -> None:
    """They are listed with the agent's own, and newer; one that has completed does not complete the rollout."""
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    script = Script(turn_seconds=0.5, answer=RIGHT, usage=usage, subagents=3)
    with FakeCore(script=lambda body: script) as core:
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.usage == usage


def test_a_function_result_that_nobody_can_give_is_a_failure_at_once() -> None:
    with FakeCore(script=lambda body: Script(requires_action=True)) as core:
        ran = run(core, plan(timeout=60, retries=3))
        assert ran.verdict == ("failed", 0.0)
        assert ran.record.error == "the Session requires an action that a rollout can't perform: function_call ask"
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 5
        assert only_session(core).cancels >= 1
        assert only_session(core).deleted


def test_an_environment_that_nobody_can_connect_is_an_error() -> None:
    with FakeCore(script=lambda body: Script(requires_action=True)) as core:
        action = {"type": "environment_connection"}
        session = {"id": "sess_00000001", "status": "requires_action", "required_actions": [action]}
        core.fault = on("session", json_reply(session))
        ran = run(core, plan(timeout=60, retries=3))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert "environment_connection" in ran.record.error
        assert len(core.sessions) == 1


def test_a_turn_that_somebody_else_cancelled() -> None:
    with FakeCore(script=lambda body: Script(turn_status="cancelled", turn_seconds=0.1)) as core:
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("cancelled", None)
        assert ran.record.error == "the Turn was cancelled by someone else"
        assert len(core.sessions) == 1


def test_no_turn_before_the_limit_is_an_error_that_names_the_session() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=None)) as core:
        ran = run(core, plan(timeout=0.4, retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert ran.record.error.startswith("no Turn started within 0.4 s")
        assert "--rollout-timeout" in ran.record.error
        (warning,) = ran.warnings
        assert only_session(core).id in warning
        assert "409 conflict_error" in warning


@rows("stream", ["live", "silent"])
def test_a_session_that_fails_without_a_turn_is_an_error_at_once(stream: str) -> None:
    with FakeCore(script=lambda body: Script(session_failure="setup_commands[0] gave 3", stream=stream)) as core:
        ran = run(core, plan(timeout=60, retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.error == "the Session failed without a Turn: setup_commands[0] gave 3"
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 5
        assert only_session(core).deleted


def test_a_session_that_fails_under_its_turn_is_an_error() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, answer=RIGHT)) as core:
        failed = {"id": "sess_00000001", "status": "failed", "error": "the sandbox is gone"}
        core.fault = on("session", json_reply(failed))
        ran = run(core, plan(timeout=60, retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.error == "the Session failed while its Turn was in_progress: the sandbox is gone"
        assert only_session(core).deleted


def test_a_turn_that_completed_before_its_session_failed_counts() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, answer=RIGHT)) as core:

        def complete_first(request: object) -> Fault:
            only_session(core)._end("completed")
            return json_reply({"id": "sess_00000001", "status": "failed", "error": "too late"})

        core.fault = on("session", complete_first)
        ran = run(core, plan(timeout=60, retries=0))
        assert ran.verdict == ("completed", 1.0)


def test_a_turn_status_of_a_later_version_is_waited_out_and_named() -> None:
    with FakeCore(script=lambda body: Script(turn_status="hibernating", answer=RIGHT)) as core:
        ran = run(core, plan(timeout=1.0, retries=3))
        assert ran.verdict == ("error", None)
        assert ran.record.error == "the Turn still had the unknown status 'hibernating' at the limit of 1 s"
        assert ran.record.notes == ["unknown Turn status 'hibernating'"]
        assert len(core.sessions) == 1


def test_a_session_status_of_a_later_version_is_waited_out_and_named() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, session_status="dreaming")) as core:
        ran = run(core, plan(timeout=1.0, retries=3))
        assert ran.verdict == ("error", None)
        assert ran.record.error == "the Session still had the unknown status 'dreaming' at the limit of 1 s"
        assert ran.record.notes == ["unknown Session status 'dreaming'"]


def test_a_core_that_is_gone_at_the_limit_is_an_error_not_a_timeout() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        core.fault = lambda request: Fault(reset=True) if request.route not in ("create", "events") else None
        with no_hang():
            ran = run(core, plan(timeout=0.4, retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert core.base_url in ran.record.error
        (warning,) = ran.warnings
        assert only_session(core).id in warning


def test_a_refused_network_policy_names_the_option() -> None:
    with FakeCore() as core:
        core.fault = on("create", refused(400, "network access 'disabled' is not offered", "invalid_request_error"))
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert "--rollout-network" in ran.record.error
        assert "req_of_the_test" in ran.record.error
        assert ran.record.session_id is None
        assert ran.record.duration_s is None
        assert core.counts["create"] == 1


def test_the_attempt_after_a_fault_has_its_own_key_and_names_the_first() -> None:
    with FakeCore() as core:
        broken = Script(turn_status="failed", error={"code": "sandbox_error", "message": "It broke."})
        scripted(core, broken, Script(answer=RIGHT))
        ran = run(core, plan(retries=1))
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.attempt == 2
        assert ran.record.notes == ["attempt 1: the Turn failed: sandbox_error: It broke."]
        assert [key.rpartition("-")[2] for key in core.by_key] == ["a1", "a2"]
        assert all(session.deleted for session in core.sessions.values())


def test_the_last_attempt_s_fault_is_the_record() -> None:
    with FakeCore(script=lambda body: Script(session_failure="no room")) as core:
        ran = run(core, plan(retries=2))
        assert ran.verdict == ("error", None)
        assert ran.record.attempt == 3
        assert [note.partition(":")[0] for note in ran.record.notes] == ["attempt 1", "attempt 2"]
        assert all(session.deleted for session in core.sessions.values())


def test_attempts_begin_where_earlier_ones_ended() -> None:
    with FakeCore(script=lambda body: Script(session_failure="no room")) as core:
        ran = run(core, plan(retries=1, attempt=4))
        assert ran.record.attempt == 5
        assert [key.rpartition("-")[2] for key in core.by_key] == ["a4", "a5"]


def test_a_key_whose_session_was_deleted_makes_room_for_the_next_attempt() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        assert run(core).record.attempt == 1
        again = run(core)
        assert again.verdict == ("completed", 1.0)
        assert again.record.attempt == 2
        assert "idempotency_conflict" in again.record.notes[0]


@rows("status", [401, 403])
def test_a_key_that_is_refused_stops_the_run_at_the_first_answer(status: int) -> None:
    with FakeCore() as core:
        core.fault = lambda request: refused(status, "no")
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("error", None)
        assert ran.outcome.fatal == ran.record.error
        assert len(core.requests) == 1


def test_a_server_that_is_not_a_core_stops_the_run() -> None:
    with FakeCore() as core:
        core.fault = lambda request: Fault(status=404, body=b"<html>", headers={"Content-Type": "text/html"})
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("error", None)
        assert ran.outcome.fatal is not None
        assert len(core.requests) == 1


def test_a_core_that_sends_nonsense_is_only_an_error_of_that_rollout() -> None:
    with FakeCore(script=lambda body: Script(session_failure="no room")) as core:
        core.fault = on(
            "session", json_reply({"id": "sess_00000001", "status": "requires_action", "required_actions": 3})
        )
        ran = run(core, plan(timeout=5, retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert ran.record.error.startswith("internal error: TypeError")
        assert "turn_watch.py" in ran.record.error
        assert only_session(core).deleted
