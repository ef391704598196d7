"""Create a rollout's Session: what the request contains, when it may be sent, and how long the Core is waited for.

Everything that the sandbox gets is put together here. Nothing of it grades the answer. The reference solution is only
sent under the harness `oracle`, to a Core that we started ourselves.

If the Core creates no Session for anyone, the attempt waits, because the rollouts behind it in the queue would meet
the same fault. The fault is this request's own if a whole round of tries failed although the Core served others, or
at least answered.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, DeadlinePassed
from pytest_core_rollouts.agents_api.fault_policies import LocalFault, Retry
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.dialects import OPENAGENTCORE, Dialect
from pytest_core_rollouts.rollout.session_adoption import SingleSession
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.turn_watch import AttemptFailed
from pytest_core_rollouts.tasks.matrix import Agent, MatrixError, Rollout

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session

MAX_PAIRS = 16
MAX_KEY = 64
MAX_VALUE = 512
"""Limits of the API for metadata: pairs, and characters of a key and a value."""
SLOT_POLL_INTERVAL = 0.5
"""Seconds between two checks whether another attempt may start."""
MIN_ADOPTED_AGE = 1.5
"""Seconds by which a Session must be older than our request for it. The server's times are whole seconds."""
MAX_ADOPTED_AGE = 30 * 86400.0
"""Seconds. An earlier creation time is not believed: no Session is kept for so long."""


def session_body(
    rollout: Rollout,
    *,
    attempt: int = 1,
    model_key: str | None = None,
    core_is_ours: bool = False,
    dialect: Dialect = OPENAGENTCORE,
) -> dict[str, Any]:
    """Return the JSON body for `POST /agents/sessions`. The same attempt at a rollout always gives the same body.

    `dialect`: of the server that gets it. `core_is_ours`: whether we started the Core; no other gets the solution.

    Raises TaskError if an input file changed after collection, and MatrixError for a model provider without a key or
    for the harness `oracle` on another Core.
    """
    if rollout.agent.harness == "oracle" and not core_is_ours:
        raise MatrixError("harness oracle: requires our own Core; the reference solution is never sent to another one")
    body: dict[str, Any] = {
        "environment": {**_environment(rollout), **dialect.environment_members(rollout.agent)},
        "input": rollout.task.instruction,
        "metadata": metadata(rollout, attempt),
    }
    if agent := dialect.agent_block(rollout.agent, _harness_config(rollout)):
        body["agent"] = agent
    if (base_url := rollout.model_base_url(attempt)) is not None:
        body["x_agents_core"] = {"model_provider": _model_provider(rollout.agent, base_url, model_key)}
    return body


def metadata(rollout: Rollout, attempt: int = 1) -> dict[str, str]:
    """Return the Session's metadata, by which a run finds its Sessions, cut to the API's limits.

    Labels that do not fit are left out; the record has all of them.
    """
    pairs = {
        "run_id": rollout.run_id,
        "rollout_id": rollout.rollout_id,
        "attempt": str(attempt),
        "task": rollout.task.id,
        "agent": rollout.agent.slug,
        "sample": str(rollout.sample),
        **{f"label.{key}": value for key, value in rollout.labels.items()},
    }
    return {_cut(key, MAX_KEY): _cut(value, MAX_VALUE) for key, value in list(pairs.items())[:MAX_PAIRS]}


def _cut(text: str, limit: int) -> str:
    """Return `text` in at most `limit` characters that UTF-8 can encode; a longer one ends in a digest of all."""
    encoded = text.encode("utf-8", "backslashreplace")
    whole = encoded.decode("utf-8")
    if len(whole) <= limit:
        return whole
    return f"{whole[: limit - 13]}-{hashlib.sha256(encoded).hexdigest()[:12]}"


def _environment(rollout: Rollout) -> dict[str, Any]:
    task = rollout.task
    environment: dict[str, Any] = {"type": "openai_hosted", "network": rollout.network.wire()}
    if files := task.uploads:
        environment["files"] = [
            {"type": "inline", "path": f"/workspace/{file.path}", "data": base64.b64encode(file.read()).decode("ascii")}
            for file in files
        ]
    if task.env:
        environment["env"] = task.variables()
    if task.packages:
        environment["packages"] = {manager: list(names) for manager, names in task.packages.items()}
    if commands := task.preparation:
        environment["setup_commands"] = [{"command": command} for command in commands]
    return environment


def _model_provider(agent: Agent, base_url: str, model_key: str | None) -> dict[str, Any]:
    """Return protocol, URL, key, and the limits that some harnesses need. Raises MatrixError without a key."""
    if not model_key:
        raise MatrixError(f"agent {agent.slug}: no key for the model at {base_url}; set {agent.api_key_env or 'one'}")
    limits = {"context_window": agent.context_window, "max_output_tokens": agent.max_output_tokens}
    given = {key: value for key, value in limits.items() if value is not None}
    return {"protocol": agent.effective_protocol, "base_url": base_url, "api_key": model_key, **given}


