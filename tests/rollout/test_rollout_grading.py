"""Graders are code of users: whatever one does differs from a wrong answer, and disturbs no other."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.grading.threads import Graders
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task
from tests.support.fake_core import FakeCore, Script
from tests.support.rollouts import RIGHT, WRONG, grade, plan, run
from tests.support.tables import rows
from tests.support.waiting import no_hang


def leaves(task: Task, answer: Answer, rollout: Rollout) -> Grade:
    sys.exit("done")


def fails(task: Task, answer: Answer, rollout: Rollout) -> Grade:
    pytest.fail("not like this")


def divides(task: Task, answer: Answer, rollout: Rollout) -> Grade:
    raise ZeroDivisionError("by zero")


def returns_a_number(task: Task, answer: Answer, rollout: Rollout) -> Any:
    return 1.0


def out_of_range(task: Task, answer: Answer, rollout: Rollout) -> Grade:
    return Grade(reward=7.0)


@rows(
    ("grader", "error"),
    [
        (leaves, "the grader raised SystemExit: done"),
        (fails, "the grader raised Failed: not like this"),
        (divides, "the grader raised ZeroDivisionError: by zero"),
        (returns_a_number, "the grader returned 1.0, not a Grade"),
        (out_of_range, "the grader raised ValueError"),
    ],
)
def test_a_grader_that_fails_is_an_error_with_the_answer_kept(grader: Callable[..., Any], error: str) -> None:
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        ran = run(core, plan(retries=3), grade=grader)
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert ran.record.error.startswith(error)
        assert ran.record.answer == {"n": 2}
        assert ran.record.items
        assert ran.record.usage is None
        assert len(core.sessions) == 1, "grading again needs no Session"
        assert all(session.deleted for session in core.sessions.values())


def test_a_grader_that_overruns_is_an_error_with_the_answer_kept() -> None:
    release = threading.Event()

    def hangs(task: Task, answer: Answer, rollout: Rollout) -> Grade:
        release.wait(30)
        return Grade(reward=1.0)

    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        ran = run(core, plan(retries=3), grade=hangs, graders=Graders(seconds=0.2))
        release.set()
        assert ran.verdict == ("error", None)
        assert ran.record.error == "the grader took more than 0.2 s"
        assert ran.record.answer == {"n": 1}
        assert len(core.sessions) == 1


def test_a_fraction_is_a_reward() -> None:
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        ran = run(core, grade=lambda task, answer, rollout: Grade(reward=0.25, note="a quarter"))
        assert ran.verdict == ("completed", 0.25)
        assert ran.record.notes == ["a quarter"]


def test_a_grader_receives_the_task_the_answer_and_the_rollout() -> None:
    received: list[Any] = []

    def listens(task: Task, answer: Answer, rollout: Rollout) -> Grade:
        received.extend([task.id, answer.value, rollout.sample, threading.current_thread() is threading.main_thread()])
        return grade(task, answer, rollout)

    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        run(core, plan(sample=3), grade=listens)
    assert received == ["sum", {"n": 1}, 3, False]


# The threads


def test_graders_that_hang_take_no_place_for_long() -> None:
    release = threading.Event()

    async def main() -> list[Any]:
        graders = Graders(seconds=0.2, most=2)
        hanging = [asyncio.ensure_future(graders.call(lambda: release.wait(600))) for _ in range(6)]
        quick = [asyncio.ensure_future(graders.call(lambda: "graded")) for _ in range(20)]
        return await asyncio.gather(*hanging, *quick, return_exceptions=True)

    with no_hang():
        results = asyncio.run(main())
    release.set()
    assert all(isinstance(result, GraderFailed) for result in results[:6])
    assert results[6:] == ["graded"] * 20


def test_as_many_graders_run_at_a_time_as_allowed() -> None:
    lock, running, most, all_run = threading.Lock(), 0, 0, threading.Event()

    def grader() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                all_run.set()
        assert all_run.wait(30), "a grader that waits gets another thread"
        time.sleep(0.01)
        with lock:
            running -= 1

    async def main() -> None:
        graders = Graders(most=3)
        await asyncio.gather(*(graders.call(grader) for _ in range(12)))

    asyncio.run(main())
    assert most == 3


def test_quick_graders_share_a_thread() -> None:
    async def main() -> list[threading.Thread]:
        graders = Graders()
        return [await graders.call(threading.current_thread) for _ in range(20)]

    assert len(set(asyncio.run(main()))) == 1


def test_a_stuck_grader_does_not_keep_the_process() -> None:
    code = """
import asyncio, threading
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.grading.threads import Graders
async def main():
    try:
        await Graders(seconds=0.1).call(threading.Event().wait)
    except GraderFailed as error:
        print(error)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the grader took more than 0.1 s\n", "")


def test_a_grader_that_ends_after_everybody_left_disturbs_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    threads: list[threading.Thread] = []

    def late() -> None:
        threads.append(threading.current_thread())
        time.sleep(0.3)
        raise ValueError("too late")

    with pytest.raises(GraderFailed):
        asyncio.run(Graders(seconds=0.05).call(late))
    gc.collect()  # the thread ends with its `Graders`
    threads[0].join(10)
    assert not threads[0].is_alive()
    assert capfd.readouterr().err == ""
