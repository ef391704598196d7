"""How each fault is handled: the one table that decides about retries, attempts, stops, statuses and rewards.

`docs/errors.md` is generated from it. A fault that it does not name counts as infrastructure: missing, never a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, TypeVar

__all__ = [
    "CLIENT_FAULTS",
    "LOCAL_FAULTS",
    "RESPONSE_FAULTS",
    "SESSION_FAULTS",
    "TURN_FAULTS",
    "ClientFault",
    "FaultPolicy",
    "LocalFault",
    "Retry",
    "SessionFault",
    "response_fault_policy",
    "turn_fault_policy",
]

K = TypeVar("K")


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
    throttles: bool = False
    unexplained: bool = False
    status: Literal["completed", "failed", "cancelled", "timeout", "error"] = "error"
    reward: float | None = None
    agent: Literal["no", "partly", "yes"] = "no"
    because: str = ""


class ClientFault(Enum):
    """Faults of a call, by the class of the error."""

    NOT_A_CORE = "NotACore"
    CONNECTION_FAILED = "ConnectionFailed"
    CONNECTION_FAILED_FOR_GOOD = "ConnectionFailed, permanent"
    DEADLINE_PASSED = "DeadlinePassed"
    INVALID_RESPONSE = "InvalidResponse"
    SHORT_READ = "ShortRead"
    TOO_LARGE = "TooLarge"
    STREAM_LOST = "StreamLost"

    @property
    def policy(self) -> FaultPolicy:
        """How it is handled."""
        return CLIENT_FAULTS[self]


class SessionFault(Enum):
    """Faults of a Session or its Turn, except for a Turn that failed with a code."""

    FAILED_WITHOUT_TURN = "failed without a Turn"
    FAILED_DURING_TURN = "failed during its Turn"
    NO_TURN_IN_TIME = "no Turn before the limit"
    TIMEOUT = "in progress at the limit"
    WAITS_FOR_FUNCTION_RESULT = "waits for a function result"
    WAITS_FOR_ENVIRONMENT = "waits for an environment"
    CANCELLED_BY_SOMEONE_ELSE = "cancelled by someone else"
    UNKNOWN_STATUS = "unknown status"

    @property
    def policy(self) -> FaultPolicy:
        """How it is handled."""
        return SESSION_FAULTS[self]


class LocalFault(Enum):
    """Faults on our side."""

    GRADER_FAILED = "grader"
    GRADER_BROKEN = "grader_broken"
    TASK_CHANGED = "task"
    INVALID_AGENT = "agent"
    INTERNAL_ERROR = "internal error"
    NO_FURTHER_ATTEMPT = "no further attempt"
    INTERRUPTED = "interrupted"
    WORKER_DIED_TWICE = "worker died twice"
    ROW_NOT_WRITTEN = "row can't be written"
    NO_SESSION_FOR_AN_HOUR = "no Session for an hour"

    @property
    def policy(self) -> FaultPolicy:
        """How it is handled."""
        return LOCAL_FAULTS[self]


def _each(because: str, policies: Mapping[K, FaultPolicy]) -> Mapping[K, FaultPolicy]:
    """Return the policies, with this reason for those that have none."""
    return {
        name: policy if policy.because or policy.reward is not None else replace(policy, because=because)
        for name, policy in policies.items()
    }


def _caused_by_agent(what: str, status: Literal["failed", "timeout"] = "failed") -> FaultPolicy:
    return FaultPolicy(what, status=status, reward=0.0, agent="yes")


_PROVOKED = (
    "From the model's first reply on, only calls of the agent's program count, and only failures that "
    "need the server's part. An agent can provoke one from some servers (by too many requests, or by one "
    "that the server can't handle), and its program must fail right after. It gains a missing reward for "
    "its own rollout only, and a report warns where that is no chance."
)
_KEY_IS_OURS = (
    "The proxy sets the key itself, so nothing that the agent sends as a key is refused. A server may "
    "refuse the key a model that the agent asks for; that stops no run, because a Turn whose agent has "
    "used a tool is no witness."
)
_NO_AGENT_YET = (
    "Before the model's first reply there is no agent yet: the request is the program's own. After it the"
    " embedded Core reports agent_exited."
)

RESPONSE_FAULTS: Mapping[str, FaultPolicy] = _each(
    "It answers a request of ours to the Core, in which nothing of the agent's has a part.",
    {
        "3xx": FaultPolicy("a redirect, which is never followed because it could leak the key", attempt=True),
        "400 invalid_request_error": FaultPolicy("the server rejected the request as invalid"),
        "400 invalid_beta": FaultPolicy("the server speaks another version of the API"),
        "400 unsupported_or_invalid_configuration": FaultPolicy("this deployment does not support what was requested"),
        "400 model_provider_required": FaultPolicy("the deployment has no model of its own"),
        "401": FaultPolicy("the API key is wrong", stops=True),
        "401 invalid_api_key": FaultPolicy("the API key is wrong", stops=True),
        "403": FaultPolicy("the API key lacks permission", stops=True),
        "404 create": FaultPolicy("the request names something that does not exist"),
        "404 not_found_error": FaultPolicy("someone else deleted the Session", attempt=True),
        "404": FaultPolicy("someone else deleted the Session", attempt=True),
        "408": FaultPolicy("the server timed out waiting for the request", Retry.WHILE_PATIENT, attempt=True),
        "409 conflict_error": FaultPolicy("the Session is busy; a deletion waits for it to settle", attempt=True),
        "409 idempotency_conflict": FaultPolicy(
            "the attempt's Session was deleted already; the next attempt takes over, at no cost", attempt=True
        ),
        "409": FaultPolicy("the Session is busy", attempt=True),
        "413 request_too_large": FaultPolicy("the task's files or its instruction are too large"),
        "429": FaultPolicy("too many requests", Retry.WHILE_PATIENT, attempt=True),
        "4xx": FaultPolicy("any other client error"),
        "500": FaultPolicy("the server failed", Retry.WHILE_PATIENT, attempt=True),
        "502": FaultPolicy("a proxy can't reach the Core", Retry.WHILE_PATIENT, attempt=True),
        "503 execution_unavailable": FaultPolicy("no sandbox available right now", Retry.WHILE_PATIENT, attempt=True),
        "503 authentication_unavailable": FaultPolicy(
            "keys can't be checked right now", Retry.WHILE_PATIENT, attempt=True
        ),
        "503": FaultPolicy("the server is not ready", Retry.WHILE_PATIENT, attempt=True),
        "504": FaultPolicy("a proxy gave up on the Core", Retry.WHILE_PATIENT, attempt=True),
        "5xx": FaultPolicy("any other server error", Retry.WHILE_PATIENT, attempt=True),
    },
)
"""Error statuses of the server: `STATUS CODE` before `STATUS create` (when a Session is created) before `STATUS`."""

CLIENT_FAULTS: Mapping[ClientFault, FaultPolicy] = _each(
    "It happens to a request of ours to the Core, which the agent can't reach.",
    {
        ClientFault.NOT_A_CORE: FaultPolicy(
            "the server answers, but does not serve the Agents API, or redirects to another", stops=True
        ),
        ClientFault.CONNECTION_FAILED: FaultPolicy(
            "refused, reset, timed out, cut off", Retry.WHILE_PATIENT, attempt=True
        ),
        ClientFault.CONNECTION_FAILED_FOR_GOOD: FaultPolicy(
            "the server's certificate is not trusted, or the embedded Core has ended", stops=True
        ),
        ClientFault.DEADLINE_PASSED: FaultPolicy(
            "the deadline of the call has passed",
            attempt=True,
            agent="partly",
            because=(
                "Outputs within the task's bounds can be slow to fetch from a Core far away. The time for it is ten "
                "minutes, and max_total_bytes bounds what is fetched."
            ),
        ),
        ClientFault.INVALID_RESPONSE: FaultPolicy(
            "expected JSON, got HTML, an empty body or truncated JSON", Retry.A_FEW_TIMES, attempt=True
        ),
        ClientFault.SHORT_READ: FaultPolicy(
            "an Artifact's download had fewer or more bytes than the Artifact", Retry.A_FEW_TIMES, attempt=True
        ),
        ClientFault.TOO_LARGE: FaultPolicy(
            "an answer over its limit, which is not read to its end",
            attempt=True,
            because=(
                "Answers and outputs that are too large are graded without them; what remains are lists of the Core's."
            ),
        ),
        ClientFault.STREAM_LOST: FaultPolicy("the event stream ended early; the Turn list is polled instead"),
    },
)

TURN_FAULTS: Mapping[str, FaultPolicy] = {
    "context_length_exceeded": _caused_by_agent("the agent filled its context window"),
    "max_output_tokens": _caused_by_agent("the agent wrote more than its limit"),
    "session_budget_exceeded": _caused_by_agent("the agent used up its Session's budget"),
    "content_filter": _caused_by_agent("a policy refused what the agent wrote"),
    "cyber_policy": _caused_by_agent("a policy refused what the agent did"),
    "policy_violation": _caused_by_agent("a policy refused what the agent did"),
    "refusal": _caused_by_agent("the model refused"),
    "outputs_rejected": _caused_by_agent("the agent left outputs that can't be captured"),
    "sandbox_limit_exceeded": _caused_by_agent("the agent exceeded the limits of its sandbox"),
    "agent_killed": _caused_by_agent("a signal that neither we nor the machine sent ended it"),
    "agent_exited": _caused_by_agent("the agent's program failed after the model had replied"),
    "rate_limit_exceeded": FaultPolicy(
        "the model is throttled", attempt=True, throttles=True, status="failed", agent="partly", because=_PROVOKED
    ),
    "server_overloaded": FaultPolicy(
        "the model is overloaded", attempt=True, throttles=True, status="failed", agent="partly", because=_PROVOKED
    ),
    "authentication_error": FaultPolicy(
        "the model's key is wrong",
        stops=True,
        needs_witness=True,
        status="failed",
        agent="partly",
        because=_KEY_IS_OURS,
    ),
    "usage_limit_exceeded": FaultPolicy(
        "the model's plan is used up",
        stops=True,
        needs_witness=True,
        status="failed",
        agent="partly",
        because=_KEY_IS_OURS,
    ),
    "invalid_request": FaultPolicy("the model's server rejected the request", status="failed", because=_NO_AGENT_YET),
    "resource_not_found": FaultPolicy("the model does not exist", status="failed", because=_NO_AGENT_YET),
    "executor_version_incompatible": FaultPolicy(
        "the sandbox is too old for the Core", status="failed", because="Core and sandbox are the deployment's."
    ),
    "active_turn_not_steerable": FaultPolicy(
        "the Session was busy", attempt=True, status="failed", because="Only we send input to the Session."
    ),
    "connection_failed": FaultPolicy(
        "the model can't be reached", attempt=True, status="failed", agent="partly", because=_PROVOKED
    ),
    "request_timeout": FaultPolicy(
        "the model did not answer in time", attempt=True, status="failed", agent="partly", because=_PROVOKED
    ),
    "server_error": FaultPolicy(
        "the model's server failed", attempt=True, status="failed", agent="partly", because=_PROVOKED
    ),
    "sandbox_error": FaultPolicy(
        "the sandbox failed",
        attempt=True,
        status="failed",
        agent="partly",
        because=(
            "On the embedded Core it is a sandbox that did not start, could not be watched, or was killed while "
            "the machine ran out of memory: the machine has less than the bounds of its sandboxes add up to. An "
            "agent within its bounds can use what the machine lacks, and can't choose whom the kernel kills."
        ),
    ),
    "internal_error": FaultPolicy(
        "the Core failed",
        attempt=True,
        unexplained=True,
        status="failed",
        agent="partly",
        because=(
            "On the embedded Core it is a fault of the Core, or of the agent's program before the model's first "
            "reply, and the agent can't cause it. Elsewhere it may be anything: --rollout-failed-turns zero "
            "counts it as reward 0."
        ),
    ),
    "any other": FaultPolicy(
        "not known to be the agent's doing",
        attempt=True,
        unexplained=True,
        status="failed",
        agent="partly",
        because=("A Core elsewhere may have any code: --rollout-failed-turns zero counts it as reward 0."),
    ),
}
"""Failed Turns, by the code of their error."""

SESSION_FAULTS: Mapping[SessionFault, FaultPolicy] = {
    SessionFault.FAILED_WITHOUT_TURN: FaultPolicy(
        "its sandbox could not be created", attempt=True, because="Sandboxes are made before the agent starts."
    ),
    SessionFault.FAILED_DURING_TURN: FaultPolicy(
        "its sandbox is gone",
        attempt=True,
        agent="partly",
        because=(
            "The Core lost the sandbox without ending the Turn. On the embedded Core an agent that ends its own "
            "sandbox fails its Turn instead; elsewhere that depends on the Core."
        ),
    ),
    SessionFault.NO_TURN_IN_TIME: FaultPolicy(
        "its sandbox was not ready", attempt=True, because="Sandboxes are made before the agent starts."
    ),
    SessionFault.TIMEOUT: _caused_by_agent("the agent took too long; its Turn is cancelled", "timeout"),
    SessionFault.WAITS_FOR_FUNCTION_RESULT: _caused_by_agent("the agent called a function that a rollout can't answer"),
    SessionFault.WAITS_FOR_ENVIRONMENT: FaultPolicy(
        "the deployment expects the client to provide a sandbox", because="The deployment decides where sandboxes run."
    ),
    SessionFault.CANCELLED_BY_SOMEONE_ELSE: FaultPolicy(
        "its Turn was cancelled by someone else",
        status="cancelled",
        because="Only who has the Core's key can cancel a Turn.",
    ),
    SessionFault.UNKNOWN_STATUS: FaultPolicy(
        "the status comes from a later version of the API; it is waited for up to the limit",
        because="The Core sets the status.",
    ),
}

LOCAL_FAULTS: Mapping[LocalFault, FaultPolicy] = _each(
    "It happens on our side, where the agent has no hand.",
    {
        LocalFault.GRADER_FAILED: FaultPolicy(
            "the grader raised or timed out; the answer is kept, and resuming grades it again",
            agent="partly",
            because=(
                "An answer can make a grader raise. Whether that is the answer's fault or the grader's can't be told,"
                " and a grader that fails on right answers must not teach that they are wrong. The report names task,"
                " agent and count. An answer that crashes the grader's process or holds it over its limit, twice, is "
                "grader_broken."
            ),
        ),
        LocalFault.GRADER_BROKEN: _caused_by_agent("the answer broke its grader, twice"),
        LocalFault.TASK_CHANGED: FaultPolicy("a task file changed after collection"),
        LocalFault.INVALID_AGENT: FaultPolicy("the agent's settings can't be sent"),
        LocalFault.INTERNAL_ERROR: FaultPolicy(
            "a bug in this package, or an answer that it can't interpret",
            because=(
                "It is a mistake of this package, to be reported. What comes from a sandbox is checked where it is "
                "read."
            ),
        ),
        LocalFault.NO_FURTHER_ATTEMPT: FaultPolicy(
            "the run was stopped, or may spend no more, before another one started"
        ),
        LocalFault.INTERRUPTED: FaultPolicy("Ctrl-C, SIGTERM or -x; a resume runs it", status="cancelled"),
        LocalFault.WORKER_DIED_TWICE: FaultPolicy("a worker process died twice while it ran this rollout"),
        LocalFault.ROW_NOT_WRITTEN: FaultPolicy(
            "the disk is full: no rollout starts any more, and no row is written", stops=True
        ),
        LocalFault.NO_SESSION_FOR_AN_HOUR: FaultPolicy("the Core is down for everyone", stops=True),
    },
)


def response_fault_policy(status: int, code: str | None, *, creating: bool) -> FaultPolicy:
    """Return how an error status of the server is handled."""
    keys = (f"{status} {code}", f"{status} create" if creating else "", str(status), f"{status // 100}xx")
    return next((RESPONSE_FAULTS[key] for key in keys if key in RESPONSE_FAULTS), RESPONSE_FAULTS["5xx"])


def turn_fault_policy(code: object) -> FaultPolicy:
    """Return how a failed Turn with this code is handled."""
    return TURN_FAULTS.get(code, TURN_FAULTS["any other"]) if isinstance(code, str) else TURN_FAULTS["any other"]
