"""The table of faults is what the code follows, and a fault that it does not name is never a reward."""

from __future__ import annotations

from collections.abc import Callable

from pytest_core_rollouts.agents_api import APIStatusError, ConnectionFailed, RetryPolicy, errors
from pytest_core_rollouts.agents_api.fault_policies import (
    RESPONSE_FAULTS,
    TURN_FAULTS,
    ClientFault,
    FaultPolicy,
    LocalFault,
    Retry,
    SessionFault,
    response_fault_policy,
    turn_fault_policy,
)
from pytest_core_rollouts.records.record import RolloutRecord
from tests.support.tables import rows

NAMED: list[tuple[str, FaultPolicy]] = [
    *RESPONSE_FAULTS.items(),
    *TURN_FAULTS.items(),
    *((str(fault), fault.policy) for faults in (ClientFault, SessionFault, LocalFault) for fault in faults),
]
WIRE_CODES = (
    *("context_length_exceeded", "session_budget_exceeded", "usage_limit_exceeded", "rate_limit_exceeded"),
    *("server_overloaded", "cyber_policy", "connection_failed", "server_error", "authentication_error"),
    *("invalid_request", "resource_not_found", "sandbox_error", "executor_version_incompatible"),
    *("active_turn_not_steerable", "request_timeout", "internal_error"),
    *("credit_balance_exhausted", "project_spend_limit_exceeded", "organization_spend_limit_exceeded"),
    *("organization_usage_limit_exceeded", "billing_not_active", "flex_unavailable", "misalignment_policy_violation"),
)
"""Every code that the official client's types list."""


def faults_for_which(wrong: Callable[[FaultPolicy], bool]) -> list[str]:
    """The names of the faults whose policy breaks a rule: an assertion shows all of them."""
    return [name for name, policy in NAMED if wrong(policy)]


def test_record_accepts_status_and_reward_of_each_fault() -> None:
    ids = {"rollout_id": "r", "task": "t", "harness": "h", "model": "m", "sample": 0, "run_id": "r", "group_id": "g"}

    def refused(policy: FaultPolicy) -> bool:
        try:
            RolloutRecord(**ids, status=policy.status, reward=policy.reward)  # type: ignore[arg-type]
        except ValueError:
            return True
        return False

    assert faults_for_which(refused) == []


def test_fault_with_a_reward_is_final() -> None:
    with_reward = [(name, policy) for name, policy in NAMED if policy.reward is not None]
    assert with_reward
    final = (0.0, True, Retry.NEVER, False, False)
    found = {
        name: (policy.reward, policy.status in ("failed", "timeout"), policy.retry, policy.attempt, policy.stops)
        for name, policy in with_reward
    }
    assert found == dict.fromkeys(found, final)


def test_fault_that_the_agent_can_cause_is_reward_0_and_others_say_why_not() -> None:
    assert faults_for_which(lambda policy: (policy.agent == "yes") != (policy.reward == 0.0)) == []
    assert faults_for_which(lambda policy: bool(policy.because) != (policy.reward is None)) == []
    assert faults_for_which(lambda policy: policy.agent != "partly" and bool(policy.unexplained)) == []


def test_fault_that_stops_the_run_is_not_tried_again() -> None:
    assert faults_for_which(lambda policy: policy.stops and policy.attempt) == []
    assert faults_for_which(lambda policy: policy.stops and policy.retry is not Retry.NEVER) == []


def test_every_code_of_the_api_has_a_policy() -> None:
    assert set(WIRE_CODES) < set(TURN_FAULTS)


@rows("code", ["a_code_of_next_year", "", None, 7, ["x"], {"code": 1}])
def test_unknown_code_gives_no_reward(code: object) -> None:
    policy = turn_fault_policy(code)
    assert (policy.status, policy.reward, policy.attempt) == ("failed", None, True)


def test_every_error_of_the_client_has_a_policy() -> None:
    kinds = {name for name in errors.__all__ if name.endswith(("Error", "Failed", "Core"))} | set(errors.__all__)
    kinds -= {"AgentsAPIError", "APIStatusError", "printable", "short_line"}
    assert kinds <= {fault.value for fault in ClientFault}


@rows("code", [None, "conflict_error", "x"])
@rows("creating", [False, True])
def test_every_error_status_has_a_policy_and_gives_no_reward(code: str | None, creating: bool) -> None:
    for status in range(300, 600):
        policy = response_fault_policy(status, code, creating=creating)
        assert policy.reward is None
        assert (policy.retry is Retry.WHILE_PATIENT) == (status in (408, 429) or status >= 500)
        assert policy.stops == (status in (401, 403))
        if creating and 400 <= status < 500 and status not in (408, 409, 429):
            assert not policy.attempt, "the next attempt would send the same"


def test_retry_policy_follows_the_table() -> None:
    policy = RetryPolicy()
    for status in (400, 404, 408, 409, 429, 500, 503):
        fault = APIStatusError(status, method="GET", path="/x")
        assert policy.may_retry(fault, 1) == (
            response_fault_policy(status, None, creating=False).retry is not Retry.NEVER
        )


def test_only_an_untrusted_certificate_stops_the_run() -> None:
    fault = ConnectionFailed("it broke", method="GET", path="/x")
    assert fault.policy.attempt
    fault.permanent = True
    assert fault.policy.stops
    assert fault.stops_run
