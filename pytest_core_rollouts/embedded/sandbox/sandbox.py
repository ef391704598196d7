"""The sandbox of one Session: write files, run commands, collect outputs, destroy."""

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
    """Holds a Session's home and workspace in `folder`; they stay there from one command to the next.

    `folder` is new or empty, belongs to this Session only, and is in `Isolation.sessions`.
    """

    def __init__(self, isolation: Isolation, folder: Path) -> None:
        """Create the folders. Raises ValueError if the sandbox's uid can't reach `folder`."""
        self._isolation = isolation
        self._folder = folder
        self._workspace = folder / "workspace"
        self._runs: set[Run] = set()
        self._lock = threading.Lock()
        self._destroyed = False
        isolation.make_session(folder)

    def write_files(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write files (absolute path under /workspace, content) with mode 0600, and create their folders. Blocks.

        Raises ValueError for a path that is not in /workspace or contains "..", OSError if a file can't be written.
        """
        write_files(self._workspace, files, inside="/workspace", uid=self._isolation.uid)

    def write_home(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write files whose paths are under /home/agent, as `write_files` does under /workspace."""
        write_files(self._folder / "home", files, inside="/home/agent", uid=self._isolation.uid)

    def listen(self, name: str) -> tuple[socket.socket, Path]:
        """Open a unix socket outside the folders that the sandbox sees, to be passed to `run` in `binds`.

        Returns the listening socket and its path. Only the sandbox's uid may connect. An earlier socket of the same
        name is replaced.
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
        """Run a command in /workspace until it ends, then kill the processes that it left. `timeout` in seconds.

        `env` is added to HOME, USER, LANG and PATH. Without `stdin`, the command's stdin is empty. `on_output` gets all
        output, in the event loop, in chunks of at most 64 KiB; the result has the first `output_limit` bytes. `binds`:
        host paths to show read-only, each with its path in the sandbox. If the call is cancelled, it kills all
        processes and waits for their end first.
        Raises SandboxFailed if the sandbox does not start, RuntimeError after `destroy`, and what `on_output` raises.
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
            await _wait_uncancelled(completing)
            raise
        finally:
            with self._lock:
                self._runs.discard(run)

    def kill(self) -> None:
        """Kill all processes of the sandbox. May be called from any thread, and repeatedly."""
        self._kill("killed")

    def _kill(self, reason: str) -> None:
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            run.kill(reason)

    def collect_outputs(self, into: Path) -> list[CapturedFile]:
        """Copy the regular files under /workspace/outputs into the empty folder `into`, created if missing. Blocks.

        Raises OutputsRejected if they break one of the API's Artifact rules; `into` may hold some copies then.
        """
        return collect_outputs(self._workspace, into)

    def destroy(self) -> None:
        """Kill all processes, wait for their end, and remove the folder. Blocks. May be called repeatedly."""
        with self._lock:
            self._destroyed = True
            runs = list(self._runs)
        for run in runs:
            run.kill("killed")
            run.wait_dead()
        remove_tree(self._folder)


async def _wait_uncancelled(task: asyncio.Future[Completed]) -> None:
    """Wait until a killed run has ended, even if this task is cancelled again. The run's result is dropped."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()
