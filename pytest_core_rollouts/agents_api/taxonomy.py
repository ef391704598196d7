"""What follows from each fault: the one table that retries, attempts, stops, statuses and rewards go by.

`docs/errors.md` is made from it. Whatever it does not name is infrastructure: tried again, and never a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["ANSWERS", "CLIENT", "OURS", "SESSION", "TURN", "Meaning", "of_answer", "of_turn"]

Retry = Literal["never", "while patient", "a few times"]


@dataclass(frozen=True)
class Meaning:
    """What a fault means for its call, its rollout and its run.

    `retry`: whether the same call is sent again (`RetryPolicy` says how often). `attempt`: whether a new attempt at
    the rollout may fix it. `stops`: whether every other rollout would meet it too, and `needs_witness`: only if another
    rollout met it as well. `throttles`: whether it asks for fewer rollouts at a time. `unexplained`: whether it may as
    well be the agent's doing (`--rollout-failed-turns`). `status` and `reward` are the record's if no attempt fixed it.

    `agent`: whether the agent can cause it. What it can cause is reward 0. `because`: why it is missing data all the
    same, or why the agent can't.
    """

    what: str
    retry: Retry = "never"
    attempt: bool = False
    stops: bool = False
    needs_witness: bool = False
    throttles: bool = False
    unexplained: bool = False
    status: Literal["completed", "failed", "cancelled", "timeout", "error"] = "error"
    reward: float | None = None
    agent: Literal["no", "partly", "yes"] = "no"
    because: str = ""


def _each(because: str, meanings: Mapping[str, Meaning]) -> Mapping[str, Meaning]:
    """The meanings, with a reason for those that give none."""
    return {
        name: meaning if meaning.because or meaning.reward is not None else replace(meaning, because=because)
        for name, meaning in meanings.items()
    }


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

ANSWERS: Mapping[str, Meaning] = _each(
    "It answers a request of ours to the Core, in which nothing of the agent's has a part.",
    {
        "3xx": Meaning("a redirect, never followed: the key stays here", attempt=True),
        "400 invalid_request_error": Meaning("the request can't work"),
        "400 invalid_beta": Meaning("the server speaks another version of the API"),
        "400 unsupported_or_invalid_configuration": Meaning("this deployment does not offer what was asked for"),
        "400 model_provider_required": Meaning("the deployment has no model of its own"),
        "401": Meaning("the key is wrong", stops=True),
        "401 invalid_api_key": Meaning("the key is wrong", stops=True),
        "403": Meaning("the key may not do this", stops=True),
        "404 create": Meaning("what the request names is not there"),
        "404 not_found_error": Meaning("somebody else deleted the Session", attempt=True),
        "404": Meaning("somebody else deleted the Session", attempt=True),
        "408": Meaning("the server waited too long", "while patient", attempt=True),
        "409 conflict_error": Meaning("the Session is busy; a deletion waits for it to settle", attempt=True),
        "409 idempotency_conflict": Meaning(
            "the attempt's Session is deleted already; the next attempt takes over, at no cost", attempt=True
        ),
        "409": Meaning("the Session is busy", attempt=True),
        "413 request_too_large": Meaning("the task's files or its instruction are too large"),
        "429": Meaning("slow down", "while patient", attempt=True),
        "4xx": Meaning("any other refusal"),
        "500": Meaning("the server broke", "while patient", attempt=True),
        "502": Meaning("a proxy can't reach the Core", "while patient", attempt=True),
        "503 execution_unavailable": Meaning("no sandboxes right now", "while patient", attempt=True),
        "503 authentication_unavailable": Meaning("keys can't be checked right now", "while patient", attempt=True),
        "503": Meaning("the server is not ready", "while patient", attempt=True),
        "504": Meaning("a proxy gave up on the Core", "while patient", attempt=True),
        "5xx": Meaning("any other failure of the server", "while patient", attempt=True),
    },
)
"""Answers of the server: `STATUS CODE` before `STATUS create` (for the creation of a Session) before `STATUS`."""

CLIENT: Mapping[str, Meaning] = _each(
    "It happens to a request of ours to the Core, which the agent can't reach.",
    {
        "NotACore": Meaning("the server answers, but serves no Agents API, or redirects to another", stops=True),
        "ConnectionFailed": Meaning("refused, reset, timed out, cut off", "while patient", attempt=True),
        "ConnectionFailed, permanent": Meaning(
            "the server's certificate is not trusted, or the embedded Core has ended", stops=True
        ),
        "DeadlinePassed": Meaning(
            "the time for the call is over",
            attempt=True,
            agent="partly",
            because=(
                "Outputs within the task's bounds can be slow to fetch from a Core far away. The time for it is ten "
                "minutes, and max_total_bytes bounds what is fetched."
            ),
        ),
        "InvalidResponse": Meaning("HTML, nothing, or half a JSON where JSON was due", "a few times", attempt=True),
        "ShortRead": Meaning("an Artifact came with fewer or more bytes than it has", "a few times", attempt=True),
        "TooLarge": Meaning(
            "an answer over its cap; it is not read to its end",
            attempt=True,
            because=(
                "Answers and outputs that are too large are graded without them; what remains are lists of the Core's."
            ),
        ),
        "StreamLost": Meaning("the event stream broke off: the Turn list is asked instead"),
    },
)
"""Faults of a call, by the name of their class."""

TURN: Mapping[str, Meaning] = {
    "context_length_exceeded": Meaning("the agent filled its context window", status="failed", reward=0.0, agent="yes"),
    "max_output_tokens": Meaning("the agent wrote more than it may", status="failed", reward=0.0, agent="yes"),
    "session_budget_exceeded": Meaning(
        "the agent used up its Session's budget", status="failed", reward=0.0, agent="yes"
    ),
    "content_filter": Meaning("a policy refused what the agent wrote", status="failed", reward=0.0, agent="yes"),
    "cyber_policy": Meaning("a policy refused what the agent did", status="failed", reward=0.0, agent="yes"),
    "policy_violation": Meaning("a policy refused what the agent did", status="failed", reward=0.0, agent="yes"),
    "refusal": Meaning("the model refused", status="failed", reward=0.0, agent="yes"),
    "outputs_rejected": Meaning(
        "the agent left outputs that can't be captured", status="failed", reward=0.0, agent="yes"
    ),
    "sandbox_limit_exceeded": Meaning(
        "the agent used more than its sandbox's bounds", status="failed", reward=0.0, agent="yes"
    ),
    "agent_killed": Meaning(
        "a signal that neither we nor the machine sent ended it", status="failed", reward=0.0, agent="yes"
    ),
    "agent_exited": Meaning(
        "the agent's program failed after the model had replied", status="failed", reward=0.0, agent="yes"
    ),
    "rate_limit_exceeded": Meaning(
        "the model is throttled",
        attempt=True,
        throttles=True,
        status="failed",
        agent="partly",
        because=_PROVOKED,
    ),
    "server_overloaded": Meaning(
        "the model is overloaded",
        attempt=True,
        throttles=True,
        status="failed",
        agent="partly",
        because=_PROVOKED,
    ),
    "authentication_error": Meaning(
        "the model's key is wrong",
        stops=True,
        needs_witness=True,
        status="failed",
        agent="partly",
        because=_KEY_IS_OURS,
    ),
    "usage_limit_exceeded": Meaning(
        "the model's plan is used up",
        stops=True,
        needs_witness=True,
        status="failed",
        agent="partly",
        because=_KEY_IS_OURS,
    ),
    "invalid_request": Meaning(
        "the model can't be asked like this",
        status="failed",
        because=_NO_AGENT_YET,
    ),
    "resource_not_found": Meaning(
        "there is no such model",
        status="failed",
        because=_NO_AGENT_YET,
    ),
    "executor_version_incompatible": Meaning(
        "the sandbox is too old for the Core", status="failed", because="Core and sandbox are the deployment's."
    ),
    "active_turn_not_steerable": Meaning(
        "the Session was busy", attempt=True, status="failed", because="Only we send input to the Session."
    ),
    "connection_failed": Meaning(
        "the model can't be reached",
        attempt=True,
        status="failed",
        agent="partly",
        because=_PROVOKED,
    ),
    "request_timeout": Meaning(
        "the model did not answer in time",
        attempt=True,
        status="failed",
        agent="partly",
        because=_PROVOKED,
    ),
    "server_error": Meaning(
        "the model's server broke",
        attempt=True,
        status="failed",
        agent="partly",
        because=_PROVOKED,
    ),
    "sandbox_error": Meaning(
        "the sandbox broke",
        attempt=True,
        status="failed",
        agent="partly",
        because=(
            "On the embedded Core it is a sandbox that did not start, could not be watched, or was killed while "
            "the machine ran out of memory: the machine has less than the bounds of its sandboxes add up to. An "
            "agent within its bounds can use what the machine lacks, and can't choose whom the kernel kills."
        ),
    ),
    "internal_error": Meaning(
        "the Core broke",
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
    "any other": Meaning(
        "not known to be the agent's doing",
        attempt=True,
        unexplained=True,
        status="failed",
        agent="partly",
        because=("A Core elsewhere may have any code: --rollout-failed-turns zero counts it as reward 0."),
    ),
}
"""Codes of a failed Turn."""

SESSION: Mapping[str, Meaning] = {
    "failed without a Turn": Meaning(
        "its sandbox could not be made", attempt=True, because="Sandboxes are made before the agent starts."
    ),
    "failed while its Turn stood": Meaning(
        "its sandbox is gone",
        attempt=True,
        agent="partly",
        because=(
            "The Core lost the sandbox without ending the Turn. On the embedded Core an agent that ends its own "
            "sandbox fails its Turn instead; elsewhere that depends on the Core."
        ),
    ),
    "no Turn before the limit": Meaning(
        "its sandbox was not ready", attempt=True, because="Sandboxes are made before the agent starts."
    ),
    "in progress at the limit": Meaning(
        "the agent took too long; its Turn is cancelled", status="timeout", reward=0.0, agent="yes"
    ),
    "waits for a function result": Meaning(
        "the agent asked for what nobody gives", status="failed", reward=0.0, agent="yes"
    ),
    "waits for an environment": Meaning(
        "the deployment wants a sandbox of ours", because="The deployment decides where sandboxes run."
    ),
    "cancelled by someone else": Meaning(
        "its Turn was cancelled, not by us",
        status="cancelled",
        because="Only who has the Core's key can cancel a Turn.",
    ),
    "unknown status": Meaning(
        "a later version of the API; waited for up to the limit", because="The Core sets the status."
    ),
}
"""What else becomes of a Session or its Turn."""

OURS: Mapping[str, Meaning] = _each(
    "It happens on our side, where the agent has no hand.",
    {
        "grader": Meaning(
            "it raised, or took too long; the answer is kept, and a resume grades it again",
            agent="partly",
            because=(
                "An answer can make a grader raise. Whether that is the answer's fault or the grader's can't be told,"
                " and a grader that fails on right answers must not teach that they are wrong. The report names task,"
                " agent and count. An answer that crashes the grader's process or holds it over its limit, twice, is "
                "grader_broken."
            ),
        ),
        "grader_broken": Meaning("the answer broke its grader, twice", status="failed", reward=0.0, agent="yes"),
        "task": Meaning("a file changed since it was collected"),
        "agent": Meaning("its settings can't be sent"),
        "internal error": Meaning(
            "a fault of this package, or an answer that it can't make sense of",
            because=(
                "It is a mistake of this package, to be reported. What comes from a sandbox is checked where it is "
                "read."
            ),
        ),
        "no further attempt": Meaning("the run was stopped, or may spend no more, before another one started"),
        "interrupted": Meaning("Ctrl-C, SIGTERM or -x; a resume runs it", status="cancelled"),
        "worker died twice": Meaning("with this rollout in flight, both times"),
        "row can't be written": Meaning("a full disk: nothing starts any more, and no row is written", stops=True),
        "no Session for an hour": Meaning("the Core is down for everyone", stops=True),
    },
)
"""What can go wrong on our side."""


def of_answer(status: int, code: str | None, *, creating: bool) -> Meaning:
    """What an answer of the server means, its status being 300 or above."""
    kinds = (f"{status} {code}", f"{status} create" if creating else "", str(status), f"{status // 100}xx")
    return next((ANSWERS[kind] for kind in kinds if kind in ANSWERS), ANSWERS["5xx"])


def of_turn(code: object) -> Meaning:
    """What the code of a failed Turn means."""
    return TURN.get(code, TURN["any other"]) if isinstance(code, str) else TURN["any other"]
