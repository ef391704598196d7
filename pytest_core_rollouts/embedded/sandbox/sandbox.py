"""One Session's sandbox: its files, its commands, its outputs, its end."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .files import FOLDER_FLAGS, CapturedFile, collect_outputs, remove_tree, write_files
from .isolation import Isolation
from .limits import MIB, Limits
from .process import Completed, Run

OUTPUT_LIMIT = 1 * MIB

_BACKLOG = 64


class Sandbox:
    """A Session's home and workspace under `folder`, which outlive the commands run in them.

    `folder` is private to the Session: a new or empty one, in `Isolation.sessions`.
    """

    def __init__(self, isolation: Isolation, folder: Path) -> None:
        """Raises ValueError when the sandbox's uid could not reach `folder`."""
        self._isolation = isolation
        self._folder = folder
        self._workspace = folder / "workspace"
        self._runs: set[Run] = set()
        self._lock = threading.Lock()
        self._destroyed = False
        isolation.make_session(folder)

    def write_files(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write files (absolute path under /workspace, content) with mode 0600; folders are made. Blocks.

        Raises ValueError for a path that is not plainly under /workspace, OSError when it cannot be written.
        """
        write_files(self._workspace, files, inside="/workspace", uid=self._isolation.uid)

    def write_home(self, files: Iterable[tuple[str, bytes]]) -> None:
        """The same for files under /home/agent."""
        write_files(self._folder / "home", files, inside="/home/agent", uid=self._isolation.uid)

    def listen(self, name: str) -> tuple[socket.socket, Path]:
        """A listening unix socket outside the sandbox's own folders, and its path, to be bound into a run.

        The sandbox's uid alone may connect. It takes the place of an earlier one of the same name.
        """
        path = self._folder / name
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self._folder, FOLDER_FLAGS)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{name}")  # a socket's path has at most 107 bytes
            path.chmod(0o600)
            if self._isolation.drops_uid:
                os.chown(path, self._isolation.uid, self._isolation.uid)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(folder)
        return listener, path

    def reachable(self, path: Path) -> Path:
        """See `Isolation.reachable`."""
        return self._isolation.reachable(path)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes | None = None,
        timeout: float | None = None,
        on_output: Callable[[bytes], None] | None = None,
        output_limit: int = OUTPUT_LIMIT,
        limits: Limits | None = None,
        binds: Sequence[tuple[Path, str]] = (),
    ) -> Completed:
        """Run a command in /workspace until it ends; what it leaves running is killed. `timeout` in seconds.

        `env` is added to HOME, USER, LANG and PATH; without `stdin` there is an empty one. `on_output` hears all
        output in the event loop, in chunks of at most 64 KiB; the result holds the first `output_limit` bytes. `binds`:
        host paths to show read-only, and where. Cancelling kills, waits until all is dead, and then raises.
        Raises SandboxFailed when the sandbox does not start, RuntimeError after `destroy`.
        """
        run = Run(
            self._isolation,
            self._folder,
            argv,
            env=env,
            binds=binds,
            stdin=stdin,
            timeout=timeout,
            on_output=on_output,
            output_limit=output_limit,
            limits=limits or Limits(),
        )
        with self._lock:
            if self._destroyed:
                raise RuntimeError("the sandbox was destroyed")
            self._runs.add(run)
        completing = asyncio.ensure_future(run.complete())
        try:
            return await asyncio.shield(completing)
        except asyncio.CancelledError:
            run.kill("cancelled")
            await _finished(completing)
            raise
        finally:
            with self._lock:
                self._runs.discard(run)

    def kill(self) -> None:
        """Kill all processes there are now, whole; from any thread, any number of times."""
        self._kill("killed")

    def _kill(self, reason: str) -> None:
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            run.kill(reason)

    def collect_outputs(self, into: Path) -> list[CapturedFile]:
        """Copy the regular files under /workspace/outputs into the empty folder `into` (made when missing). Blocks.

        Raises OutputsRejected by the API's Artifact rules; `into` may hold some copies then.
        """
        return collect_outputs(self._workspace, into)

    def destroy(self) -> None:
        """Kill all processes, wait for their end, and remove the folder. Blocks; repeatable."""
        with self._lock:
            self._destroyed = True
            runs = list(self._runs)
        for run in runs:
            run.kill("killed")
            run.wait_dead()
        remove_tree(self._folder)


async def _finished(task: asyncio.Future[Completed]) -> None:
    """Wait for the end of what was killed, however often we are cancelled meanwhile; its outcome does not matter."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()
