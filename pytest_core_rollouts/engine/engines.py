"""What a run hands its rollouts to: a pool that runs them, goes on with an earlier run's, or replays recorded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.engine.core_access import LazyClient
from pytest_core_rollouts.engine.pool import Pool
from pytest_core_rollouts.engine.replay import NoCore, Replay, Replayer
from pytest_core_rollouts.engine.resume import Resumed, Resumer
from pytest_core_rollouts.records import RolloutRecord
from pytest_core_rollouts.rollout import Outcome, RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.witnesses import Witnesses
from pytest_core_rollouts.tasks.matrix import Rollout

if TYPE_CHECKING:
    from pytest_core_rollouts.running.run import Run


def make_pool(run: Run) -> Pool[Rollout, Any, Outcome]:
    """A pool for the run, as its settings say."""
    replay = run.settings.replay
    return _running(run) if replay is None else _replaying(run, replay)


def _running(run: Run) -> Pool[Rollout, LazyClient, Outcome]:
    runner = RolloutRunner(
        grade=run.grading.grade,
        save=run.books.save,
        keep_files=run.books.keep_files,
        model_keys=run.settings.model_keys,
        keep_items=run.settings.items != "none",
        pressure=run.pressure,
        witnesses=Witnesses(lambda run_id: len({task_id for task_id, _, _ in run.selected.values()})),
        halted=lambda: pool.fatal or run.caps.reached(),
        spoiled=run.caps.spend,
    )
    resumer = None if run.resumed is None else Resumer(run.resumed, _replayer(run, run.resumed))

    async def one(client: LazyClient, rollout: Rollout, stop: Stop) -> Outcome:
        if resumer is not None and resumer.grades(rollout):
            return await resumer.run(rollout)
        outcome = await runner.run(client.connected(), rollout, stop)
        if outcome.fatal is not None:  # every other rollout would meet it too
            pool.halt(outcome.fatal)
        return outcome

    pool: Pool[Rollout, LazyClient, Outcome] = Pool(
        lambda: LazyClient(run.core.connect),
        one,
        concurrency=run.concurrency,
        spent=run.caps.reached,
        admits=run.pressure.admits,
    )
    return pool


def _replaying(run: Run, replay: Replay) -> Pool[Rollout, NoCore, Outcome]:
    replayer = _replayer(run, replay)

    async def one(client: NoCore, rollout: Rollout, stop: Stop) -> Outcome:
        return await replayer.run(rollout)

    return Pool(NoCore, one, concurrency=run.concurrency)


def _replayer(run: Run, source: Replay | Resumed) -> Replayer:
    def save(record: RolloutRecord) -> None:
        run.books.save(record, ran=False)

    keep_items = isinstance(source, Resumed) and run.settings.items != "none"  # a replay's stay where they are
    grading = run.grading
    return Replayer(source, grading.grade, grading.asks_nobody, save, run.books.keep_files, keep_items)