def _harness_config(rollout: Rollout) -> Mapping[str, Any]:
    agent = rollout.agent
    if agent.harness == "oracle":
        solution = rollout.task.solution
        assert solution is not None, "a task without a solution is skipped under oracle"
        return {"solution": solution.decode("utf-8")}
    return agent.harness_file.wire if agent.harness_file is not None else agent.harness_config


async def wait_for_slot(limit: AdaptiveLimit, stop: Stop, *, pause: float, halted: Callable[[], str | None]) -> None:
    """Wait until another attempt at a rollout may start: after `pause` seconds, and when the limit allows one more.

    Raises Stopped, and AttemptFailed if no further attempt may start.
    """
    earliest = time.monotonic() + pause
    while True:
        if (reason := halted()) is not None:
            raise AttemptFailed(f"no further attempt: {reason}", LocalFault.NO_FURTHER_ATTEMPT.policy)
        seconds_left = earliest - time.monotonic()
        if seconds_left <= 0 and limit.admits_attempt():
            return
        interval = min(seconds_left, SLOT_POLL_INTERVAL) if seconds_left > 0 else SLOT_POLL_INTERVAL
        await stop.unless_stopped(asyncio.sleep(interval))


@dataclass(frozen=True)
class SessionCreation:
    """Creates the Session of one attempt. All times are in seconds.

    `seconds`      how long one round of tries may take
    `grace`        how long it may still take after a stop was requested
    `outage`       how long a Core that creates no Session for anyone is waited for, in all
    `unanswered`   how long a check whether the Core answers at all may take
    `halted`       returns why nothing may start any more, or None
    `single`       makes the requests if the server ignores idempotency keys; None if it does not
    """

    client: Client
    limit: AdaptiveLimit
    stop: Stop
    seconds: float
    grace: float
    outage: float
    unanswered: float
    halted: Callable[[], str | None]
    single: SingleSession | None = None

    async def create(self, body: Mapping[str, Any], key: str) -> tuple[Session, float]:
        """Return the Session, and how many seconds the Core kept us waiting.

        Raises AgentsAPIError, AttemptFailed, LaterAttempt and Stopped.
        """
        started = time.monotonic()
        core_serves_others = False
        while True:
            round_started, waited_before = time.monotonic(), self.client.waited_s
            self._set_deadline(self.seconds)
            try:
                session = await self.stop.unless_stopped(self._request(body, key), self.grace)
            except AgentsAPIError as error:
                temporary = error.policy.retry is Retry.WHILE_PATIENT or isinstance(error, DeadlinePassed)
                if core_serves_others or not temporary:
                    raise
                if (reason := self.halted()) is not None:
                    message = f"no Session was created: {error}; {reason}"
                    raise AttemptFailed(message, LocalFault.NO_FURTHER_ATTEMPT.policy) from None
                if time.monotonic() - started > self.outage:
                    message = f"the Core has not created a Session for {self.outage:.0f} s: {error}"
                    raise AttemptFailed(message, LocalFault.NO_SESSION_FOR_AN_HOUR.policy) from None
                core_serves_others = self.limit.created_since(started) or await self._core_answers(error)
                await self.stop.unless_stopped(asyncio.sleep(self._asked_pause(error)))
            else:
                self.limit.session_created()
                waited = round_started - started + self.client.waited_s - waited_before
                return session, min(waited, time.monotonic() - started)

    async def _request(self, body: Mapping[str, Any], key: str) -> Session:
        if self.single is not None:
            return await self.single.create(body, key)
        return await self.client.create_session(body, idempotency_key=key)

    def _asked_pause(self, error: AgentsAPIError) -> float:
        """Return for how long the Core asked not to be asked again, up to the client's cap."""
        fault = error.previous if isinstance(error, DeadlinePassed) and error.previous is not None else error
        if not isinstance(fault, APIStatusError) or fault.retry_after is None:
            return 0.0
        return self.client.retry.pause(fault, 1)

    async def _core_answers(self, error: AgentsAPIError) -> bool:
        """Return whether the Core answers another request, so that `error` may be about this one."""
        if isinstance(error, APIStatusError) and error.status in (429, 503):
            return False  # the Core itself says that it can't serve anyone
        self._set_deadline(self.unanswered)
        try:
            await self.stop.unless_stopped(self.client.check())
        except AgentsAPIError as check_error:
            if check_error.stops_run:
                raise
            return False
        return True

    def _set_deadline(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.client.deadline = deadline if self.stop.deadline is None else min(deadline, self.stop.deadline)


def adopted_age(session: Session, client: Client, *, since: float) -> float | None:
    """Return how many seconds ago a Session was created if that was before `since` (monotonic), else None.

    A create with the key of an earlier one returns the Session that exists, after a kill, a resume or a lost answer.
    Both times are the server's, from the answer that named the Session, so it does not matter that clocks differ.
    """
    created_at: object = session.get("created_at")
    if type(created_at) is not int or client.server_ahead is None:
        return None
    age = time.time() + client.server_ahead - created_at
    return age if time.monotonic() - since + MIN_ADOPTED_AGE < age < MAX_ADOPTED_AGE else None
