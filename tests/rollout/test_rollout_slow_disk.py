"""A disk that takes its time: other rollouts go on meanwhile, and a row is written once, whatever comes in between."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.runner import RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from tests.support.api import QUICK
from tests.support.fake_core import FakeCore, Script
from tests.support.rollouts import RIGHT, TIMEOUTS, Keeper, grade, only_session, plan


class SlowKeeper(Keeper):
    """Does not return before it may."""

    def __init__(self, core: FakeCore) -> None:
        super().__init__(core)
        self.writing, self.may_end = threading.Event(), threading.Event()

    def __call__(self, record: RolloutRecord) -> None:
        self.writing.set()
        assert self.may_end.wait(20)
        super().__call__(record)


def test_while_one_row_is_written_another_rollout_comes_to_its_end() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        slow, quick = SlowKeeper(core), Keeper(core)

        async def main() -> None:
            async with (
                Client(core.base_url, core.api_key, retry=QUICK) as one,
                Client(core.base_url, core.api_key, retry=QUICK) as two,
            ):
                first = asyncio.ensure_future(
                    RolloutRunner(grade=grade, save=slow, timeouts=TIMEOUTS).run(one, plan(sample=0))
                )
                assert await asyncio.to_thread(slow.writing.wait, 20)
                await RolloutRunner(grade=grade, save=quick, timeouts=TIMEOUTS).run(two, plan(sample=1))
                assert not first.done()
                assert not core.sessions["sess_00000001"].deleted  # its row is not there yet
                slow.may_end.set()
                await first

        asyncio.run(asyncio.wait_for(main(), 30))
        assert [record.sample for record in (*slow.records, *quick.records)] == [0, 1]
        assert all(session.deleted for session in core.sessions.values())


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_run_that_is_cancelled_while_its_row_is_written_has_one_row(cancels: int) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        keeper = SlowKeeper(core)

        async def main() -> None:
            async with Client(core.base_url, core.api_key, retry=QUICK) as client:
                runner = RolloutRunner(grade=grade, save=keeper, timeouts=TIMEOUTS)
                running = asyncio.ensure_future(runner.run(client, plan()))
                assert await asyncio.to_thread(keeper.writing.wait, 20)
                for _ in range(cancels):
                    running.cancel()
                    await asyncio.sleep(0.1)
                keeper.may_end.set()
                await asyncio.wait({running})

        asyncio.run(asyncio.wait_for(main(), 60))
        (record,) = keeper.records
        assert (record.status, record.reward) == ("completed", 1.0)
        assert only_session(core).id == record.session_id


def test_a_disk_that_turns_out_full_while_the_run_is_cancelled_is_reported() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        writing, may_end = threading.Event(), threading.Event()

        def save(record: RolloutRecord) -> None:
            writing.set()
            assert may_end.wait(20)
            raise OSError("no space left on the device")

        async def main() -> None:
            async with Client(core.base_url, core.api_key, retry=QUICK) as client:
                runner = RolloutRunner(grade=grade, save=save, timeouts=TIMEOUTS)
                running = asyncio.ensure_future(runner._attempts(client, plan(), Stop(), False, lambda: None))
                assert await asyncio.to_thread(writing.wait, 20)
                running.cancel()
                may_end.set()
                await running

        with pytest.raises(OSError, match="no space left"):
            asyncio.run(asyncio.wait_for(main(), 30))
        assert not only_session(core).deleted
