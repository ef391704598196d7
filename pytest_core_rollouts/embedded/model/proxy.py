"""The model proxy: the host's end of a sandbox's only socket. It holds the model's key and real address.

Each request gets its own connection to the model's server, because an agent's requests are few and long. Chunks of
streams are passed on at once, and so are those of a request's body, unless parameters are merged or a capture is kept.

It is written on h11, not on Starlette and httpx, because its peer is hostile. It needs bounds that a framework hides:
the time that a request's head may take, which of too many connections to drop, headers byte by byte as they came, when
a reply is cut instead of ended, and whether a failure came before or after the request was sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import h11

from pytest_core_rollouts.embedded.model_provider import ModelProvider

from . import failures
from .channel import Broken, Channel, serve_unix
from .exchange import CANCELLED, CAPTURE_LIMIT, Capture, Exchange
from .failures import ModelFailure
from .reply_mask import Decoder, KeyMask, UnknownCoding
from .tokens import REQUEST_IDS, sum_of
from .upstream import Header, RefusedTarget, Upstream, end_to_end, fill, merge, plain_path

AT_ONCE = 8  # requests of one sandbox
CONNECTIONS = 32  # of one sandbox
HEAD_S = 20.0  # from the first byte of a request's head to its last
CAPTURE_TURN_LIMIT = 1 << 30  # bytes of requests and replies that a Turn's capture keeps

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSettings:
    """Settings of all Turns. `capture`: the folder of captures; `params`: merged into each request for a reply.

    `capture_tokens`: whether each request asks for token ids, in the way of its protocol.
    """

    capture: Path | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    capture_tokens: bool = False
    idle_s: float = 300.0
    """Seconds that a server may be silent, before a reply or within it."""
    retries: int = 2
    """How often an agent program may repeat a failed request; see `ModelProxy.follow`."""
    secrets: Collection[str] = field(default=(), repr=False)
    """Values to mask in captures, in addition to the model's key."""
    core_key: str = field(default="", repr=False)
    """The Core's own key, which no sandbox may see either."""


@dataclass(frozen=True)
class TurnLabels:
    """Which Turn the requests belong to. `rollout_id` and `sample` are those of the Session's metadata."""

    session_id: str
    turn_id: str
    rollout_id: str | None = None
    sample: str | None = None


class CaptureFailed(Exception):
    """A capture could not be written; str: why."""


class _Refused(Exception):
    """A request that is not passed on, or a reply that is not passed back: the sandbox gets an error instead."""

    def __init__(self, status: int, failure: ModelFailure) -> None:
        super().__init__(failure.message)
        self.status = status
        self.failure = failure


