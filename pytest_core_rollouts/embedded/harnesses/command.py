"""Any agent as a harness: a command that the user describes in a YAML file, whose Items come from its model traffic.

The program's output decides nothing; its last bytes are in the message of a failure.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.embedded.model import DUMMY_KEY, FORWARDER, inside_argv, inside_binds, inside_url
from pytest_core_rollouts.embedded.sandbox import Limits, MountRefused

from .base import Ended, InvalidConfig, Job, TurnFailed, Usage, failure_of_exit, failure_of_killed_sandbox
from .native import EVENTS_LIMIT, write_settings
from .traffic import Traffic

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Completed, Sandbox
    from pytest_core_rollouts.embedded.trajectory import Trajectory

NAME = "command"
_FOLDER = "/home/agent/.rollout"
_ADDRESS_SPACE = 1 << 40  # V8 reserves tens of GiB for WebAssembly; memory that is used is counted elsewhere
_OUTPUT_KEPT = 64 * 1024  # bytes of stdout and stderr
_GIVE_UP_S = 10.0  # for a program to end once its requests all fail


@dataclass(frozen=True)
class Command:
    """A harness made for one Session. Its fields are the members of `harness_config`; all paths are absolute."""

    name: str
    protocol: str
    command: tuple[str, ...]
    mounts: tuple[str, ...] = ()
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    exit_codes: tuple[int, ...] = (0,)
    resume: tuple[str, ...] | None = None
    memory: int | None = None
    skills_folder: str | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Command:
        """Return the harness that a `harness_config` describes. Raises InvalidConfig."""
        known = {member.name for member in fields(cls)}
        for member in config:
            if member not in known:
                raise InvalidConfig(f"The command harness has no parameter '{member}'.", f".{member}")
        try:
            given: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
            }
            return cls(**given)
        except TypeError as error:
            raise InvalidConfig(f"The command harness needs other parameters: {error}") from None

    @property
    def protocols(self) -> tuple[str, ...]:
        """The one protocol that the program speaks."""
        return (self.protocol,)

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Do nothing: `of` has read it."""

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        assert job.proxy is not None, "Sessions without a model provider are refused"
        if job.memory.get("turns") and self.resume is None:
            raise TurnFailed("invalid_request", f"Harness {self.name} takes one Turn only: it has no `resume` command.")
        given = self._given(job)
        await write_settings(job, sandbox, [(given["instruction_file"], given["instruction"].encode())])
        traffic = Traffic(trajectory, job.prompt)
        job.proxy.follow(traffic.add)
        output = _Output()
        try:
            done = await self._run(job, sandbox, given, output)
        except MountRefused as refusal:
            raise TurnFailed("sandbox_error", str(refusal)) from None
        finally:
            job.warnings.extend(traffic.warnings())
        job.memory["turns"] = job.memory.get("turns", 0) + 1
        if done.killed:
            raise failure_of_killed_sandbox(done)
        if done.returncode not in self.exit_codes:
            raise failure_of_exit(job.proxy, "", Ended(done.returncode, output.last, done.machine_oom))
        traffic.close()
        return traffic.usage(in_flight=job.proxy.calls)

    def _given(self, job: Job) -> dict[str, str]:
        """Return the value of each placeholder."""
        turn = job.memory.get("turns", 0) + 1
        return {
            "instruction": "\n\n".join(filter(None, (job.instructions if turn == 1 else None, job.prompt))),
            "instruction_file": f"{_FOLDER}/instruction-{turn}.md",
            "model": job.model,
            "base_url": inside_url() if self.protocol == "anthropic" else f"{inside_url()}/v1",
            "api_key": DUMMY_KEY,
        }

    async def _run(self, job: Job, sandbox: Sandbox, given: Mapping[str, str], output: _Output) -> Completed:
        """Run the program to its end. Raises TurnFailed, also for a program that goes on although its model is gone."""
        assert job.proxy is not None
        command = self.command if not job.memory.get("turns") or self.resume is None else self.resume
        variable = "ANTHROPIC" if self.protocol == "anthropic" else "OPENAI"
        env = {f"{variable}_BASE_URL": given["base_url"], f"{variable}_API_KEY": given["api_key"], **self.env}
        binds = [(await asyncio.to_thread(sandbox.reachable, Path(path)), path) for path in self.mounts]
        forwarder = await asyncio.to_thread(sandbox.reachable, FORWARDER)
        running = asyncio.ensure_future(
            sandbox.run(
                inside_argv([fill(part, given) for part in command]),
                env={**job.env, **{name: fill(value, given) for name, value in env.items()}},
                stdin=fill(self.stdin, given).encode(),
                on_output=output.feed,
                output_limit=0,
                limits=_limits(self.memory),
                binds=[*binds, *inside_binds(job.proxy.socket_path, forwarder)],
            )
        )
        giving_up = asyncio.ensure_future(job.proxy.gave_up.wait())
        try:
            await asyncio.wait([running, giving_up], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([running], timeout=_GIVE_UP_S if not running.done() else None)
            if running.done():
                return await running
        finally:
            giving_up.cancel()
            if not running.done():
                running.cancel()  # kills the program
                await asyncio.wait([running])
        failure = job.proxy.failure
        assert failure is not None, "the proxy gave up because of one"
        raise TurnFailed(failure.code, f"{failure.message} The agent program did not end after that.")


class _Output:
    """The end of a program's output."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > EVENTS_LIMIT:
            raise TurnFailed("sandbox_limit_exceeded", f"The agent program printed more than {EVENTS_LIMIT} bytes.")
        self._kept += chunk
        del self._kept[:-_OUTPUT_KEPT]

    @property
    def last(self) -> str:
        """The text; stderr comes last, because the forwarder prints it at the end."""
        stdout, _, end = self._kept.decode("utf-8", "replace").rstrip().rpartition("\n")
        try:
            stderr = str(json.loads(end)["stderr"])
        except (ValueError, KeyError, TypeError, RecursionError):
            stdout, stderr = f"{stdout}\n{end}", ""
        return f"{stdout.strip()}\n{stderr.strip()}".strip()


def fill(text: str, given: Mapping[str, str]) -> str:
    """Return the text with its placeholders replaced; what replaces them is not read again."""
    return re.sub(r"\{(" + "|".join(given) + r")\}", lambda match: given[match[1]], text)


def _limits(memory: int | None) -> Limits:
    usual = Limits()
    return Limits(address_space=_ADDRESS_SPACE, memory=max(usual.memory, memory or 0))
