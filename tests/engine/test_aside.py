from __future__ import annotations

import asyncio

import pytest

from pytest_core_rollouts.aside import run_aside


async def double(number: int) -> int:
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError("negative")
    return 2 * number


def test_a_result_and_an_exception_come_back() -> None:
    assert run_aside(double(4)) == 8
    with pytest.raises(ValueError, match="negative"):
        run_aside(double(-1))


def test_where_a_loop_runs_already() -> None:
    async def within() -> int:
        return run_aside(double(21))

    assert asyncio.run(within()) == 42
