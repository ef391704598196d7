"""How each fault is handled: the one table that decides about retries, attempts, stops, statuses and rewards.

`docs/errors.md` is generated from it. A fault that it does not name counts as infrastructure: missing, never a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Literal

__all__ = [
    "RESPONSE_FAULTS",
    "TURN_FAULTS",
    "ClientFault",
    "FaultPolicy",
    "LocalFault",
    "Retry",
    "SessionFault",
    "response_fault_policy",
    "turn_fault_policy",
]


class Retry(Enum):
    """Whether the same call is sent again; `RetryPolicy` says how often."""

    NEVER = "never"
    WHILE_PATIENT = "while patient"
    A_FEW_TIMES = "a few times"


@dataclass(frozen=True)
class FaultPolicy:
    """How a fault is handled.

    `what`            the fault, in words
    `retry`           whether the same call is sent again
    `attempt`         whether another attempt at the rollout may succeed
    `stops`           whether all other rollouts would meet it too, so that the run stops
    `needs_witness`   stops the run only if a second rollout met it
    `refuses`         stops the run if the Sessions of three tasks were refused so, and no Session was created
    `throttles`       whether fewer rollouts should run at a time
    `unexplained`     whether the agent may have caused it (`--rollout-failed-turns`)
    `status`, `reward` of the record, if no attempt succeeded
    `agent`           whether the agent can cause it: then the reward is 0
    `because`         why the reward is missing nevertheless, or why the agent can't cause it
    """

    what: str
    retry: Retry = Retry.NEVER
    attempt: bool = False
    stops: bool = False
    needs_witness: bool = False
    refuses: bool = False
    throttles: bool = False
    unexplained: bool = False
    status: Literal["completed", "failed", "cancelled", "timeout", "error"] = "error"
    reward: float | None = None
    agent: Literal["no", "partly", "yes"] = "no"
    because: str = ""


def _caused_by_agent(what: str, status: Literal["failed", "timeout"] = "failed") -> FaultPolicy:
    return FaultPolicy(what, status=status, reward=0.0, agent="yes")


_response = partial(FaultPolicy, because="The request is ours, and nothing in it comes from the agent.")
_client = partial(FaultPolicy, because="The request goes from us to the Core, where the agent can't interfere.")
_turn = partial(FaultPolicy, status="failed")
_local = partial(FaultPolicy, because="It happens on our side, where the agent can't interfere.")

_PROVOKED = (
    "After the model's first reply, only calls of the agent's program count, and only failures in which the server "
    "took part. With some servers an agent can provoke one (by too many requests, or by a request that the server "
    "can't handle), and then its program must fail right after. It gains a missing reward for its own rollout only, "
    "and a report warns if there are more of them than chance explains."
)
_KEY_IS_OURS = (
    "The proxy sets the key itself, so a key that the agent sends is never used. A server may refuse our key for a "
    "model that the agent asks for. That does not stop a run, because a Turn whose agent has used a tool is not a "
    "witness."
)
_ACCOUNT_IS_OURS = (
    "It is the state of an account, which one agent can't change by much: it only spends what its own Turn costs. If a "
    "Core lets an agent provoke it, that does not stop a run, because a Turn whose agent has used a tool is not a "
    "witness."
)
_NO_CREDIT: Mapping[str, str] = {
    "credit_balance_exhausted": "the account has no credit left",
    "project_spend_limit_exceeded": "the project has reached its spending limit",
    "organization_spend_limit_exceeded": "the organization has reached its spending limit",
    "organization_usage_limit_exceeded": "the organization has reached its usage limit",
    "billing_not_active": "the account's billing is not active",
}
"""Codes of OpenAI's service after which nothing more can be run, with what they mean."""
_NO_AGENT_YET = (
    "Before the model's first reply, the request comes from the program and not from the agent. After it, the embedded "
    "Core reports agent_exited."
)
_BEFORE_THE_AGENT = "The sandbox is created before the agent starts."

