"""What a harness is, what it is given, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.model import ModelProxy
    from pytest_core_rollouts.embedded.sandbox import Sandbox
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
