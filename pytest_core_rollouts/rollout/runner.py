"""Run one rollout: create the Session, wait for its Turn, fetch the answer, grade it, save the row, delete the Session.

`RolloutRunner.run` raises nothing that can go wrong with a single rollout: it returns a record that says so. The
record is saved, in a thread, before the Session is deleted. A crash in between leaves a Session to delete, and never a
result to pay for twice. What `save` itself raises (a full disk) ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.threads import Graders
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.attempt_state import EMBEDDED, AttemptState
from pytest_core_rollouts.rollout.dialects import OPENAGENTCORE, Dialect
from pytest_core_rollouts.rollout.late_usage import LateUsage
from pytest_core_rollouts.rollout.stopping import Stop, cancel_and_wait
from pytest_core_rollouts.rollout.witnesses import Refusals, Witnesses
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

from pytest_core_rollouts.rollout.attempts import Attempt, Outcome

Grader = Callable[[Task, Answer, Rollout], Grade]
KeepFiles = Callable[[Rollout, int, Mapping[str, bytes]], Sequence[Mapping[str, Any]]]
"""Takes a rollout, its attempt number and the files that its agent made, and returns the row's `outputs`.

What it raises ends the run.
"""


@dataclass(frozen=True)
class Timeouts:
    """Seconds that each stage of a rollout may take, except for the agent's own."""

    first_poll: float = 0.5
    """From a Session's creation to the first poll of its Turn. The event stream should be open by then."""
    cancel: float = 15.0
    """Until a cancelled Turn has ended."""
    fetch: float = 600.0
    """To fetch the answer, the outputs and the Items."""
    delete: float = 15.0
    """Until a busy Session can be deleted."""
    unanswered: float = 10.0
    """For the Core to answer, in addition to twice the rollout's own limit."""
    second_look: float = 3.0
    """Before the list of Sessions is read again, where a create may have made a Session that it does not show yet."""
    create_stopped: float = 2.0
    """For a Session's creation to finish after a stop was requested: only a Session with an id can be deleted."""
    usage: float = 5.0
    """For the usage of a Turn that has ended."""
    outage: float = 3600.0
    """For a Core that creates no Session for anyone. Then the run stops."""


@dataclass(frozen=True)
class RolloutRunner:
    """Runs rollouts. Its attributes are what all rollouts of a run share."""

    grade: Grader
    save: Callable[[RolloutRecord], None]
    """Called in a thread, for several records at a time."""
    explain: Callable[[RolloutRecord, str | None], RolloutRecord] = lambda record, note: record
    """Returns a record with its `why`; takes the note of its grade too."""
    graders: Graders = field(default_factory=Graders)
    model_key: Callable[[Rollout], str | None] = field(default=lambda rollout: None, repr=False)
    """Returns the key for the rollout's own model endpoint."""
    core_is_ours: bool = False
    """Whether we started the Core. Reference solutions are sent to no other."""
    dialect: Dialect = OPENAGENTCORE
    """What the Core speaks."""
    keep_items: bool = True
    keep_files: KeepFiles | None = None
    timeouts: Timeouts = Timeouts()
    adaptive_limit: AdaptiveLimit = field(default_factory=AdaptiveLimit)
    late_usage: LateUsage = field(default_factory=LateUsage)
    witnesses: Witnesses = field(default_factory=lambda: Witnesses(task_count=lambda run_id: 0))
    refusals: Refusals = field(default_factory=lambda: Refusals(task_counts=lambda run_id: {}))
    halted: Callable[[], str | None] = lambda: None
    """Returns why no further attempt may start, or None."""
    on_retry: Callable[[Rollout, Mapping[str, Any] | None], None] = lambda rollout, usage: None
    """Called with the usage of an attempt's Turn if another attempt replaces it; None if it is unknown."""

    async def run(
        self,
        client: Client,
        rollout: Rollout,
        stop: Stop | None = None,
        *,
        maybe_begun: bool = False,
        release: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Run one rollout and return its outcome. If infrastructure spoils an attempt, another one is made.

        `maybe_begun`: another process may have begun it. On a server without idempotency its Sessions are looked up.
        `release`: called when nothing is left to do but to wait for its usage, so that another rollout may start.

        After a stop was requested, it is over by the stop's deadline. A Turn that completed before counts; else the
        record is `cancelled`. If the task that runs this is cancelled, a `cancelled` record is saved too.
        """
        stop = stop or Stop()
        work = asyncio.ensure_future(self._attempts(client, rollout, stop, maybe_begun, release))
        try:
            if not await stop.wait_for(work):
                assert stop.deadline is not None
                client.deadline = stop.deadline if client.deadline is None else min(client.deadline, stop.deadline)
                await asyncio.wait({work}, timeout=stop.seconds_left)
        finally:
            await cancel_and_wait(work)
            client.deadline = None
        return work.result()

    async def _attempts(
        self, client: Client, rollout: Rollout, stop: Stop, maybe_begun: bool, release: Callable[[], None]
    ) -> Outcome:
        notes: list[str] = []
        warnings: list[str] = []
        number, last = rollout.attempt, rollout.attempt + rollout.retries
        pause: float | None = None
        taken_keys_left = rollout.retries + 1  # an earlier process may have made as many attempts at this rollout
        earlier_usage: tuple[Mapping[str, Any] | None, ...] = ()
        while True:
            core = EMBEDDED if self.core_is_ours else client.base_url
            state = AttemptState(rollout, number, list(notes), earlier_usage, core=core)
            attempt = Attempt(self, client, stop, state, pause=pause, maybe_begun=maybe_begun)
            attempt.may_retry, attempt.may_skip_taken_key = number < last, taken_keys_left > 0
            outcome = await attempt.run(release)
            warnings += attempt.warnings
            if outcome is not None:
                return replace(outcome, warnings=tuple(warnings))
            notes.append(f"attempt {number}: {attempt.ending.error}")
            if attempt.state.turn is not None:
                self.on_retry(rollout, attempt.state.turn.get("usage"))
            earlier_usage = attempt.state.usages
            pause = attempt.ending.pause
            if attempt.ending.key_taken:
                last, taken_keys_left = last + 1, taken_keys_left - 1
            number += 1