class ModelProxy:
    """Serves one Turn within `async with`; leaving it cuts requests that are still running.

    The constructor raises MissingLabel, leaving raises CaptureFailed.

    `failure`: why the last request for a reply failed; None if it did not. If the agent's program fails, it decides
    between reward 0 and missing data, so an agent must not be able to choose it. The agent can't act before the model's
    first reply (`replied`). After that only calls that the harness's program makes count, and of their failures only
    those that the server must have a part in. `agents_failure` is the last of the other failures, for messages.

    `usage`: the tokens of all replies on the Responses protocol, as the server counts them; None: not reported.
    """

    def __init__(
        self,
        listener: socket.socket,
        socket_path: Path,
        provider: ModelProvider,
        settings: ModelSettings,
        labels: TurnLabels,
        *,
        replied: bool = False,
    ) -> None:
        """`replied`: the model replied in an earlier Turn of the Session, whose files still exist."""
        self.socket_path = socket_path
        self.settings = settings
        self.failure: ModelFailure | None = None
        self.agents_failure: ModelFailure | None = None
        self.replied = replied
        self.usage: dict[str, Any] | None = None
        self.gave_up = asyncio.Event()
        """Set when no request is passed on any more: the server was silent, or failed too often."""
        self.calls = 0
        """Requests for a reply that are running."""
        self._on_call: Callable[[Exchange], None] | None = None
        self._failed = 0  # requests in a row
        self._failed_at = 0.0
        self._listener = listener
        self._protocol = provider.protocol
        self._upstream = Upstream.of(provider)
        asked = REQUEST_IDS[provider.protocol] if settings.capture_tokens else {}
        self._params = {**asked, **fill(settings.params, sample=labels.sample, rollout_id=labels.rollout_id)}
        secrets = {provider.api_key, settings.core_key, *settings.secrets}
        self._capture = None if settings.capture is None else Capture(settings.capture, vars(labels), secrets)
        self._mask = KeyMask((provider.api_key, settings.core_key))
        self._capture_left = CAPTURE_TURN_LIMIT
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: dict[
            asyncio.Task[None], None
        ] = {}  # connections without a complete request, the longest wait first
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._lasting_failure: ModelFailure | None = None  # with which all later requests fail at once
        self._kept: asyncio.Task[None] | None = None  # writes the capture's last line, after those before it
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

    def follow(self, on_call: Callable[[Exchange], None]) -> None:
        """Call `on_call` at the end of each request for a reply, with request and reply kept.

        As programs that need this have their own rules for retries, also give up after `settings.retries` of them.
        """
        self._on_call = on_call

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from the sandbox, one request after another."""
        task = asyncio.current_task()
        assert task is not None
        inside = Channel(h11.SERVER, reader, writer)
        if not self._admit(task):
            inside.abort()
            return
        try:
            while True:
                self._waiting[task] = None
                request = await inside.next_request(HEAD_S)
                self._waiting.pop(task, None)
                if not isinstance(request, h11.Request):
                    break  # closed
                async with self._slots:
                    await self._answer(inside, request)
                if not inside.reusable:
                    break
                inside.connection.start_next_cycle()
        except Broken:
            inside.abort()  # the sandbox closed it, was too slow, or broke the rules of HTTP
        except asyncio.CancelledError:
            inside.abort()
        except Exception:
            logger.exception("the model proxy failed")
            self.failure = ModelFailure("internal_error", "The embedded Core's model proxy failed.")
            inside.abort()
        finally:
            self._waiting.pop(task, None)
            self._connections.discard(task)
            writer.close()

    def _admit(self, task: asyncio.Task[None]) -> bool:
        """Accept a connection; if there are too many, end the one that has waited longest for a request.

        Returns False if all of them have requests.
        """
        if len(self._connections) >= CONNECTIONS:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            self._waiting.pop(oldest)
            self._connections.discard(oldest)
            oldest.cancel()
        self._connections.add(task)
        return True

    async def _answer(self, inside: Channel, request: h11.Request) -> None:
        """Pass one request on and its reply back, and record the result."""
        try:
            target, path = self._upstream.target(request.target), plain_path(request.target)
        except RefusedTarget as refused:
            await self._send_error(inside, 403, failures.refused(str(refused)))
            return
        keeps = self._capture is not None or self._on_call is not None
        exchange = Exchange(self._protocol, request.method, request.target, path, keeps=keeps)
        exchange.replied = self.replied and self._on_call is None  # no need to look for it again
        self.calls += exchange.is_call
        try:
            await self._forward(inside, request, target, exchange)
        except _Refused as refusal:
            exchange.failure = refusal.failure
            await self._send_error(inside, refusal.status, refusal.failure)
        except asyncio.CancelledError:
            exchange.failure = exchange.failure or ModelFailure(CANCELLED, "The Turn ended first.")
            raise
        finally:
            if exchange.is_call:
                self.calls -= 1
                self._set_failure(exchange)
                self._add_usage(exchange)
                self._append_to_capture(exchange)
                if self._on_call is not None:
                    self._on_call(exchange)

    def _add_usage(self, exchange: Exchange) -> None:
        if exchange.usage is not None:
            self.usage = sum_of([exchange.usage, *([self.usage] if self.usage is not None else [])])

    def _set_failure(self, exchange: Exchange) -> None:
        """Set `failure` to the result of a call, unless the agent may have caused it by hand."""
        failure = exchange.failure
        if failure is not None and failure.code == CANCELLED:  # the model did not cause that
            return
        by_hand = not exchange.is_own_call or (failure is not None and failure.request_can_cause)
        if self.replied and by_hand:
            self.agents_failure = failure or self.agents_failure
        else:
            self.failure = failure
            self._count_failures(exchange)

    def _count_failures(self, exchange: Exchange) -> None:
        """Give up after too many failures in a row. Requests that ran at the same time count once."""
        failure = exchange.failure
        if failure is None or failure.sampled:
            self._failed = 0
        elif exchange.started >= self._failed_at:
            self._failed += 1
            self._failed_at = time.monotonic()
            if self._on_call is not None and self._failed > self.settings.retries:
                self._give_up(failure)

    def _give_up(self, failure: ModelFailure) -> None:
        self._lasting_failure = failure
        self.gave_up.set()

    async def _forward(self, inside: Channel, request: h11.Request, target: bytes, exchange: Exchange) -> None:
        if self._lasting_failure is not None:
            raise _Refused(424, self._lasting_failure)
        if request.method == b"CONNECT":
            raise _Refused(424, failures.refused("CONNECT is not passed on"))
        body, whole = await self._read_body(inside, request, exchange)
        exchange.on_request(body, whole=whole)
        try:
            outside = Channel(h11.CLIENT, *(streams := await self._upstream.connect()))
        except (OSError, asyncio.TimeoutError) as error:
            raise _Refused(502, failures.unreachable(self._upstream.shown, error)) from None
        sent = False
        try:
            await self._send_request(inside, outside, request, target, body, whole)
            sent = True
            await self._return_reply(inside, outside, exchange)
        except asyncio.TimeoutError:
            silence = failures.silent(self.settings.idle_s)  # 424: agent programs don't repeat a request after it
            if sent:
                self._give_up(silence)
            raise _Refused(424, silence if sent else failures.not_taken("it stopped reading")) from None
        except Broken as broken:
            if broken.channel is inside:
                exchange.failure = exchange.failure or ModelFailure(CANCELLED, "The agent did not wait.")
                raise
            raise _Refused(502, failures.cut() if sent else failures.not_taken(str(broken))) from None
        finally:
            streams[1].close()

    async def _read_body(self, inside: Channel, request: h11.Request, exchange: Exchange) -> tuple[bytes, bool]:
        """Return the body with parameters merged in, and True; or its beginning and False if there is more to read."""
        merges = bool(self._params) and exchange.is_call
        limit = CAPTURE_LIMIT if merges or exchange.keeps else 0
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
            raise _Refused(413, failures.refused(f"parameters can be merged into at most {limit} bytes"))
        if any(name == b"content-encoding" for name, _ in request.headers):
            raise _Refused(415, failures.refused("parameters can't be merged into a compressed request"))
        try:
            return merge(bytes(body), self._params), True
        except (ValueError, RecursionError) as error:
            raise _Refused(400, failures.refused(f"parameters can't be merged: {error}")) from None

    async def _send_request(
        self, inside: Channel, outside: Channel, request: h11.Request, target: bytes, body: bytes, whole: bool
    ) -> None:
        headers = self._upstream.request_headers(request.headers)
        chunked = any(name == b"transfer-encoding" for name, _ in request.headers)  # it overrides a content-length
        given = [value for name, value in request.headers if name == b"content-length" and not chunked]
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

    async def _return_reply(self, inside: Channel, outside: Channel, exchange: Exchange) -> None:
        idle_s = self.settings.idle_s
        response = await outside.next_event(idle_s)
        while isinstance(response, h11.InformationalResponse):
            response = await outside.next_event(idle_s)
        if not isinstance(response, h11.Response):
            raise Broken(outside, "closed without a reply")
        types = [value for name, value in response.headers if name == b"content-type"]
        exchange.on_response(response.status_code, types[0] if types else b"")
        headers, decoder = self._reply_headers(response)
        reason = self._mask.whole(bytes(response.reason))
        await inside.send(h11.Response(status_code=response.status_code, headers=headers, reason=reason))
        mask = self._mask.stream()
        try:
            while isinstance(event := await outside.next_event(idle_s), h11.Data):
                for read in (bytes(event.data),) if decoder is None else decoder.feed(bytes(event.data)):
                    if piece := mask.feed(read):
                        await self._send_piece(inside, exchange, piece)
        except zlib.error as error:
            raise Broken(outside, error) from error
        if not isinstance(event, h11.EndOfMessage):
            raise Broken(outside, "closed in the middle of a reply")
        if piece := mask.end():
            await self._send_piece(inside, exchange, piece)
        exchange.on_end()
        self.replied = self.replied or exchange.replied
        await inside.send(h11.EndOfMessage())

    async def _send_piece(self, inside: Channel, exchange: Exchange, piece: bytes) -> None:
        exchange.on_chunk(piece)
        self.replied = self.replied or exchange.replied  # before it is sent: the agent acts on it
        await inside.send(h11.Data(data=piece))

    def _reply_headers(self, response: h11.Response) -> tuple[list[Header], Decoder | None]:
        """Return headers for the sandbox, without keys, and a decoder if the reply is compressed all the same."""
        given = end_to_end(response.headers)
        codings = [value for name, value in given if name == b"content-encoding" and value.lower() != b"identity"]
        try:
            decoder = Decoder(b",".join(codings)) if codings else None
        except UnknownCoding as unknown:
            raise _Refused(502, failures.compressed(str(unknown))) from None
        if decoder is not None:
            given = [(name, value) for name, value in given if name not in (b"content-encoding", b"content-length")]
        return [(name, self._mask.whole(value)) for name, value in given if not self._mask.is_in(name)], decoder

    async def _send_error(self, inside: Channel, status: int, failure: ModelFailure) -> None:
        """Answer with an error of the proxy. A reply that has begun already is cut."""
        if inside.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            inside.abort()
            return
        error = {"type": failure.code, "code": failure.code, "message": failure.message}
        body = json.dumps({"type": "error", "error": error}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        await inside.send(h11.Response(status_code=status, headers=headers))
        await inside.send(h11.Data(data=body))
        await inside.send(h11.EndOfMessage())

    def _append_to_capture(self, exchange: Exchange) -> None:
        if self._capture is None:
            return
        self._capture_left -= exchange.kept_bytes
        append, record, before = self._capture.append, exchange.record(bodies=self._capture_left >= 0), self._kept

        async def keep() -> None:
            if before is not None:
                await before
            await asyncio.to_thread(append, record)

        self._kept = asyncio.create_task(keep())
