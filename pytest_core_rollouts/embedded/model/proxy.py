"""The host end of a sandbox's one socket. It alone holds the model's key and its real address.

A connection of its own to the model's server for every request: the agent's requests are few and long. What passes is
not kept back: neither a chunk of a stream nor, unless parameters are merged or a capture is kept, of a request's body.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import h11

from pytest_core_rollouts.embedded.model_provider import ModelProvider

from . import failures
from .capture import Capture
from .channel import Broken, Channel, serve_unix
from .exchange import CAPTURE_LIMIT, Exchange
from .failures import ModelFailure
from .params import fill, merge
from .upstream import RefusedTarget, Upstream, end_to_end

AT_ONCE = 8  # requests of one sandbox

_CANCELLED = "cancelled"  # told in captures alone: no code of a Turn's error

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSettings:
    """What all Turns share. `capture`: a folder; `params`: merged into each request to a model."""

    capture: Path | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    idle_s: float = 300.0
    """Seconds in which a server has to say something: its first word as well as each further one."""
    retries: int = 2
    """How often an agent program may repeat a request that failed."""
    secrets: Collection[str] = field(default=(), repr=False)
    """What a capture must not hold, beside the model's key."""


@dataclass(frozen=True)
class TurnLabels:
    """Whose requests these are. `rollout_id` and `sample` as the Session's metadata has them."""

    session_id: str
    turn_id: str
    rollout_id: str | None = None
    sample: str | None = None


