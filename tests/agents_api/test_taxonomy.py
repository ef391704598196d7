"""The table of faults: what it says is what is done, and what it does not name is no reward."""

from __future__ import annotations

import pytest

from pytest_core_rollouts.agents_api import APIStatusError, ConnectionFailed, RetryPolicy, errors
from pytest_core_rollouts.agents_api.taxonomy import ANSWERS, CLIENT, OURS, SESSION, TURN, Meaning, of_answer, of_turn
from pytest_core_rollouts.records import RolloutRecord

TABLES = {**ANSWERS, **CLIENT, **TURN, **SESSION, **OURS}
MEANINGS = [pytest.param(meaning, id=name) for name, meaning in TABLES.items()]
WIRE_CODES = (
    *("context_length_exceeded", "session_budget_exceeded", "usage_limit_exceeded", "rate_limit_exceeded"),
    *("server_overloaded", "cyber_policy", "connection_failed", "server_error", "authentication_error"),
    *("invalid_request", "resource_not_found", "sandbox_error", "executor_version_incompatible"),
    *("active_turn_not_steerable", "request_timeout", "internal_error"),
)
"""Every code that the official client's types list."""


@pytest.mark.parametrize("meaning", MEANINGS)
def test_each_is_a_row_that_a_record_can_hold(meaning: Meaning) -> None:
    ids = {"rollout_id": "r", "task": "t", "harness": "h", "model": "m", "sample": 0, "run_id": "r", "group_id": "g"}
    RolloutRecord(**ids, status=meaning.status, reward=meaning.reward)  # type: ignore[arg-type]


@pytest.mark.parametrize("meaning", MEANINGS)
def test_only_what_the_agent_did_is_a_reward_and_that_is_never_done_again(meaning: Meaning) -> None:
    if meaning.reward is None:
        return
    assert meaning.reward == 0.0
    assert meaning.status in ("failed", "timeout")
    assert meaning.retry == "never"
    assert not meaning.attempt
    assert not meaning.stops


@pytest.mark.parametrize("meaning", MEANINGS)
def test_what_the_agent_can_cause_is_a_zero_and_the_rest_says_why_it_is_missing(meaning: Meaning) -> None:
    assert (meaning.agent == "yes") == (meaning.reward == 0.0)
    assert bool(meaning.because) == (meaning.reward is None)
    assert meaning.agent == "partly" or not meaning.unexplained


@pytest.mark.parametrize("meaning", MEANINGS)
def test_what_stops_the_run_is_not_tried_again(meaning: Meaning) -> None:
    assert not (meaning.stops and (meaning.attempt or meaning.retry != "never"))


def test_every_code_of_the_wire_is_named() -> None:
    assert set(WIRE_CODES) < set(TURN)


@pytest.mark.parametrize("code", ["a_code_of_next_year", "", None, 7, ["x"], {"code": 1}])
def test_an_unknown_code_is_never_a_reward(code: object) -> None:
    meaning = of_turn(code)
    assert (meaning.status, meaning.reward, meaning.attempt) == ("failed", None, True)


def test_every_fault_of_the_client_is_named() -> None:
    kinds = {name for name in errors.__all__ if name.endswith(("Error", "Failed", "Core"))} | set(errors.__all__)
    kinds -= {"AgentsAPIError", "APIStatusError", "printable"}
    assert kinds <= set(CLIENT)


@pytest.mark.parametrize("code", [None, "conflict_error", "x"])
@pytest.mark.parametrize("creating", [False, True])
def test_every_status_has_a_meaning_and_none_a_reward(code: str | None, creating: bool) -> None:
    for status in range(300, 600):
        meaning = of_answer(status, code, creating=creating)
        assert meaning.reward is None
        assert (meaning.retry == "while patient") == (status in (408, 429) or status >= 500)
        assert meaning.stops == (status in (401, 403))
        if creating and 400 <= status < 500 and status not in (408, 409, 429):
            assert not meaning.attempt, "the next attempt would send the same"


def test_the_policy_goes_by_it() -> None:
    policy = RetryPolicy()
    for status in (400, 404, 408, 409, 429, 500, 503):
        fault = APIStatusError(status, method="GET", path="/x")
        assert policy.may_retry(fault, 1) == (of_answer(status, None, creating=False).retry != "never")


def test_an_untrusted_certificate_is_told_from_a_connection_that_broke() -> None:
    fault = ConnectionFailed("it broke", method="GET", path="/x")
    assert fault.meaning.attempt
    fault.permanent = True
    assert fault.meaning.stops
    assert fault.stops_run
