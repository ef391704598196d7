"""Graders in worker processes: whatever one does, its limit holds and only its own grade is affected."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.embedded.hidden import hidden_places, hide
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.comparing import Reason
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.tasks import grader_process
from pytest_core_rollouts.tasks.grader_pool import AnswerBrokeGrader, GraderPool
from pytest_core_rollouts.tasks.grader_process import GraderProcess
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from tests.support.running import alive, until
from tests.tasks.test_grader_file import task_with

GOOD = "def grade(answer):\n    return answer.value['x']\n"
SPARES_MISSING = "    if answer.problem:\n        return 0\n"


@pytest.fixture
def pool() -> Iterator[GraderPool]:
    pool = GraderPool(seconds=1.5, max_processes=2)
    yield pool
    pool.close()


@pytest.fixture
def grade(pool: GraderPool, tmp_path: Path) -> Any:
    tasks: dict[str, Task] = {}
    lock = threading.Lock()

    def grade(source: str, answer: Answer | None = None, rollout: object = None) -> Grade:
        with lock:  # tests grade in several threads
            task = tasks.get(source) or task_with(tmp_path / str(len(tasks)), source)
            tasks[source] = task
        assert task.grader is not None
        return pool.grade(task.grader, task, Answer(value={"x": 1}) if answer is None else answer, rollout)

    return grade


# What goes there and comes back


def test_grader_gets_its_arguments_and_returns_a_grade(grade: Any, tmp_path: Path) -> None:
    source = (
        "from pytest_core_rollouts.grading import Grade, Reason\n"
        "def grade(task, answer, artifacts, answer_text, rollout):\n"
        "    assert rollout.task is task and task.contents() == {}\n"
        "    reasons = Reason('a.b', [1.5], artifacts['f'].decode()),\n"
        "    return Grade(0.1 + 0.2, reasons, f'{answer_text} {rollout.sample}')"
    )
    answer = Answer(text="raw", problem="no JSON", artifacts={"f": b"content"})
    task = task_with(tmp_path / "t", source)
    rollout = Rollout(task=task, agent=Agent(), sample=7, run_id="r", timeout=1, network=Network.disabled())
    pool = GraderPool()
    other = task_with(tmp_path / "u", "def grade(answer_text):\n    return len(answer_text) / 3")  # gets no rollout
    try:
        for _ in range(2):
            made = pool.grade(task.grader, task, answer, rollout)  # type: ignore[arg-type]
            assert made == Grade(0.1 + 0.2, (Reason("a.b", [1.5], "content"),), "raw 7")
            assert pool.grade(other.grader, other, answer, rollout) == Grade(1.0)  # type: ignore[arg-type]
    finally:
        pool.close()


def test_grader_has_the_directory_path_and_environment_of_the_run(
    grade: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import os\nfrom pathlib import Path\nfrom pytest_core_rollouts.grading import Grade\n"
        "def grade():\n    import helper_of_the_project\n"
        "    seen = os.getcwd(), os.environ['COLOUR'], helper_of_the_project.X, Path(__file__).parent.name\n"
        "    os.chdir('/'); os.environ['COLOUR'] = 'spoiled'\n"
        "    return Grade(1.0, note=str(seen))\n"
    )
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper_of_the_project.py").write_text("X = 5\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    for colour in ("red", "green", "green"):
        monkeypatch.setenv("COLOUR", colour)
        (tmp_path / colour).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / colour)
        assert grade(source).note == str((str(tmp_path / colour), colour, 5, "0"))


def test_environment_can_be_copied_while_pytest_changes_it() -> None:
    stop, usual = threading.Event(), sys.getswitchinterval()

    def change() -> None:
        while not stop.is_set():
            os.environ["ITEM_OF_THE_TEST"] = "a"
            del os.environ["ITEM_OF_THE_TEST"]

    thread = threading.Thread(target=change)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        copies = [grader_process.environment(without="PATH") for _ in range(20_000)]
    finally:
        stop.set()
        sys.setswitchinterval(usual)
        thread.join()
    expected = {name: value for name, value in os.environb.items() if name != b"PATH"}
    copies[-1].pop(b"ITEM_OF_THE_TEST", None)
    assert copies[-1] == expected


def test_a_task_that_cannot_be_sent_is_loaded_from_its_folder(pool: GraderPool, tmp_path: Path) -> None:
    class Unpicklable(Task):
        pass

    loaded = task_with(tmp_path / "t", "def grade(task): return task.expected['x'] / 4", '{"x": 1}')
    task = Unpicklable(id="t", instruction="Do it.", expected={"x": 1}, path=loaded.path, grader=loaded.grader)
    assert pool.grade(task.grader, task, Answer(value={}), None).reward == 0.25  # type: ignore[arg-type]
    changed = Unpicklable(id="t", instruction="Do it.", expected={"x": 2}, path=loaded.path, grader=loaded.grader)
    with pytest.raises(GraderFailed, match="changed since the task was collected; run again"):
        pool.grade(changed.grader, changed, Answer(value={}), None)  # type: ignore[arg-type]
    nowhere = Unpicklable(id="t", instruction="Do it.", expected={"x": 1}, grader=loaded.grader)
    with pytest.raises(GraderFailed, match="can't be sent to the grader's process"):
        pool.grade(nowhere.grader, nowhere, Answer(value={}), None)  # type: ignore[arg-type]


def test_sandboxes_of_graders_hide_what_the_run_hides(pool: GraderPool, tmp_path: Path) -> None:
    """Also in a process that was started before."""
    task = task_with(
        tmp_path / "t",
        "from pytest_core_rollouts.embedded.hidden import hidden_places\n"
        "from pytest_core_rollouts.grading import Grade\n"
        "def grade(): return Grade(1.0, note=str(hidden_places()))\n",
    )

    def hidden() -> str | None:
        return pool.grade(task.grader, task, Answer(), None).note  # type: ignore[arg-type]

    before = hidden()
    stop = hide([tmp_path])
    try:
        assert hidden() == str(hidden_places())
        assert str(tmp_path) in str(hidden())
    finally:
        stop()
    assert hidden() == before == str(hidden_places())


# What a grader may do


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def grade(answer):\n    return answer.value['y']\n", r"the grader raised KeyError: 'y' \(grader.py:2\)"),
        ("import json\ndef grade():\n    json.loads('{')\n", r"the grader raised JSONDecodeError: .* \(grader.py:3\)"),
        ("import sys\ndef grade():\n    sys.exit('bye')\n", r"the grader raised SystemExit: bye \(grader.py:3\)"),
        ("def grade():\n    return 'yes'\n", r"the grader raised TypeError: grade\(\): expected a number from 0 to 1"),
        ("def grade():\n    return grade()\n", "the grader raised RecursionError: "),
        (
            "import resource\ndef grade():\n    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
            "    return len('x' * (1 << 30))\n",
            r"the grader raised MemoryError: +\(grader.py:4\)",
        ),
        (
            "class E(Exception):\n    def __str__(self): return 1 / 0\ndef grade():\n    raise E\n",
            "E: .its text can't be",
        ),
    ],
)
def test_exception_of_a_grader_is_not_a_broken_grader(grade: Any, source: str, problem: str) -> None:
    with pytest.raises(GraderFailed, match=problem) as caught:
        grade(source)
    assert caught.value.code == "grader"
    assert grade(GOOD).reward == 1


BREAKS = [
    ("    re.match('(a+)+b', 'a' * 60)\n", r"the grader took more than 1.5 s \(grader.py:5\)"),
    ("    ctypes.string_at(0)\n", r"the grader's process was ended by SIGSEGV \(grader.py:5\)"),
    ("    os._exit(3)\n", "the grader ended its process with exit code 3"),
    ("    os.kill(os.getpid(), 9)\n", r"the grader's process was ended by SIGKILL, out of memory\?"),
]


@pytest.mark.parametrize(
    ("line", "problem"),
    [pytest.param(*BREAKS[0], marks=pytest.mark.slow), *BREAKS[1:]],
    ids=["GIL", "segfault", "exit", "killed"],
)
def test_answer_that_breaks_its_grader_twice_differs_from_a_broken_grader(
    grade: Any, line: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader_process, "OWN_MEMORY", 0)
    start = "import ctypes, os, re\ndef grade(answer):\n"
    with pytest.raises(AnswerBrokeGrader, match=f"^grader_broken: {problem}, twice; it grades a missing answer"):
        grade(f"{start}{SPARES_MISSING}{line}")
    assert grade(GOOD).reward == 1
    own_fault = problem.replace(":5", ":3")
    with pytest.raises(GraderFailed, match=f"^{own_fault}$") as caught:
        grade(f"{start}{line}")
    assert caught.value.code == "grader"
    assert grade(GOOD).reward == 1


def test_second_try_runs_without_other_graders_if_the_machine_may_be_the_reason(grade: Any, tmp_path: Path) -> None:
    """Another grade is under way at the first try; the second one waits for its end: memory may be short."""
    mark, release = tmp_path / "first", tmp_path / "release"
    source = (
        f"import os, pathlib\ndef grade():\n    mark = pathlib.Path({str(mark)!r})\n"
        f"    if mark.exists(): return pathlib.Path({str(release)!r}).exists()\n"
        "    mark.touch(); os.kill(os.getpid(), 9)\n"
    )
    releasing = (
        f"import pathlib, time\ndef grade():\n    while not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.01)\n"
        f"    time.sleep(0.3); pathlib.Path({str(release)!r}).touch(); return 1\n"
    )
    other = threading.Thread(target=grade, args=(releasing,))
    other.start()
    assert grade(source).reward == 1
    other.join()


@pytest.mark.slow
def test_lack_of_memory_or_processor_does_not_make_an_answer_0(grade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had little memory when it was killed; or it was ready to run, and others had the processor.

    What the system reports of the second is set here: to starve a process for certain takes more than a test has.
    """
    others = "other processes used up the machine; run fewer rollouts at once, then grade again$"
    with pytest.raises(GraderFailed, match=f"ended by SIGKILL, out of memory.; {others}") as caught:
        grade(f"import os\ndef grade(answer):\n{SPARES_MISSING}    os.kill(os.getpid(), 9)\n")
    assert caught.value.code == "grader"
    started = time.monotonic()
    monkeypatch.setattr(GraderProcess, "_delay_s", lambda self: time.monotonic() - started)
    monkeypatch.setattr(GraderProcess, "_processor_s", lambda self: 0.0)
    monkeypatch.setattr(grader_process, "DELAY_FACTOR", 2)
    with pytest.raises(GraderFailed, match=f"took more than 1.5 s.*; {others}") as caught:
        grade(f"import time\ndef grade(answer):\n{SPARES_MISSING}    time.sleep(600)\n")
    assert caught.value.code == "grader"


