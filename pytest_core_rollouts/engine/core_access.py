"""The Core of an engine: its address and key, the start and end of an embedded one, and clients of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_core_rollouts.agents_api.address import normalize_base_url, require_secure_url
from pytest_core_rollouts.embedded.hidden import Places, hidden_places
from pytest_core_rollouts.rollout.attempt_state import EMBEDDED
from pytest_core_rollouts.rollout.dialects import OPENAGENTCORE, Dialect, dialect_of

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client
    from pytest_core_rollouts.embedded.launch import EmbeddedCore
    from pytest_core_rollouts.tasks.harness_file import HarnessFile
    from pytest_core_rollouts.tasks.matrix import Agent

T = TypeVar("T")

FIRST_PATIENCE = 5.0
"""Seconds for which a Core that can't be reached at the start of a run is tried again."""
FIRST_ANSWER = 15.0
"""Seconds for its first answer. A Core that takes longer is asked once more: no run ends for one lost answer."""


class CoreError(Exception):
    """The Core can't be used as asked. `str()` is one line that says what to do."""


class CoreUnreachable(CoreError):
    """No Core answers at the URL, or it refuses the key: every rollout would meet the same."""


@dataclass(frozen=True)
class EmbeddedOptions:
    """What only an embedded Core takes.

    * `capture`: a folder that gets a JSONL of each rollout's requests to its model.
    * `model_params`: merged into each of these requests; `{sample}` and `{rollout_id}` are filled in.
    * `capture_tokens`: whether each request asks for token ids, in the way of its protocol.
    """

    capture: Path | None = None
    model_params: Mapping[str, Any] = field(default_factory=dict)
    capture_tokens: bool = False


def core_of_environment() -> str | None:
    """Return the normalized OPENAI_BASE_URL; None if it is not set, or invalid."""
    try:
        return normalize_base_url(os.environ.get("OPENAI_BASE_URL") or "")
    except ValueError:
        return None


