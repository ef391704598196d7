"""What the tests of the client share."""

from __future__ import annotations

import asyncio
import dataclasses
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from pytest_core_rollouts.agents_api import AgentsAPIError, Client, RetryPolicy, Session
from tests.support.fake_core import FakeCore

T = TypeVar("T")
Use = Callable[[Client], Awaitable[Any]]

# Fault tests wait for these limits: short, but a busy machine must not fall into them by itself.
QUICK = RetryPolicy(
    patience=10.0,
    first_pause=0.01,
    longest_pause=0.02,
    connect_timeout=5.0,
    read_timeout=5.0,
    try_timeout=10.0,
    stream_silence=5.0,
)
BODY = {"environment": {"type": "openai_hosted", "network": {"access": "disabled"}}, "input": "Add the numbers."}


def quick(**changes: Any) -> RetryPolicy:
    return dataclasses.replace(QUICK, **changes)


def run(core: FakeCore, use: Callable[[Client], Awaitable[T]], *, retry: RetryPolicy = QUICK) -> T:
    """Return what `use` returns with its own client of `core`, in its own event loop."""
    return run_at(core.base_url, core.api_key, use, retry=retry)


def run_at(base_url: str, key: str, use: Callable[[Client], Awaitable[T]], *, retry: RetryPolicy = QUICK) -> T:
    async def main() -> T:
        async with Client(base_url, key, retry=retry) as client:
            return await use(client)

    return asyncio.run(main())


async def collect(entries: AsyncIterator[T]) -> list[T]:
    return [entry async for entry in entries]


async def finished_session(client: Client, key: str = "key-1") -> Session:
    """Creates a Session and waits for its Turn's end."""
    session = await client.create_session(BODY, idempotency_key=key)
    while True:
        turn = await client.latest_turn(session["id"])
        if turn is not None and turn["status"] in ("completed", "failed", "cancelled"):
            return await client.get_session(session["id"])
        await asyncio.sleep(0.005)


async def create(client: Client) -> Session:
    return await client.create_session(BODY, idempotency_key="key-1")


def failure(core: FakeCore, use: Use, kind: type[AgentsAPIError], **changes: Any) -> AgentsAPIError:
    with pytest.raises(kind) as caught:
        run(core, use, retry=quick(**{"patience": 0.1, **changes}))
    assert "\n" not in str(caught.value)
    assert core.api_key not in str(caught.value)
    assert core.api_key not in repr(caught.value)
    assert core.api_key not in "".join(traceback.format_exception(caught.value))
    return caught.value
