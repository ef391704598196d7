"""The embedded Core's process: one event loop serves HTTP and runs the sandboxes, until the parent ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import AuthMiddleware, make_app
from .model import ModelSettings
from .sandbox import Isolation, SandboxUnavailable
from .sessions import AGENT_MEMORY, Runtime, Slots
from .store import Store

__all__ = ["SandboxUnavailable", "Settings", "serve"]

_PARENT_CHECK_S = 1.0
_IDLE_CONNECTION_S = 75
_OPEN_FILES = 65_536
_MAX_UNAUTHENTICATED = 512  # connections without a request that had the key
_UNAUTHENTICATED_S = 10.0  # how long one may stay open
_SWEEP_S = 0.1
_MOST_AGENTS = 256


@dataclass(frozen=True)
class Settings:
    """The settings on the first line of stdin."""

    api_key: str = field(repr=False)
    listener: int  # fd of a listening socket
    parent: int  # pid
    scratch: str  # an empty private folder
    hidden: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    default_harness: str | None = None
    capture: str | None = None  # a folder
    capture_tokens: bool = False
    model_params: dict[str, Any] = field(default_factory=dict)
    model_idle_s: float = 300.0
    model_retries: int = 2
    secrets: list[str] = field(default_factory=list, repr=False)

    @property
    def model(self) -> ModelSettings:
        """The part of the settings that the model proxies use."""
        return ModelSettings(
            capture=Path(self.capture) if self.capture else None,
            params=self.model_params,
            capture_tokens=self.capture_tokens,
            idle_s=self.model_idle_s,
            retries=self.model_retries,
            secrets=self.secrets,
            core_key=self.api_key,
        )


def serve(settings: Settings, ready: Callable[[list[Path]], None]) -> None:
    """Serve until stdin closes, the parent ends or SIGTERM arrives; then kill all sandboxes and remove their folders.

    Calls `ready` with the folders in use once it serves requests. Raises SandboxUnavailable before that.
    """
    scratch = Path(settings.scratch)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        isolation = Isolation.probe(
            hidden=[*map(Path, settings.hidden), scratch], private=list(map(Path, settings.private))
        )
        stack.callback(isolation.close)
        asyncio.run(_serve(settings, isolation, lambda: ready([scratch, isolation.folder])))


async def _serve(settings: Settings, isolation: Isolation, ready: Callable[[], None]) -> None:
    _raise_open_files()
    cores = os.cpu_count() or 1
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(4 * cores, thread_name_prefix="files"))
    store = Store(_make_runtime(isolation, Path(settings.scratch), cores, settings.model))
    auth = make_app(store, settings.api_key, settings.default_harness)
    config = uvicorn.Config(
        auth,
        http=cast("type[asyncio.Protocol]", partial(_Connection, UnauthenticatedConnections(), auth)),
        access_log=False,
        backlog=1024,
        date_header=False,
        lifespan="off",
        log_config=None,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=_IDLE_CONNECTION_S,
        ws="none",
    )
    server = _Server(config, ready)
    _stop_with_parent(loop, server, settings.parent)
    with socket.socket(fileno=settings.listener) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        serving.add_done_callback(lambda _: server.stopping.set())
        await server.stopping.wait()
        await store.close()  # also ends the event streams, which would keep their connections open
        server.should_exit = True
        await serving


class UnauthenticatedConnections:
    """Connections without a request that had the key: limited in number and time; the oldest is closed first.

    Every user of this machine can connect. A connection that has sent the key once may stay, even if idle.
    """

    def __init__(self) -> None:
        self._since: dict[_Connection, float] = {}  # oldest first
        self._sweeping: asyncio.TimerHandle | None = None

    def add(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        self._since[connection] = loop.time()
        # Wait a moment: the requests of many connections may have arrived without being read yet.
        soon = len(self._since) > _max_unauthenticated()
        if self._sweeping is None or (soon and self._sweeping.when() > loop.time() + _SWEEP_S):
            self._plan(loop, _SWEEP_S if soon else _UNAUTHENTICATED_S)

    def discard(self, connection: _Connection) -> None:
        self._since.pop(connection, None)

    def __contains__(self, connection: _Connection) -> bool:
        return connection in self._since

    def _plan(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = loop.call_later(delay, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeping = None
        too_many = len(self._since) - _max_unauthenticated()
        too_old = loop.time() - _UNAUTHENTICATED_S
        for position, (connection, since) in enumerate(list(self._since.items())):
            if position >= too_many and since > too_old:
                self._plan(loop, since - too_old)
                break
            del self._since[connection]
            connection.transport.abort()


def _max_unauthenticated() -> int:
    """Return the limit; most of the files that this process may open are left to connections with the key."""
    return min(_MAX_UNAUTHENTICATED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class _Connection(H11Protocol):
    """uvicorn's connection, which counts as unauthenticated until a request has the key."""

    def __init__(
        self, unauthenticated: UnauthenticatedConnections, auth: AuthMiddleware, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._unauthenticated = unauthenticated
        self._auth = auth

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unauthenticated.add(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self in self._unauthenticated and self._auth.has_key(self.headers or ()):
            self._unauthenticated.discard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.discard(self)
        super().connection_lost(exc)


def _raise_open_files() -> None:
    """Raise the limit of open files: the usual 1,024 may be too few for one or two connections a rollout."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _agents_at_once(cores: int) -> int:
    """Return how many agents may run at once: they mostly wait for their models, so half of the memory is the limit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(2 * cores, min(_MOST_AGENTS, memory // 2 // AGENT_MEMORY))


def _make_runtime(isolation: Isolation, scratch: Path, cores: int, model: ModelSettings) -> Runtime:
    return Runtime(
        isolation=isolation,
        artifacts=scratch,
        writing=asyncio.Semaphore(2 * cores),
        preparing=asyncio.Semaphore(2 * cores),
        running=asyncio.Semaphore(4 * cores),
        thinking=Slots(_agents_at_once(cores)),
        model=model,
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers; calls `ready` once it serves."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _stop_with_parent(loop: asyncio.AbstractEventLoop, server: _Server, parent: int) -> None:
    """Stop the server on SIGTERM, at the end of stdin, or if the parent's id has changed.

    The last is needed because another child of the parent may hold stdin open.
    """
    loop.add_signal_handler(signal.SIGTERM, server.stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C reaches the whole process group; the client decides

    def read_stdin() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            server.stopping.set()

    def check_parent() -> None:
        if os.getppid() != parent:
            server.stopping.set()
        else:
            loop.call_later(_PARENT_CHECK_S, check_parent)

    loop.add_reader(sys.stdin.fileno(), read_stdin)
    check_parent()
