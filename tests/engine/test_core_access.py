from __future__ import annotations

import asyncio

import pytest

from pytest_core_rollouts.engine.core_access import CoreAccess, CoreError, EmbeddedOptions, run_in_thread


async def double(number: int) -> int:
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError("negative")
    return 2 * number


def test_run_in_thread_returns_the_result_or_raises_the_exception() -> None:
    assert run_in_thread(double(4)) == 8
    with pytest.raises(ValueError, match="negative"):
        run_in_thread(double(-1))


def test_run_in_thread_works_within_a_running_event_loop() -> None:
    async def within() -> int:
        return run_in_thread(double(21))

    assert asyncio.run(within()) == 42


def test_core_and_key_are_required() -> None:
    with pytest.raises(CoreError, match="no Core configured; set OPENAI_BASE_URL and OPENAI_API_KEY"):
        CoreAccess(None, None).require()
    with pytest.raises(CoreError, match="set OPENAI_API_KEY"):
        CoreAccess("https://core.example/v1", None).require()
    CoreAccess("https://core.example/v1", "core-key-1234").require()
    CoreAccess(None, None, embedded=EmbeddedOptions()).require()


@pytest.mark.parametrize("url", ["http://core.example/v1", "http://10.0.0.1/v1"])
def test_key_is_never_sent_unencrypted_to_another_machine(url: str) -> None:
    with pytest.raises(CoreError, match="refusing to send the API key"):
        CoreAccess(url, "core-key-1234").require()
    CoreAccess("http://127.0.0.1:8000/v1", "core-key-1234").require()
