"""Whose doing a failed Turn is: the agent's, which is reward 0, or somebody else's, which is missing data.

An agent must not turn its 0 into "missing", and a fault of the machine must not become a 0. Before the model's first
reply the agent has had no say, so whatever happens until then is not its doing.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import TurnFailed

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.model import ModelProxy
    from pytest_core_rollouts.embedded.sandbox import Completed


WORDS = 500
"""Characters of what a program said last that an error holds: an agent can write there as well."""


@dataclass(frozen=True)
class Ended:
    """How a program ended. `status`: as a shell shows it; `words`: what it said last.

    `machine_oom`: whether the kernel killed a process for want of memory meanwhile, anywhere on this machine.
    """

    status: int
    words: str
    machine_oom: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        return self.status - 128 if 128 < self.status <= 192 else None


def failure_of_exit(proxy: ModelProxy, said: str, ended: Ended) -> TurnFailed:
    """Why a program that asks a model failed; `said`: what its events say. The proxy knows which failures count."""
    failure = proxy.failure
    how = f"was ended by signal {ended.signal}" if ended.signal else f"ended with status {ended.status}"
    words = said[:WORDS] or ended.words[-WORDS:] or "it said nothing"
    if not proxy.replied:
        if failure is not None:
            return TurnFailed(failure.code, failure.message)
        return TurnFailed("internal_error", f"The agent program {how} before the model's first reply: {words}")
    if failure is not None and ended.signal is None:
        return TurnFailed(failure.code, failure.message)
    if (failure := failure or proxy.agents_failure) is not None:
        words = f"{words}; its last call of the model failed: {failure.message}"
    message = f"The agent program {how}: {words}"
    if ended.signal is None:
        return TurnFailed("agent_exited", message)
    if ended.machine_oom and ended.signal == signal.SIGKILL:
        return TurnFailed("sandbox_error", f"{message} (the machine ran out of memory meanwhile)")
    return TurnFailed("agent_killed", message)


def failure_of_killed_sandbox(done: Completed) -> TurnFailed:
    """Why a sandbox was killed by us: over one of its bounds, or because it could not be watched any more."""
    code = "sandbox_limit_exceeded" if done.limit_exceeded else "sandbox_error"
    return TurnFailed(code, f"The sandbox was killed: {done.killed}.")
