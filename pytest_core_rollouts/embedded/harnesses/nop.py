"""The agent that does nothing: what it scores is what a task gives away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .base import InvalidConfig, Job, Usage

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Sandbox
    from pytest_core_rollouts.embedded.trajectory import Trajectory


class Nop:
    """Answers one message; takes no `harness_config`."""

    name = "nop"
    protocols: tuple[str, ...] = ()
    skills_folder: str | None = None

    def check_config(self, config: Mapping[str, Any]) -> None:
        for member in config:
            raise InvalidConfig("The nop harness takes no parameters.", f".{member}")

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        trajectory.assistant("I did nothing, as asked of me.")
        return None