class CaptureFailed(Exception):
    """An exchange could not be kept; str: why."""


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ModelProxy:
    """Serves one Turn between `async with` and its end, which cuts what is still under way.

    Raises MissingLabel when made, CaptureFailed at the end. `failure`: why the last request for a reply failed; None
    when it did not. `replied`: whether the agent has had anything of a reply to act on.
    """

    def __init__(
        self,
        listener: socket.socket,
        socket_path: Path,
        provider: ModelProvider,
        settings: ModelSettings,
        labels: TurnLabels,
    ) -> None:
        self.socket_path = socket_path
        self.settings = settings
        self.failure: ModelFailure | None = None
        self.replied = False
        self._listener = listener
        self._protocol = provider.protocol
        self._upstream = Upstream.of(provider)
        self._params = fill(settings.params, sample=labels.sample, rollout_id=labels.rollout_id)
        secrets = {provider.api_key, *settings.secrets}
        self._capture = None if settings.capture is None else Capture(settings.capture, vars(labels), secrets)
        self._connections: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._gave_up = False  # a server that hung once is not waited for again
        self._kept: asyncio.Task[None] | None = None  # the last line of the capture, which waits for those before it
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ModelProxy:
        self._server = await serve_unix(self._listener, self._serve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        self.socket_path.unlink(missing_ok=True)
        if self._kept is not None:
            try:
                await asyncio.shield(self._kept)
            except OSError as problem:
                if error is None:
                    raise CaptureFailed(f"The capture can't be written: {problem}") from problem
                logger.error("the capture of a Turn can't be written: %s", problem)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from the sandbox, request after request."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        inside = Channel(h11.SERVER, reader, writer)
        try:
            while True:
                request = await inside.next_event()
                if not isinstance(request, h11.Request):
                    break  # closed
                async with self._slots:
                    await self._answer(inside, request)
                if not inside.reusable:
                    break
                inside.connection.start_next_cycle()
        except Broken:
            inside.abort()  # the sandbox's end: gone, or no HTTP
        except asyncio.CancelledError:
            inside.abort()
        except Exception:
            logger.exception("the model proxy failed")
            self.failure = ModelFailure("internal_error", "The embedded Core's model proxy failed.")
            inside.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, inside: Channel, request: h11.Request) -> None:
        """Pass one request on and its reply back, and note what came of it."""
        exchange = Exchange(self._protocol, request.method, request.target, captures=self._capture is not None)
        try:
            await self._pass_on(inside, request, exchange)
        except _Refused as refusal:
            exchange.failure = exchange.failure or ModelFailure("invalid_request", f"Refused by the proxy: {refusal}.")
            await self._say(inside, refusal.status, exchange.failure)
        except asyncio.CancelledError:
            exchange.failure = exchange.failure or ModelFailure(_CANCELLED, "The Turn ended first.")
            raise
        finally:
            if exchange.is_call:
                self.replied = self.replied or exchange.replied
                if exchange.failure is None or exchange.failure.code != _CANCELLED:  # that was not the model's doing
                    self.failure = exchange.failure
                self._keep(exchange)

    async def _pass_on(self, inside: Channel, request: h11.Request, exchange: Exchange) -> None:
        try:
            target = self._upstream.target(request.target)
        except RefusedTarget as refused:
            raise _Refused(403, str(refused)) from None
        if request.method == b"CONNECT" or self._gave_up:
            exchange.failure = failures.silent(self.settings.idle_s) if self._gave_up else None
            raise _Refused(424, "no further request is passed on")
        body, whole = await self._read_body(inside, request, exchange)
        exchange.asked(body, whole=whole)
        try:
            outside = Channel(h11.CLIENT, *(streams := await self._upstream.connect()))
        except (OSError, asyncio.TimeoutError) as error:
            exchange.failure = failures.unreachable(self._upstream.shown, error)
            await self._say(inside, 502, exchange.failure)
            return
        try:
            await self._send(inside, outside, request, target, body, whole)
            await self._return(inside, outside, exchange)
        except asyncio.TimeoutError:
            self._gave_up = True
            exchange.failure = failures.silent(self.settings.idle_s)
            await self._say(inside, 424, exchange.failure)  # a status that no agent program tries again
        except Broken as broken:
            if broken.channel is inside:
                exchange.failure = exchange.failure or ModelFailure(_CANCELLED, "The agent did not wait.")
                raise
            exchange.failure = failures.cut()
            await self._say(inside, 502, exchange.failure)
        finally:
            streams[1].close()

    async def _read_body(self, inside: Channel, request: h11.Request, exchange: Exchange) -> tuple[bytes, bool]:
        """The body with our parameters in it, and whether that is all of it; else the rest is still to be read."""
        merges = bool(self._params) and exchange.is_call
        limit = CAPTURE_LIMIT if merges or (self._capture and exchange.is_call) else 0
        body = bytearray()
        ended = False
        while len(body) <= limit and not ended:
            event = await inside.next_event()
            ended = isinstance(event, h11.EndOfMessage)
            if isinstance(event, h11.Data):
                body += event.data
        if not merges:
            return bytes(body), ended
        if not ended:
            raise _Refused(413, f"parameters can be merged into at most {limit} bytes")
        if any(name == b"content-encoding" for name, _ in request.headers):
            raise _Refused(415, "parameters can't be merged into a compressed request")
        try:
            return merge(bytes(body), self._params), True
        except ValueError as error:
            raise _Refused(400, f"parameters can't be merged: {error}") from None

    async def _send(
        self, inside: Channel, outside: Channel, request: h11.Request, target: bytes, body: bytes, whole: bool
    ) -> None:
        headers = self._upstream.request_headers(request.headers)
        given = [value for name, value in request.headers if name == b"content-length"]
        if whole and (body or given):
            headers.append((b"content-length", str(len(body)).encode()))
        elif not whole:
            headers.append((b"content-length", given[0]) if given else (b"transfer-encoding", b"chunked"))
        idle_s = self.settings.idle_s
        await outside.send(h11.Request(method=request.method, target=target, headers=headers), idle_s)
        if body:
            await outside.send(h11.Data(data=body), idle_s)
        while not whole:
            event = await inside.next_event()
            whole = isinstance(event, h11.EndOfMessage)
            if not whole:
                await outside.send(h11.Data(data=bytes(event.data)), idle_s)
        await outside.send(h11.EndOfMessage(), idle_s)

    async def _return(self, inside: Channel, outside: Channel, exchange: Exchange) -> None:
        idle_s = self.settings.idle_s
        response = await outside.next_event(idle_s)
        while isinstance(response, h11.InformationalResponse):
            response = await outside.next_event(idle_s)
        if not isinstance(response, h11.Response):
            raise Broken(outside, "closed without a reply")
        types = [value for name, value in response.headers if name == b"content-type"]
        exchange.answered(response.status_code, types[0] if types else b"")
        headers = end_to_end(response.headers)
        await inside.send(h11.Response(status_code=response.status_code, headers=headers, reason=response.reason))
        while isinstance(event := await outside.next_event(idle_s), h11.Data):
            exchange.received(bytes(event.data))
            await inside.send(h11.Data(data=bytes(event.data)))
        if not isinstance(event, h11.EndOfMessage):
            raise Broken(outside, "closed in the middle of a reply")
        exchange.ended()
        await inside.send(h11.EndOfMessage())

    async def _say(self, inside: Channel, status: int, failure: ModelFailure) -> None:
        """Answer with an error of our own; where a reply has begun already, cut it."""
        if inside.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            inside.abort()
            return
        error = {"type": failure.code, "code": failure.code, "message": failure.message}
        body = json.dumps({"type": "error", "error": error}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        await inside.send(h11.Response(status_code=status, headers=headers))
        await inside.send(h11.Data(data=body))
        await inside.send(h11.EndOfMessage())

    def _keep(self, exchange: Exchange) -> None:
        if self._capture is None:
            return
        append, record, before = self._capture.append, exchange.record(), self._kept

        async def keep() -> None:
            if before is not None:
                await before
            await asyncio.to_thread(append, record)

        self._kept = asyncio.create_task(keep())
