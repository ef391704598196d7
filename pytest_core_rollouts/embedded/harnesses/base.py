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

Usage = dict[str, Any]  # the API's TokenUsage


class InvalidConfig(ValueError):
    """A `harness_config` is invalid. `member`: the path in it, such as ".solution"; "" for the whole."""

    def __init__(self, message: str, member: str = "") -> None:
        super().__init__(message)
        self.member = member


class TurnFailed(Exception):
    """A Turn failed. `code`: a Turn error code of the API."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Job:
    """The input of one Turn. `env`: variables of the Environment, for every process in the sandbox.

    `proxy`: the way to the model, for a harness that uses one. `memory`: values that the harness keeps for the next
    Turn of the Session, such as the id of a conversation. The harness appends to `warnings` what the user should know
    although it does not change the result.
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
    """Runs Turns. It has no state: what a Session needs later is in its sandbox and in `Job.memory`."""

    @property
    def name(self) -> str:
        """The name in requests and on the command line."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """The model protocols that it supports; empty: it uses no model."""

    @property
    def memory(self) -> int | None:
        """Bytes that one agent may need, for how many run at once; None: as most agents."""

    @property
    def skills_folder(self) -> str | None:
        """The folder for skills, under /home/agent; None: it does not support skills."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise InvalidConfig if `config` is invalid. Called before a Session is created."""

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        """Run one Turn and report Items as they happen. Returns the tokens used; None: unknown.

        Raises TurnFailed. If it is cancelled it need not clean up, because the whole sandbox is killed.
        """


# ---- whose fault a failed Turn is


LAST_OUTPUT_LIMIT = 500
"""Characters of a program's last output in an error. An agent can write there too."""


@dataclass(frozen=True)
class Ended:
    """How a program ended. `status`: as a shell shows it; `last_output`: the end of its stderr.

    `machine_oom`: the kernel was short of memory meanwhile and killed a process, anywhere on this machine.
    """

    status: int
    last_output: str
    machine_oom: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None: it exited."""
        return self.status - 128 if 128 < self.status <= 192 else None


def failure_of_exit(proxy: ModelProxy, reported: str, ended: Ended) -> TurnFailed:
    """Return why a program that uses a model failed. `reported`: the error in its events.

    The proxy decides which failures of the model count.
    """
    failure = proxy.failure
    how = f"was ended by signal {ended.signal}" if ended.signal else f"ended with status {ended.status}"
    text = reported[:LAST_OUTPUT_LIMIT] or ended.last_output[-LAST_OUTPUT_LIMIT:] or "it printed nothing"
    if not proxy.replied:
        if failure is not None:
            return TurnFailed(failure.code, failure.message)
        return TurnFailed("internal_error", f"The agent program {how} before the model's first reply: {text}")
    if failure is not None and ended.signal is None:
        return TurnFailed(failure.code, failure.message)
    if (failure := failure or proxy.agents_failure) is not None:
        text = f"{text}; its last call of the model failed: {failure.message}"
    message = f"The agent program {how}: {text}"
    if ended.signal is None:
        return TurnFailed("agent_exited", message)
    if ended.machine_oom and ended.signal == signal.SIGKILL:
        return TurnFailed("sandbox_error", f"{message} (the machine ran out of memory meanwhile)")
    return TurnFailed("agent_killed", message)


def failure_of_killed_sandbox(done: Completed) -> TurnFailed:
    """Return why the Core killed a sandbox: it exceeded a bound, or it could not be watched any more."""
    code = "sandbox_limit_exceeded" if done.limit_exceeded else "sandbox_error"
    return TurnFailed(code, f"The sandbox was killed: {done.killed}.")
