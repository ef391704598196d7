"""A Session: prepared, then idle, one Turn at a time, deleted. All state changes on the event loop's thread.

created ──prepare──> ready ──input──> Turn queued ──> in_progress ──> completed | failed | cancelled ──> ready ...
   └──> failed (no Turn)
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from .environment import Environment, SetupCommand
from .errors import conflict
from .events import EventBus
from .harnesses import Harness, Job, TurnFailed, Usage
from .ids import new_uuid
from .model import CaptureFailed, MissingLabel, ModelProxy, ModelSettings, TurnLabels
from .requests import CreateRequest
from .sandbox import Isolation, OutputsRejected, Sandbox, SandboxFailed
from .trajectory import Item, Message
from .turns import Artifact, Turn, capture_artifacts, total_usage

T = TypeVar("T")

INPUT_DEADLINE_S = 300.0  # how long input may wait for its Environment

_PENDING = "Earlier input to this Session is still pending."
_BUSY = "The Turn cannot accept this input in its current state."
_NOT_DELETABLE = "A Session can't be deleted while a Turn is running or input is pending; cancel first."

logger = logging.getLogger(__name__)


class EnvironmentFailed(Exception):
    """A sandbox could not be prepared; str: the reason, for the Session's `error`."""


AGENT_MEMORY = 384 * 1024 * 1024  # bytes that a real agent program may need, for which there is one slot


class Slots:
    """Slots; a Turn takes one or more, in the order in which Turns ask."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._asking = asyncio.Lock()  # so that no two Turns wait for slots that the other one has

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Hold `count` slots: at least one, at most all."""
        taken = 0
        try:
            async with self._asking:
                while taken < max(1, min(count, self._count)):
                    await self._free.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._free.release()


