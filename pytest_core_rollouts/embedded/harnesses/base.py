"""What a harness is, what it is given, and whose fault it is if a Turn fails.

An agent must not turn its reward 0 into a missing one, and a fault of the machine must not become a 0. Before the
model's first reply the agent has not acted yet, so what happens until then is not its fault.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.model import ModelProxy
    from pytest_core_rollouts.embedded.sandbox import Completed, Sandbox
    from pytest_core_rollouts.embedded.trajectory import Trajectory

Usage = dict[str, Any]  # the wire's TokenUsage


class InvalidConfig(ValueError):
    """A `harness_config` this harness can't work with. `member` is the path below it, such as ".solution", or ""."""

    def __init__(self, message: str, member: str = "") -> None:
        super().__init__(message)
        self.member = member


class TurnFailed(Exception):
    """The Turn can't be completed; `code` is one of the wire's Turn error codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Job:
    """One Turn's work. `env` is the Environment's variables, for every process in the sandbox.

    `proxy` is the way to the model, for a harness that asks one. `memory` is the harness's own, kept from Turn to Turn
    of a Session: such as the name of a conversation to go on with. `warnings` takes what the user should know about
    the Turn although it changes nothing in its result.
    """

    prompt: str
    model: str
    instructions: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    env: Mapping[str, str] = field(default_factory=dict)
    proxy: ModelProxy | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Harness(Protocol):
    """Runs Turns; holds no state of its own between them (a Session's state lives in its sandbox and `Job.memory`)."""

    @property
    def name(self) -> str: ...

    @property
    def protocols(self) -> tuple[str, ...]:
        """The model protocols it speaks; empty: it asks no model."""

    @property
    def skills_folder(self) -> str | None:
        """Where skills belong, under /home/agent; None: it takes none."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidConfig, before anything is created."""

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        """Work to the Turn's end, reporting Items as they happen; returns the tokens used, or None for unknown.

        Raises TurnFailed. On cancellation it need not clean up: the sandbox is killed whole.
        """


# ---- whose fault a failed Turn is


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