class CoreAccess:
    """How this process reaches the Core.

    * `base_url`, `api_key`: of a Core that runs already. None for an embedded Core that this process starts.
    * `embedded`: set if the Core is an embedded one, whichever process starts it.
    * `dialect`: what the Core speaks; None: what the URL's host says.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        embedded: EmbeddedOptions | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.embedded = embedded
        self.dialect = OPENAGENTCORE if embedded is not None else dialect or dialect_of(base_url)
        self.reached = False
        """Whether a Core that was not started by us has answered: Sessions may have been made there."""
        self.started = False
        self._process: EmbeddedCore | None = None

    @property
    def is_ours(self) -> bool:
        """Whether we started the Core, so that a solution may be sent to it."""
        return self.embedded is not None

    @property
    def name(self) -> str | None:
        """What rows call the Core; None without one."""
        if self.is_ours or self.base_url is None:
            return EMBEDDED if self.is_ours else None
        try:
            return normalize_base_url(self.base_url)
        except ValueError:  # reported by `require`, if a Core is needed
            return None

    def reserve(self) -> None:
        """Choose the embedded Core's address and key without starting it, so that other processes can get them."""
        if self.is_ours and self._process is None and self.base_url is None:
            from pytest_core_rollouts.embedded.launch import EmbeddedCore

            self._process = EmbeddedCore.reserve()
            self.base_url, self.api_key = self._process.base_url, self._process.api_key

    def require(self) -> None:
        """Raise CoreError unless there is a Core to reach, and a key that would not travel unencrypted."""
        if self.is_ours:
            return
        if self.base_url is None:
            raise CoreError(
                "no Core configured; set OPENAI_BASE_URL and OPENAI_API_KEY, pass --core URL, or use --core embedded "
                "to run one on this machine"
            )
        try:
            self.base_url = require_secure_url(self.base_url)
        except ValueError as error:
            raise CoreError(f"OPENAI_BASE_URL: {error}") from None
        if not self.api_key:
            raise CoreError(f"the Core at {self.base_url} needs a key: set OPENAI_API_KEY")

    def start(self, agents: Iterable[Agent], *, places: Places, secrets: Collection[str]) -> None:
        """Start the embedded Core, unless it runs. Raises CoreError.

        `places`: what no sandbox may show. `secrets`: values to be masked in captures.
        """
        from pytest_core_rollouts.embedded.launch import EmbeddedCoreError, why_missing

        assert self.embedded is not None, "only an embedded Core is started"
        for agent in agents:
            if agent.harness_file is None and (problem := why_missing(agent.harness)) is not None:
                raise CoreError(f"--core embedded, harness {agent.harness}: {problem}")
        self.reserve()
        if self.started or self._process is None:
            return
        capture = self.embedded.capture
        try:
            if capture is not None:
                capture.mkdir(parents=True, exist_ok=True)
            self._process.start(
                hidden=places.hidden,
                private=places.private,
                capture=capture,
                capture_tokens=self.embedded.capture_tokens,
                model_params=self.embedded.model_params,
                secrets=list(secrets),
            )
        except EmbeddedCoreError as error:
            raise CoreError(f"--core embedded: {error}") from None
        except OSError as error:
            raise CoreError(f"--rollout-capture: can't create {capture}: {error.strerror}") from None
        self.started = True

    def reach(self) -> None:
        """Ask the Core once. Raises CoreUnreachable if none is there or it refuses the key."""
        if not self.is_ours and not self.reached:
            if (problem := run_in_thread(_why_unreachable(self.connect))) is not None:
                raise CoreUnreachable(problem)
            self.reached = True

    def connect(self, proven: Callable[[], bool] = lambda: False) -> Client:
        """Return a client. `proven`: whether this Core has created a Session already."""
        from pytest_core_rollouts.agents_api import Client, RetryPolicy

        assert self.base_url is not None, "a run without a Core is refused"
        assert self.api_key is not None, "a run without a key is refused"
        policy = RetryPolicy(refused_is_final=self.is_ours)
        permissions = self.dialect.permissions
        return Client(self.base_url, self.api_key, retry=policy, proven=proven, permissions=permissions)

    def close(self) -> None:
        """Stop the embedded Core, if this process started it."""
        if self._process is not None:
            self._process.stop()


def check_mounts(harnesses: Iterable[HarnessFile], places: Places) -> None:
    """Raise CoreError if one of the harnesses mounts what no sandbox may show."""
    from pytest_core_rollouts.embedded.sandbox.mounts import MountRefused
    from pytest_core_rollouts.embedded.sandbox.programs import find_hidden

    hidden = find_hidden(map(Path, [*places.hidden, *hidden_places()]), map(Path, places.private))
    for harness in harnesses:
        for mount in harness.mounts:
            try:
                hidden.check([(Path(mount), mount)])
            except MountRefused as refusal:
                raise CoreError(harness.mount_error(mount, str(refusal))) from None


class LazyClient:
    """A place in the pool, connected when the first rollout there needs a Core."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    def connected(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _why_unreachable(connect: Callable[[], Client]) -> str | None:
    """What is wrong with the Core or the key, or None. A Core that is only busy or broken right now may recover."""
    from pytest_core_rollouts.agents_api import AgentsAPIError, ConnectionFailed, RetryPolicy

    client = connect()
    client.retry = RetryPolicy(patience=FIRST_PATIENCE, read_timeout=FIRST_ANSWER, try_timeout=FIRST_ANSWER)
    try:
        try:
            await client.check()
        except ConnectionFailed as error:
            if not error.late:
                raise
            await client.check()
    except AgentsAPIError as error:
        return str(error) if error.stops_run or isinstance(error, ConnectionFailed) else None
    finally:
        await client.aclose()
    return None


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in its own thread, and return its result or raise what it raised.

    The caller's thread may have an event loop already, as Playwright's fixtures leave one in pytest's main thread, and
    `asyncio.run` refuses to start another there.
    """
    with ThreadPoolExecutor(1, "rollouts-once") as thread:
        return thread.submit(asyncio.run, work).result()