@dataclass(frozen=True)
class Runtime:
    """What all Sessions share. Work that loads the machine waits for a slot, so there can be many Sessions."""

    isolation: Isolation
    artifacts: Path  # a folder for each Session
    writing: asyncio.Semaphore  # sandboxes whose files are being written
    preparing: asyncio.Semaphore  # sandboxes that run setup commands
    running: asyncio.Semaphore  # sandboxes that run a Turn without a model, which uses the CPU all the time
    thinking: Slots  # sandboxes that run a Turn with a model, which mostly waits for the model
    model: ModelSettings = field(default_factory=ModelSettings)

    @asynccontextmanager
    async def slot(self, harness: Harness) -> AsyncIterator[None]:
        """Wait until a Turn of this harness may run, and hold its place."""
        if not harness.protocols:
            async with self.running:
                yield
        else:
            async with self.thinking.take(-(-(harness.memory or 0) // AGENT_MEMORY)):
                yield


async def _run_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread. If cancelled, wait for its end first: it writes files that are removed next."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        work.exception()  # marks it as read
        raise


class Session:
    """One Session. Public methods return at once, except `admit`, which waits while the sandbox is being prepared."""

    def __init__(self, request: CreateRequest, runtime: Runtime) -> None:
        self.id = new_uuid()
        self.agent_id = new_uuid()
        self.environment_id = new_uuid()
        self.created_at = self.last_active_at = int(time.time())
        self.metadata: Mapping[str, str] = request.metadata
        self.files = tuple((new_uuid(), file.path, len(file.data)) for file in request.environment.files)
        environment = request.environment.model_copy(update={"files": []})  # does not keep the files' bytes in memory
        self.request = replace(request, environment=environment)
        self.turns: list[Turn] = []
        self.items: list[Item] = []
        self.artifacts: list[Artifact] = []
        self._batches: dict[str, str] = {}  # idempotency key -> digest of the batch admitted with it
        self.environment_status = "pending"
        self.failure: str | None = None  # why the Environment failed
        self.bus = EventBus()
        self._runtime = runtime
        self._pending: tuple[Message, ...] = request.messages
        self._prepared = asyncio.Event()
        self._sandbox: Sandbox | None = None
        self._memory: dict[str, Any] = {}  # what the harness keeps from Turn to Turn
        self._task: asyncio.Task[None] | None = None  # prepares the sandbox or runs a Turn

    # State

    @property
    def turn(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @property
    def status(self) -> str:
        if self.failure is not None or (self.turn and self.turn.status == "failed"):
            return "failed"
        return "in_progress" if self.turn and not self.turn.ended else "idle"

    @property
    def error(self) -> str | None:
        if self.failure is not None:
            return self.failure
        return "The execution could not complete." if self.status == "failed" else None

    @property
    def deletable(self) -> bool:
        return not self._pending and (self.turn is None or self.turn.ended)

    # Requests

    def start(self, environment: Environment) -> None:
        """Start to prepare the sandbox. The first Turn starts after that if the creation had input."""
        self._publish_session("created")
        self._publish_environment("pending")
        self._task = asyncio.create_task(self._prepare(environment))

    async def admit(self, messages: tuple[Message, ...]) -> None:
        """Start a Turn with these messages; if the sandbox is being prepared, wait for it first.

        Raises APIError (409) if input is pending, a Turn is running or the Environment failed.
        """
        if self.failure is not None:
            raise conflict("The environment failed; create another Session.")
        if self._pending:
            raise conflict(_PENDING)
        if self.turn and not self.turn.ended:
            raise conflict(_BUSY)
        if self._prepared.is_set():
            self._start_turn(messages)
            return
        self._pending = messages
        await self._prepared.wait()
        if self.failure is not None:
            raise conflict("The environment is no longer available for new input.", code="environment_unavailable")

    @contextmanager
    def admission(self, key: str | None, digest: str) -> Iterator[bool]:
        """Enter this around the admission of a batch; the value is whether it is new. A refused batch frees its key.

        Raises APIError (409) if `key` was used with another batch.
        """
        if key is not None and key in self._batches:
            if self._batches[key] != digest:
                raise conflict("This idempotency key was used with different input.", code="idempotency_conflict")
            yield False
            return
        if key is not None:
            self._batches[key] = digest
        try:
            yield True
        except BaseException:
            if key is not None:
                del self._batches[key]
            raise

    def cancel(self) -> None:
        """Stop the running Turn, if there is one.

        Raises APIError (409) while input waits for the sandbox.
        """
        if self._pending:
            raise conflict(_PENDING)
        turn = self.turn
        if turn is None or turn.ended or turn.settling or self._task is None:
            return
        if turn.status == "queued":
            self._end_turn(turn, "cancelled")
        turn.cancelling = True
        self._task.cancel()

    def check_deletable(self) -> None:
        """Raise APIError (409) if input is pending or a Turn is running."""
        if not self.deletable:
            raise conflict(_NOT_DELETABLE)

    async def destroy(self) -> None:
        """Stop all work, close the streams, remove sandbox and Artifacts. A second call does nothing more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.bus.close()
        await asyncio.to_thread(self._remove)

    def kill(self) -> None:
        """Kill the sandbox's processes."""
        if self._sandbox is not None:
            self._sandbox.kill()

    # Preparation

    async def _prepare(self, environment: Environment) -> None:
        try:
            await asyncio.wait_for(self._prepare_sandbox(environment), INPUT_DEADLINE_S)
        except asyncio.TimeoutError:
            self._fail(f"The environment was not ready within {INPUT_DEADLINE_S:.0f} seconds.")
        except EnvironmentFailed as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"The environment's files could not be written: {error.strerror or error}.")
        except Exception:
            logger.exception("session %s: preparing its sandbox failed", self.id)
            self._fail("The environment failed to initialize: an internal error.")
        else:
            self._publish_environment("ready")
            self._publish_environment("connected")
            self._task = None
            messages, self._pending = self._pending, ()
            self._prepared.set()
            if messages:
                self._start_turn(messages)

    async def _prepare_sandbox(self, environment: Environment) -> None:
        async with self._runtime.writing:
            sandbox = await _run_in_thread(self._make_sandbox, environment)
        if environment.setup_commands:
            async with self._runtime.preparing:
                for index, command in enumerate(environment.setup_commands):
                    await self._set_up(sandbox, index, command)

    def _make_sandbox(self, environment: Environment) -> Sandbox:
        isolation = self._runtime.isolation
        self._sandbox = sandbox = Sandbox(isolation, isolation.sessions / self.id)  # removed even if the rest fails
        sandbox.write_files((file.path, file.data) for file in environment.files)
        folder = self.request.harness.skills_folder
        for skill in environment.skills:
            sandbox.write_home((f"{folder}/{skill.name}/{name}", data) for name, data in skill.source.data)
        return sandbox

    async def _set_up(self, sandbox: Sandbox, index: int, command: SetupCommand) -> None:
        argv = ["bash", "-c", 'cd -- "$1" && exec bash -c "$2"', "setup", command.cwd, command.command]
        try:
            done = await sandbox.run(argv, env=self.request.environment.env)
        except (SandboxFailed, OSError) as error:
            raise EnvironmentFailed(f"setup_commands[{index}] could not be run: {error}") from error
        if done.returncode or done.killed:
            output = done.output.decode("utf-8", "replace").strip()[-500:] or "(no output)"
            how = done.killed or f"exit status {done.returncode}"
            raise EnvironmentFailed(f"setup_commands[{index}] failed ({how}): {output}")

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._pending = ()
        self._touch()
        self.kill()
        error = {"type": "environment_error", "code": "environment_connection_failed", "message": reason}
        self._publish_environment("failed", error)
        error = {"type": "environment_error", "code": "sandbox_error", "message": reason}
        self._publish("error", {"error": {**error, "param": None}})
        self._publish_session("failed")
        self._prepared.set()
        self.bus.close()

    # Turns

    def _start_turn(self, messages: tuple[Message, ...]) -> None:
        turn = Turn(self.id, self.agent_id, self.items, self._publish)
        self.turns.append(turn)
        self._touch()
        self._publish_turn("created", turn)
        for message in messages:
            turn.trajectory.user(message)
        self._publish_session("in_progress")
        request = self.request
        job = Job(
            prompt="\n\n".join(message.text for message in messages),
            model=request.model,
            instructions=request.instructions,
            config=request.harness_config,
            env=request.environment.env,
            memory=self._memory,
            warnings=turn.warnings,
        )
        self._task = asyncio.create_task(self._run_turn(turn, job))

    async def _run_turn(self, turn: Turn, job: Job) -> None:
        sandbox = self._sandbox
        assert sandbox is not None
        try:
            async with self._runtime.slot(self.request.harness):
                turn.start()
                self._publish_turn("in_progress", turn)
                turn.usage = await self._run_harness(turn, job, sandbox)
                turn.settling = True  # from here on the Turn completes even if it is cancelled
                artifacts = await _run_in_thread(self._capture, turn, sandbox)
        except asyncio.CancelledError:
            sandbox.kill()
            if not turn.cancelling:
                raise  # the Session is being destroyed
            if not turn.ended:
                self._end_turn(turn, "cancelled")
        except TurnFailed as failure:
            self._end_turn(turn, "failed", failure.code, str(failure))
        except CaptureFailed as failure:
            self._end_turn(turn, "failed", "internal_error", str(failure))
        except (SandboxFailed, OSError) as failure:
            self._end_turn(turn, "failed", "sandbox_error", f"The sandbox failed: {failure}")
        except OutputsRejected as rejection:
            self._end_turn(turn, "failed", "outputs_rejected", f"The outputs were rejected: {rejection}")
        except Exception:
            logger.exception("session %s: turn %s failed", self.id, turn.id)
            self._end_turn(turn, "failed", "internal_error", "The embedded Core failed; see its standard error.")
        else:
            self.artifacts.extend(artifacts)
            self._end_turn(turn, "completed")

    async def _run_harness(self, turn: Turn, job: Job, sandbox: Sandbox) -> Usage | None:
        """Run the harness, with a proxy to its model if it uses one. Returns the tokens used."""
        harness, provider = self.request.harness, self.request.model_provider
        if provider is None or not harness.protocols:
            return await harness.run(job, sandbox, turn.trajectory)
        rollout_id, sample = self.metadata.get("rollout_id"), self.metadata.get("sample")
        labels = TurnLabels(session_id=self.id, turn_id=turn.id, rollout_id=rollout_id, sample=sample)
        listener, path = sandbox.listen("model.sock")
        try:
            proxy = ModelProxy(listener, path, provider, self._runtime.model, labels, replied=len(self.turns) > 1)
        except MissingLabel as missing:
            listener.close()
            raise TurnFailed("invalid_request", f"A parameter for the model can't be filled in: {missing}.") from None
        async with proxy:
            return await harness.run(replace(job, proxy=proxy), sandbox, turn.trajectory)

    def _capture(self, turn: Turn, sandbox: Sandbox) -> list[Artifact]:
        folder = self._runtime.artifacts / self.id / turn.id
        return capture_artifacts(
            sandbox, folder, session_id=self.id, environment_id=self.environment_id, turn_id=turn.id
        )

    def _end_turn(self, turn: Turn, status: str, code: str | None = None, message: str = "") -> None:
        turn.end(status, {"code": code, "message": message} if code else None)
        self._touch()
        self._publish_turn(status, turn, usage=turn.usage)
        self._publish_session("failed" if status == "failed" else "idle")

    # Events

    def _publish(self, type: str, members: Mapping[str, Any]) -> None:
        self.bus.publish(type, {"session_id": self.id, **members})

    def _publish_session(self, state: str) -> None:
        if self.bus.has_subscribers:
            self.bus.publish(f"agent.session.{state}", {"session": self.wire()})

    def _publish_turn(self, state: str, turn: Turn, **members: Any) -> None:
        if self.bus.has_subscribers:
            self._publish(f"agent.session.turn.{state}", {"turn_id": turn.id, "turn": turn.wire(), **members})

    def _publish_environment(self, status: str, error: Mapping[str, str] | None = None) -> None:
        self.environment_status = status
        state = {"id": self.environment_id, "type": "openai_hosted", "status": status, "error": error}
        self._publish(f"agent.session.environment.{status}", {"turn_id": None, "environment": state})

    def _touch(self) -> None:
        self.last_active_at = int(time.time())

    def _remove(self) -> None:
        if self._sandbox is not None:
            self._sandbox.destroy()
        shutil.rmtree(self._runtime.artifacts / self.id, ignore_errors=True)

    # The API's shapes

    def wire(self) -> dict[str, Any]:
        """Return the API's Session; times are Unix seconds."""
        return {
            "id": self.id,
            "object": "agent.session",
            "status": self.status,
            "error": self.error,
            "agent": self._agent_wire(),
            "environment": self._environment_wire(),
            "metadata": self.metadata,
            "required_actions": [],
            "usage": total_usage(self.turns),
            "vault_ids": [],
            "created_at": self.created_at,
            "last_active_at": self.last_active_at,
        }

    def _agent_wire(self) -> dict[str, Any]:
        """Return the Session's `agent`. `harness_config` and the model's endpoint are write-only."""
        request = self.request
        return {
            "id": self.agent_id,
            "name": None,
            "model": request.model,
            "instructions": request.instructions,
            "multi_agent": {"enabled": False, "max_concurrent_subagents": None},
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "auto",
            "text": {"format": {"type": "text"}, "verbosity": request.verbosity},
            "tools": [],
            "x_agents_core": {"harness": request.harness.name},
        }

    def _environment_wire(self) -> dict[str, Any]:
        files = [{"id": id, "type": "inline", "path": path, "size_bytes": size} for id, path, size in self.files]
        return {
            "id": self.environment_id,
            "type": "openai_hosted",
            "capability_directories": [],
            "files": files,
            "network": {"access": "disabled", "allowed_domains": []},
            "packages": {"npm": [], "python": [], "system": []},
            "plugins": [],
            "skills": [skill.wire() for skill in self.request.environment.skills],
        }
