"""The two harnesses that ask no model: nop does nothing, oracle runs a known solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .base import InvalidConfig, Job, TurnFailed, Usage, failure_of_killed_sandbox

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Sandbox
    from pytest_core_rollouts.embedded.trajectory import Trajectory


class Nop:
    """Does nothing, so its reward shows what a task gives away. It has no `harness_config`."""

    name = "nop"
    protocols: tuple[str, ...] = ()
    memory: int | None = None
    skills_folder: str | None = None

    def check_config(self, config: Mapping[str, Any]) -> None:
        for member in config:
            raise InvalidConfig("The nop harness takes no parameters.", f".{member}")

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        trajectory.assistant("I did nothing.")
        return None


_RUN = "cat >/tmp/solve.sh && exec bash /tmp/solve.sh </dev/null"


class Oracle:
    """Runs a task's solution. `harness_config`: {"solution": TEXT}, a bash script that each Turn runs in /workspace.

    The script's file is in the sandbox's /tmp, outside the workspace. Its stdin is empty.
    """

    name = "oracle"
    protocols: tuple[str, ...] = ()
    memory: int | None = None
    skills_folder: str | None = None

    def check_config(self, config: Mapping[str, Any]) -> None:
        for member in config:
            if member != "solution":
                raise InvalidConfig(f"The oracle has no parameter '{member}', only 'solution'.", f".{member}")
        solution = config.get("solution")
        if not isinstance(solution, str) or not solution.strip():
            raise InvalidConfig("The oracle needs the solution: the text of a bash script.", ".solution")

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        solution: str = job.config["solution"]
        command = trajectory.command("bash solution/solve.sh")
        done = await sandbox.run(["bash", "-c", _RUN], env=job.env, stdin=solution.encode(), on_output=command.output)
        command.finish(done.output, done.returncode, truncated=done.truncated)
        if done.killed:
            raise failure_of_killed_sandbox(done)
        if done.returncode:
            message = f"The solution exited with status {done.returncode}{_last_line(done.output)}"
            trajectory.assistant(message)
            raise TurnFailed("internal_error", message)  # the task itself is broken, so this is missing data
        trajectory.assistant("The solution ran to its end.")
        return None


def _last_line(output: bytes) -> str:
    """Return the last line of a failed script's output, to follow its exit status in a message."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else " and printed nothing"