RESPONSE_FAULTS: Mapping[str, FaultPolicy] = {
    "3xx": _response("a redirect, which is never followed because it could leak the key", attempt=True),
    "400 invalid_request_error": _response("the server rejected the request as invalid", refuses=True),
    "400 invalid_beta": _response("the server speaks another version of the API", refuses=True),
    "400 unsupported_or_invalid_configuration": _response(
        "this deployment does not support what was requested", refuses=True
    ),
    "400 model_provider_required": _response("the deployment has no default model", refuses=True),
    "401": _response("the API key is wrong", stops=True),
    "401 invalid_api_key": _response("the API key is wrong", stops=True),
    "403": _response("the API key lacks permission", stops=True),
    "404 model_not_found": _response("the model does not exist, or this key may not use it", stops=True),
    "404 create": _response("the request names something that does not exist", refuses=True),
    "404 not_found_error": _response("someone else deleted the Session", attempt=True),
    "404": _response("someone else deleted the Session", attempt=True),
    "408": _response("the server timed out waiting for the request", Retry.WHILE_PATIENT, attempt=True),
    "409 conflict_error": _response("the Session is busy; a deletion waits for it to settle", attempt=True),
    "409 idempotency_conflict": _response(
        "the attempt's Session was deleted already; the next attempt takes over, at no cost", attempt=True
    ),
    "409": _response("the Session is busy", attempt=True),
    "413 request_too_large": _response("the task's files or its instruction are too large"),
    "413": _response("the task's files or its instruction are too large"),
    "429 insufficient_quota": _response("the account has no credit left, or has reached a limit", stops=True),
    **{f"429 {code}": _response(what, stops=True) for code, what in _NO_CREDIT.items()},
    "429": _response("too many requests", Retry.WHILE_PATIENT, attempt=True),
    "4xx": _response("any other client error", refuses=True),
    "500": _response("the server failed", Retry.WHILE_PATIENT, attempt=True),
    "502": _response("a proxy can't reach the Core", Retry.WHILE_PATIENT, attempt=True),
    "503 execution_unavailable": _response("no sandbox available right now", Retry.WHILE_PATIENT, attempt=True),
    "503 authentication_unavailable": _response("keys can't be checked right now", Retry.WHILE_PATIENT, attempt=True),
    "503": _response("the server is not ready", Retry.WHILE_PATIENT, attempt=True),
    "504": _response("a proxy gave up on the Core", Retry.WHILE_PATIENT, attempt=True),
    "5xx": _response("any other server error", Retry.WHILE_PATIENT, attempt=True),
}
"""Error statuses of the server: `STATUS CODE` before `STATUS create` (when a Session is created) before `STATUS`."""

