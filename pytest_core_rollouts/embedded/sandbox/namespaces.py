"""Sets bounds in the namespaces of sandboxes and counts what is in them, by means of a helper process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("namespace_helper.py")
_REPLY_TIMEOUT_S = 10.0
_REPLY_BYTES = 4096


class NamespaceHelper:
    """The helper process. It starts at the first request, and again if it died. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def bound(self, init: int, sysctls: Mapping[str, str]) -> set[str]:
        """Write sysctls (`user/...`, `kernel/...`) in the namespaces of a sandbox's init. Blocks some milliseconds.

        Returns the names of those that were written.
        """
        return set(self._request(init, {"sysctls": dict(sysctls)}).get("written", ()))

    def count(self, init: int) -> dict[str, int] | None:
        """Count what the sandbox's IPC and network namespaces hold; None if they can't be entered.

        Returns `sysv_bytes`, `socket_bytes` (data in sockets' buffers), and `sockets` (how many those are).
        """
        return self._request(init, {"count": True}).get("counted")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _request(self, init: int, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with contextlib.ExitStack() as stack, self._lock:
                spaces = []
                for name in ("user", "ipc", "net"):
                    spaces.append(os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
                    stack.callback(os.close, spaces[-1])
                    if os.path.sameopenfile(spaces[-1], stack.enter_context(_own_namespace(name))):
                        return {}  # the init has ended, and a process outside of sandboxes has its pid now
                return self._exchange(json.dumps(request).encode(), spaces)
        except (OSError, ValueError):
            return {}  # the sandbox has ended, or the helper died; the next request starts it again

    def _exchange(self, request: bytes, spaces: list[int]) -> dict[str, Any]:
        link = self._start()
        try:
            socket.send_fds(link, [request], spaces)
            reply: dict[str, Any] = json.loads(link.recv(_REPLY_BYTES))
        except (OSError, ValueError):
            self._end()
            raise
        return reply

    def _start(self) -> socket.socket:
        if self._closed:
            raise OSError("closed")
        if self._link is None:
            self._link, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other_end:
                self._link.settimeout(_REPLY_TIMEOUT_S)
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_PROGRAM)],
                    stdin=other_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                    start_new_session=True,  # Ctrl-C must not end it; it ends when the socket is closed
                )
        return self._link

    def _end(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def _own_namespace(name: str) -> Iterator[int]:
    fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
