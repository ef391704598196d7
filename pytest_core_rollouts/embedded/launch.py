"""Start and end the embedded Core's process. Uses only the standard library, so that importing it is cheap."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .descriptors import open_standard_descriptors
from .hidden import hidden_places, merge_places

HARNESSES = ("oracle", "nop", "codex", "claude_sdk")  # that the embedded Core can run

_BACKLOG = 1024
_STOP_S = 10.0  # how long the process may take to kill its sandboxes and remove their folders
_INHERITED = (
    *("HOME", "LANG", "LANGUAGE", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "TZ", "VIRTUAL_ENV"),
    *("SSL_CERT_DIR", "SSL_CERT_FILE"),  # trusted certificates
    *("NPM_CONFIG_PREFIX", "npm_config_prefix"),  # where npm installs programs
    "CORE_ROLLOUTS_CGROUP",  # where sandboxes' cgroups can be created
)
_INHERITED_PREFIXES = ("LC_", "LD_LIBRARY_", "COVERAGE_")


def why_missing(harness: str) -> str | None:
    """Return what must be installed before the embedded Core can run this harness, or None."""
    from .installed import NotInstalled, find_claude, find_codex

    find = {"codex": find_codex, "claude_sdk": find_claude}.get(harness)
    try:
        if find is not None:
            find()
    except NotInstalled as problem:
        return str(problem)
    return None


class EmbeddedCoreError(Exception):
    """The embedded Core could not be started; str: the reason and what to do."""


class EmbeddedCore:
    """A Core on loopback: first its address and key, later (`start`) its process.

    A client that connects before the process has started waits in the socket's backlog.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener: socket.socket | None = listener
        self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self.api_key = secrets.token_urlsafe(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._folders: list[Path] = []
        self._log: IO[bytes] | None = None

    @classmethod
    def reserve(cls) -> EmbeddedCore:
        """Return a Core with a listening socket on a random port of 127.0.0.1 and a random key; no process yet."""
        open_standard_descriptors()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return cls(listener)

    @property
    def pid(self) -> int | None:
        """The process's id; None before `start`."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(
        self,
        *,
        hidden: Sequence[str | Path] = (),
        private: Sequence[str | Path] = (),
        default_harness: str | None = "oracle",
        timeout: float = 30,
        capture: Path | None = None,
        capture_tokens: bool = False,
        model_params: Mapping[str, Any] | None = None,
        model_idle_s: float = 300.0,
        model_retries: int = 2,
        secrets: Collection[str] = (),
    ) -> None:
        """Start the process and wait until it serves; at most `timeout` seconds.

        `hidden`: paths of the host that no sandbox may show, except parts that are mounted into one on purpose.
        `private`: paths, mainly the tasks', that can't be mounted either. `capture`: an existing folder for a JSONL of
        each rollout's requests to its model. `capture_tokens`: whether each request asks for token ids, in the way of
        its protocol. `model_params`: merged into each of these requests, with `{sample}` and
        `{rollout_id}` replaced. `model_idle_s`: seconds that a model's server may be silent. `model_retries`: how often
        an agent program may repeat a failed request. `secrets`: masked in captures, in addition to the model's key.

        Raises EmbeddedCoreError with what to do if the extra is not installed or no sandbox can be created.
        """
        if self._listener is None or self._process is not None:
            raise EmbeddedCoreError("this embedded Core was already started or closed; reserve another one")
        if not sys.platform.startswith("linux"):
            raise EmbeddedCoreError(
                "the embedded Core only runs on Linux (its sandboxes are Linux namespaces); use --core URL"
            )
        scratch = tempfile.mkdtemp(
            prefix=".pytest-core-rollouts-"
        )  # with a dot, so that pytest does not collect it if TMPDIR is inside a project
        self._folders = [Path(scratch)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        atexit.register(self.stop)
        settings = {
            "api_key": self.api_key,
            "listener": self._listener.fileno(),
            "parent": os.getpid(),
            "scratch": scratch,
            "hidden": merge_places([*hidden, *hidden_places()]),
            "private": merge_places([*private, *([capture] if capture is not None else [])]),
            "default_harness": default_harness,
            "capture": None if capture is None else str(capture.resolve()),
            "capture_tokens": capture_tokens,
            "model_params": dict(model_params or {}),
            "model_idle_s": model_idle_s,
            "model_retries": model_retries,
            "secrets": list(secrets),
        }
        try:
            self._process = self._spawn(self._listener.fileno())
            self._send(settings)
            self._await_ready(time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise
        self._listener.close()  # only the process's copy stays open: once it has ended, connections are refused
        self._listener = None

    def stop(self) -> None:
        """End the process and all its sandboxes, and remove their folders. Can be called again; also called at exit.

        Does nothing in a forked child of the process that reserved it.
        """
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        self.close()
        process = self._process
        if process is not None and process.stdin is not None and process.stdout is not None:
            with contextlib.suppress(BrokenPipeError):  # the process has ended
                process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if self._log is not None:
            self._log.close()
        for folder in self._folders:  # the process removes them itself, unless it was killed
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Close the reserved socket, unless a process has taken it over."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def errors(self) -> str:
        """Return the last 8 KiB of the process's standard error; "" if it is empty."""
        if self._log is None or self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), 8192, max(0, size - 8192))
        return tail.decode("utf-8", "replace").strip()

    def _spawn(self, listener: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "pytest_core_rollouts.embedded"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd="/",
                env=_environment(),
                pass_fds=[listener],
                start_new_session=True,  # Ctrl-C must not end it: the client still cancels and deletes Sessions
            )
        except OSError as error:
            raise EmbeddedCoreError(f"can't start the embedded Core: {sys.executable}: {error}") from error

    def _send(self, settings: dict[str, Any]) -> None:
        """Send the settings through stdin, because others can read arguments and environment."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once; `_await_ready` reports why
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()

    def _await_ready(self, deadline: float) -> None:
        """Wait for the process's first line until `deadline` on the monotonic clock."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or not select.select([self._process.stdout], [], [], seconds_left)[0]:
                raise EmbeddedCoreError(f"the embedded Core was not ready in time{self._details()}")
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                raise EmbeddedCoreError(f"the embedded Core ended while it started{self._details()}")
            line += chunk
        response = json.loads(line)
        if "error" in response:
            raise EmbeddedCoreError(response["error"])
        self._folders = [Path(folder) for folder in response["folders"]]

    def _details(self) -> str:
        errors = self.errors()
        return f":\n{errors}" if errors else ""


def _environment() -> dict[str, str]:
    """Return the process's environment: without keys, and with the package importable from the same place as here."""
    environment = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    environment["PYTHONSAFEPATH"] = "1"  # do not import from the working folder (from Python 3.11 on)
    package_parent = str(Path(__file__).resolve().parents[2])
    if package_parent not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_parent, environment.get("PYTHONPATH"))))
    return environment