TURN_FAULTS: Mapping[str, FaultPolicy] = {
    "context_length_exceeded": _caused_by_agent("the agent filled its context window"),
    "max_output_tokens": _caused_by_agent("the agent wrote more than its limit"),
    "session_budget_exceeded": _caused_by_agent("the agent used up its Session's budget"),
    "content_filter": _caused_by_agent("a policy refused what the agent wrote"),
    "cyber_policy": _caused_by_agent("a policy refused what the agent did"),
    "policy_violation": _caused_by_agent("a policy refused what the agent did"),
    "misalignment_policy_violation": _caused_by_agent("a policy refused what the agent did"),
    "refusal": _caused_by_agent("the model refused"),
    "outputs_rejected": _caused_by_agent("the agent left outputs that can't be captured"),
    "sandbox_limit_exceeded": _caused_by_agent("the agent exceeded the limits of its sandbox"),
    "agent_killed": _caused_by_agent("a signal that neither we nor the machine sent ended the agent"),
    "agent_exited": _caused_by_agent("the agent's program failed after the model had replied"),
    "rate_limit_exceeded": _turn(
        "the model is throttled", attempt=True, throttles=True, agent="partly", because=_PROVOKED
    ),
    "server_overloaded": _turn(
        "the model is overloaded", attempt=True, throttles=True, agent="partly", because=_PROVOKED
    ),
    "flex_unavailable": _turn(
        "the service tier flex has no capacity", attempt=True, throttles=True, agent="partly", because=_PROVOKED
    ),
    "authentication_error": _turn(
        "the model's key is wrong",
        stops=True,
        needs_witness=True,
        agent="partly",
        because=_KEY_IS_OURS,
    ),
    "usage_limit_exceeded": _turn(
        "the model's plan is used up",
        stops=True,
        needs_witness=True,
        agent="partly",
        because=_KEY_IS_OURS,
    ),
    **{
        code: _turn(what, stops=True, needs_witness=True, agent="partly", because=_ACCOUNT_IS_OURS)
        for code, what in _NO_CREDIT.items()
    },
    "invalid_request": _turn("the model's server rejected the request", because=_NO_AGENT_YET),
    "resource_not_found": _turn("the model does not exist", because=_NO_AGENT_YET),
    "executor_version_incompatible": _turn(
        "the sandbox is too old for the Core", because="Core and sandbox belong to the deployment."
    ),
    "active_turn_not_steerable": _turn(
        "the Session was busy", attempt=True, because="Only we send input to the Session."
    ),
    "connection_failed": _turn("the model can't be reached", attempt=True, agent="partly", because=_PROVOKED),
    "request_timeout": _turn("the model did not answer in time", attempt=True, agent="partly", because=_PROVOKED),
    "server_error": _turn("the model's server failed", attempt=True, agent="partly", because=_PROVOKED),
    "sandbox_error": _turn(
        "the sandbox failed",
        attempt=True,
        agent="partly",
        because=(
            "On the embedded Core, the sandbox did not start, could not be watched, or was killed when the machine ran "
            "out of memory, because its sandboxes may use more than it has. An agent within its bounds can use up the "
            "memory, but can't choose which process the kernel kills."
        ),
    ),
    "internal_error": _turn(
        "the Core failed",
        attempt=True,
        unexplained=True,
        agent="partly",
        because=(
            "On the embedded Core, the Core failed, or the agent's program failed before the model's first reply; the "
            "agent can't cause either. On another Core it may be anything: --rollout-failed-turns zero counts it as "
            "reward 0."
        ),
    ),
    "any other": _turn(
        "not known to be the agent's doing",
        attempt=True,
        unexplained=True,
        agent="partly",
        because="Another Core may report any code: --rollout-failed-turns zero counts it as reward 0.",
    ),
}
"""Failed Turns, by the code of their error."""


class _Fault(Enum):
    """A kind of fault: its value is the name in docs/errors.md, and `policy` says how it is handled."""

    policy: FaultPolicy

    def __new__(cls, name: str, policy: FaultPolicy | None = None) -> _Fault:
        """Make a member whose value is only the name, so that `LocalFault("grader")` finds it."""
        assert policy is not None
        fault = object.__new__(cls)
        fault._value_ = name
        fault.policy = policy
        return fault


class ClientFault(_Fault):
    """Faults of a call, by the class of the error."""

    NOT_A_CORE = (
        "NotACore",
        _client("the server answers, but does not serve the Agents API, or redirects to another", stops=True),
    )
    CONNECTION_FAILED = (
        "ConnectionFailed",
        _client("refused, reset, timed out, cut off", Retry.WHILE_PATIENT, attempt=True),
    )
    CONNECTION_FAILED_FOR_GOOD = (
        "ConnectionFailed, permanent",
        _client("the server's certificate is not trusted, or the embedded Core has ended", stops=True),
    )
    DEADLINE_PASSED = (
        "DeadlinePassed",
        FaultPolicy(
            "the deadline of the call has passed",
            attempt=True,
            agent="partly",
            because=(
                "A Core far away can be slow to send outputs that are within the task's bounds. Fetching may take ten "
                "minutes, and max_total_bytes limits how much is fetched."
            ),
        ),
    )
    INVALID_RESPONSE = (
        "InvalidResponse",
        _client("expected JSON, got HTML, an empty body or truncated JSON", Retry.A_FEW_TIMES, attempt=True),
    )
    SHORT_READ = (
        "ShortRead",
        _client("an Artifact's download had fewer or more bytes than the Artifact", Retry.A_FEW_TIMES, attempt=True),
    )
    TOO_LARGE = (
        "TooLarge",
        FaultPolicy(
            "an answer over its limit, which is not read to its end",
            attempt=True,
            because=(
                "If an answer or an output is too large, the rollout is graded without it. What remains are the Core's "
                "lists."
            ),
        ),
    )
    STREAM_LOST = ("StreamLost", _client("the event stream ended early; the Turn list is polled instead"))


