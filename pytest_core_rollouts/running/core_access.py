"""The Core of a run: where it is, its key, the embedded one's start and end, and a client in each place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_core_rollouts.aside import run_aside
from pytest_core_rollouts.embedded.hidden import Places, find_places
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.tasks import Task

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client
    from pytest_core_rollouts.embedded.launch import EmbeddedCore

FIRST_PATIENCE = 5.0
"""Seconds for which a Core that can't be reached at the start of a run is tried again."""
FIRST_ANSWER = 15.0
"""Seconds for it to answer then. One that takes longer is asked once more: no run ends for one lost answer."""


class CoreAccess:
    """A run's Core as this process reaches it. `base_url` and `api_key`: as its controller tells a worker."""

    def __init__(self, settings: Settings, base_url: str | None = None, api_key: str | None = None) -> None:
        self.settings = settings
        self.base_url = base_url or (None if settings.embedded else settings.core)
        self.api_key = api_key or settings.core_key
        self.reached = False
        """Whether a Core that is not ours answered: Sessions may have been made there."""
        self.proven: Callable[[], bool] = lambda: False
        """Whether it has made a Session, so that what is no answer of a Core's is a fault of one rollout's."""
        self._embedded: EmbeddedCore | None = None

    def reserve(self) -> None:
        """Fix the embedded Core's address and key, so that workers can be told, without starting it."""
        if self.settings.embedded and self._embedded is None:
            from pytest_core_rollouts.embedded.launch import EmbeddedCore

            self._embedded = EmbeddedCore.reserve()
            self.base_url, self.api_key = self._embedded.base_url, self._embedded.api_key

    def start(self, harnesses: Iterable[str], *, places: Places, secrets: Sequence[str]) -> None:
        """Start the embedded Core. Raises pytest.UsageError."""
        from pytest_core_rollouts.embedded.launch import EmbeddedCoreError, why_missing

        for harness in sorted(harnesses):
            if (problem := why_missing(harness)) is not None:
                raise pytest.UsageError(f"--core embedded, harness {harness}: {problem}")
        self.reserve()
        assert self._embedded is not None
        capture, params = self.settings.capture, self.settings.model_params
        try:
            if capture is not None:
                capture.mkdir(parents=True, exist_ok=True)
            self._embedded.start(
                hidden=places.hidden, private=places.private, capture=capture, model_params=params, secrets=secrets
            )
        except EmbeddedCoreError as error:
            raise pytest.UsageError(f"--core embedded: {error}") from None
        except OSError as error:
            raise pytest.UsageError(f"--rollout-capture: {capture} can't be made: {error.strerror}") from None

    def reach(self) -> None:
        """End the run where no Core is there or it refuses the key: every rollout would meet the same."""
        if (problem := run_aside(why_unreachable(self.connect))) is not None:
            raise pytest.exit.Exception(problem, returncode=pytest.ExitCode.INTERRUPTED)
        self.reached = True

    def connect(self) -> Client:
        """A client of this Core."""
        from pytest_core_rollouts.agents_api import Client, RetryPolicy

        assert self.base_url is not None, "a run without a Core is refused"
        assert self.api_key is not None, "a run without a key is refused"
        policy = RetryPolicy(refused_is_final=self.settings.embedded)
        return Client(self.base_url, self.api_key, retry=policy, proven=lambda: self.proven())

    def close(self) -> None:
        """Stop the embedded Core, if there is one."""
        if self._embedded is not None:
            self._embedded.stop()


def places_of_run(config: pytest.Config, settings: Settings, out: Path, tasks: Iterable[Task]) -> Places:
    """What no sandbox may show in a run that is about these tasks and writes `out`."""
    xml = config.getoption("xmlpath", None)  # of --junitxml: failures are in it
    files = [out, settings.report, settings.html, settings.baseline, Path(xml) if xml else None]
    files += [source.path for source in (settings.replay, settings.resume) if source is not None]
    folders = [settings.capture]
    if settings.out is None and settings.resume is None:
        folders.append(out.parent)  # runs/, which holds nothing but results
    return find_places(
        project_folders(config),
        tasks=[*settings.roots, *(task.path for task in tasks if task.path is not None)],
        files=filter(None, files),
        folders=filter(None, folders),
    )


def project_folders(config: pytest.Config) -> list[Path]:
    """Where the project is: `--rootdir` may name another folder than that of its ini file and of its conftest files.

    A conftest.py may hold a grader, and tasks that are made in code have their answers beside it.
    """
    folders = [config.rootpath, config.invocation_params.dir]
    if config.inipath is not None:
        folders.append(config.inipath.parent)
    plugins = config.pluginmanager.get_plugins()
    files = [Path(file) for plugin in plugins if isinstance(file := getattr(plugin, "__file__", None), str)]
    return [*folders, *(file.parent for file in files if file.name == "conftest.py")]


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


async def why_unreachable(connect: Callable[[], Client]) -> str | None:
    """What is wrong with the Core or the key, or None. A Core that is only busy or broken right now may mend itself."""
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