def test_run_delay_of_a_process_is_read_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second field of /proc/PID/schedstat, in nanoseconds; 0 where the system has no such file."""
    process = GraderProcess()
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            monkeypatch.setattr(process, "_process", sleeper)
            monkeypatch.setattr(process, "_schedstat", grader_process._open_schedstat(sleeper.pid))
            fields = Path(f"/proc/{sleeper.pid}/schedstat")
            assert process._delay_s() == (int(fields.read_text().split()[1]) / 1e9 if fields.exists() else 0.0)
            assert process._processor_s() < 60
        finally:
            sleeper.kill()
    assert process._delay_s() == 0.0


def test_grader_that_breaks_on_the_expected_answer_does_not_make_an_answer_0(pool: GraderPool, tmp_path: Path) -> None:
    source = f"import os\ndef grade(answer):\n{SPARES_MISSING}    os._exit(3)\n"
    task = task_with(tmp_path / "t", source, '{"x": 1}')
    with pytest.raises(GraderFailed, match=r"exit code 3$") as caught:
        pool.grade(task.grader, task, Answer(value={"x": 2}), None)  # type: ignore[arg-type]
    assert caught.value.code == "grader"


@pytest.mark.parametrize(
    ("left", "victim"),
    [
        ("signal.alarm(1)", "time.sleep(1.2)"),
        ("resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))", "len('x' * (1 << 28))"),
        ("sys.modules.clear()", "time.sleep(0)"),
    ],
    ids=["alarm", "memory", "modules"],
)
def test_state_that_a_grader_leaves_does_not_fail_another_grader(tmp_path: Path, left: str, victim: str) -> None:
    """A failure only counts in a process that no other grader has used."""
    imports = "import resource, signal, sys, time\ndef grade(answer):\n"
    leaves = task_with(tmp_path / "leaves", f"{imports}    {left}\n    return 1\n")
    other = task_with(tmp_path / "other", f"{imports}{SPARES_MISSING}    {victim}\n    return 1\n")
    pool = GraderPool(seconds=5, max_processes=1)
    try:
        for task in (leaves, other):
            assert pool.grade(task.grader, task, Answer(value={}), None).reward == 1  # type: ignore[arg-type]
    finally:
        pool.close()


def test_a_grader_that_forks_gives_one_grade_for_each_answer(grade: Any) -> None:
    """The child returns from `grade` too; the next answer must not get its grade."""
    forks = (
        "import os\ndef grade(answer):\n    child = os.fork()\n    if child == 0: return 0.25\n"
        "    os.waitpid(child, 0)\n    return answer.value['x']\n"
    )
    for value in (1, 0.5, 0.75):
        assert grade(forks, Answer(value={"x": value})).reward == value
        assert grade(GOOD).reward == 1


def test_long_reasons_are_left_out_and_the_reward_stays(grade: Any) -> None:
    source = (
        "from pytest_core_rollouts.grading import Grade, Reason\ndef grade(artifacts):\n"
        "    text = artifacts['f'].decode()\n    return Grade(0.0, (Reason('f', '', text), Reason('g', '', text)))\n"
    )
    made = grade(source, Answer(value={}, artifacts={"f": bytes(6 << 20)}))
    assert (made.reward, made.reasons) == (0.0, ())
    assert re.fullmatch(r"the grader's reasons and note have 75,497,\d{3} bytes and were left out", made.note)


def test_output_of_a_grader_is_not_its_grade(grade: Any, capfd: pytest.CaptureFixture[str]) -> None:
    source = (
        "import os, sys\ndef grade():\n    print('x' * 10_000_000); os.write(1, b'y' * 1000)\n"
        "    os.system('echo z; head -c 1000000 /dev/zero; cat'); sys.stderr.write('e' * 100_000)\n    return 0.5\n"
    )
    assert grade(source).reward == 0.5
    assert capfd.readouterr() == ("", "")


def test_endless_output_is_stopped_at_the_limit(grade: Any) -> None:
    with pytest.raises(AnswerBrokeGrader, match=r"took more than 1\.5 s"):
        grade(f"def grade(answer):\n{SPARES_MISSING}    while True: print('x' * 1000)\n")


def test_processes_of_a_grader_end_with_it(grade: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = (
        "import os, subprocess\ndef grade(answer):\n"
        + SPARES_MISSING
        + "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(pids)!r}, 'a').write(f'{{os.getpid()}} {{child.pid}} ')\n    child.wait()\n"
    )
    with pytest.raises(AnswerBrokeGrader):
        grade(source)
    assert len(pids.read_text().split()) == 4
    until(lambda: not any(map(alive, map(int, pids.read_text().split()))), "the grader's processes end")


# Processes


def test_processes_are_reused_and_end_with_the_pool(tmp_path: Path) -> None:
    pool = GraderPool(max_processes=2)
    task = task_with(
        tmp_path / "t",
        "import os\nfrom pytest_core_rollouts.grading import Grade\n"
        "def grade(): return Grade(1.0, note=str(os.getpid()))\n",
    )
    seen: set[str | None] = set()

    def many() -> None:
        for _ in range(10):
            seen.add(pool.grade(task.grader, task, Answer(), None).note)  # type: ignore[arg-type]

    threads = [threading.Thread(target=many) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(seen) <= 2
    pool.close()
    until(lambda: not any(alive(int(pid or 0)) for pid in seen), "the processes end")
    with pytest.raises(GraderFailed, match="the process is ending"):
        pool.grade(task.grader, task, Answer(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("busy", [True, False], ids=["amid a grade that holds the GIL", "idle"])
def test_killed_parent_leaves_no_process(tmp_path: Path, busy: bool) -> None:
    pids = tmp_path / "pids"
    write = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} {{tempfile.gettempdir()}}\\n')"
    hang = "    re.match('(a+)+b', 'a' * 60)\n" if busy else ""
    task_with(tmp_path / "t", f"import os, re, tempfile\ndef grade():\n    {write}\n{hang}    return 1\n")
    program = (
        "import sys, time; from pathlib import Path; from pytest_core_rollouts.tasks import load_task\n"
        "from pytest_core_rollouts.grading import Answer\n"
        "print(load_task(Path(sys.argv[1]), 't').grade(Answer()).reward, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "t")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        if not busy:
            assert parent.stdout.readline() == b"1.0\n"
        until(lambda: pids.exists() and pids.read_text().endswith("\n"), "the grader runs")
        number, folder = pids.read_text().split()
        pid = int(number)
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not alive(pid), "the grader ends with its parent")
    assert busy or not Path(folder).exists()


def test_ctrl_c_does_not_reach_graders(grade: Any) -> None:
    source = (
        "import os, signal\ndef grade():\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return os.getsid(0) == os.getpid() and os.getpgid(0) == os.getpid()\n"
    )
    assert grade(source).reward == 1


def test_a_task_grades_in_a_worker_process(tmp_path: Path) -> None:
    task = task_with(tmp_path / "t", f"import os\ndef grade(): return os.getpid() != {os.getpid()}\n")
    assert task.grade(Answer()).reward == 1