class SessionFault(_Fault):
    """Faults of a Session or its Turn, except for a Turn that failed with a code."""

    FAILED_WITHOUT_TURN = (
        "failed without a Turn",
        FaultPolicy("the sandbox could not be created", attempt=True, because=_BEFORE_THE_AGENT),
    )
    FAILED_DURING_TURN = (
        "failed during its Turn",
        FaultPolicy(
            "the sandbox was lost",
            attempt=True,
            agent="partly",
            because=(
                "The Core lost the sandbox without ending the Turn. On the embedded Core, an agent that ends its own "
                "sandbox fails its Turn instead; on another Core that depends on the Core."
            ),
        ),
    )
    NO_TURN_IN_TIME = (
        "no Turn before the limit",
        FaultPolicy("the sandbox was not ready in time", attempt=True, because=_BEFORE_THE_AGENT),
    )
    TIMEOUT = (
        "in progress at the limit",
        _caused_by_agent("the agent took too long; its Turn was cancelled", "timeout"),
    )
    WAITS_FOR_FUNCTION_RESULT = (
        "waits for a function result",
        _caused_by_agent("the agent called a function that a rollout can't answer"),
    )
    WAITS_FOR_ENVIRONMENT = (
        "waits for an environment",
        FaultPolicy(
            "the deployment expects the client to provide a sandbox",
            because="The deployment decides where sandboxes run.",
        ),
    )
    CANCELLED_BY_SOMEONE_ELSE = (
        "cancelled by someone else",
        FaultPolicy(
            "someone else cancelled the Turn",
            status="cancelled",
            because="To cancel a Turn, one needs the Core's key.",
        ),
    )
    UNKNOWN_STATUS = (
        "unknown status",
        FaultPolicy(
            "unknown status, perhaps from a newer API; it was waited for until the limit",
            because="The Core sets the status.",
        ),
    )


class LocalFault(_Fault):
    """Faults on our side."""

    GRADER_FAILED = (
        "grader",
        FaultPolicy(
            "the grader raised or timed out; the answer is kept, and resuming grades it again",
            agent="partly",
            because=(
                "An answer can make a grader raise. The fault may be the answer's or the grader's, and a grader that "
                "fails on right answers must not teach that they are wrong. The report names task, agent and count. An "
                "answer that crashes the grader's process or exceeds its time limit, twice, is grader_broken."
            ),
        ),
    )
    GRADER_BROKEN = ("grader_broken", _caused_by_agent("the answer broke its grader, twice"))
    TASK_CHANGED = ("task", _local("a task file changed after collection"))
    INVALID_AGENT = ("agent", _local("the agent's settings can't be sent"))
    INTERNAL_ERROR = (
        "internal error",
        FaultPolicy(
            "a bug in this package, or an answer that it can't interpret",
            because="It is a bug of this package: report it. What comes from a sandbox is checked when it is read.",
        ),
    )
    NO_FURTHER_ATTEMPT = (
        "no further attempt",
        _local("the run was stopped, or reached a limit, before another attempt started"),
    )
    INTERRUPTED = ("interrupted", _local("Ctrl-C, SIGTERM or -x; resuming runs it", status="cancelled"))
    WORKER_DIED_TWICE = ("worker died twice", _local("a worker process died twice while it ran this rollout"))
    ROW_NOT_WRITTEN = (
        "row can't be written",
        _local("the disk is full: no further rollout starts, and no row is written", stops=True),
    )
    NO_SESSION_FOR_AN_HOUR = ("no Session for an hour", _local("the Core is down for everyone", stops=True))


def response_fault_policy(status: int, code: str | None, *, creating: bool) -> FaultPolicy:
    """Return how an error status of the server is handled."""
    keys = (f"{status} {code}", f"{status} create" if creating else "", str(status), f"{status // 100}xx")
    return next((RESPONSE_FAULTS[key] for key in keys if key in RESPONSE_FAULTS), RESPONSE_FAULTS["5xx"])


def turn_fault_policy(code: object) -> FaultPolicy:
    """Return how a failed Turn with this code is handled."""
    return TURN_FAULTS.get(code, TURN_FAULTS["any other"]) if isinstance(code, str) else TURN_FAULTS["any other"]
