"""`python -m pytest_core_rollouts check` and `new-task`, as a user calls them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Project, outcomes, text_of
from tests.support.fake_core import FakeCore

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


def call(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_core_rollouts", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTEST_ADDOPTS"))}
    kept["PYTHONPATH"] = str(REPOSITORY)
    return subprocess.run(
        command, cwd=folder, env={**kept, **(env or {})}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def correct(project: Project) -> Project:
    """A project with one correct task; its ini file has settings that `check` must ignore."""
    project.ini("addopts = -n 2 --no-such-option", "rollout_samples = 5", "rollout_core = https://core.example/v1")
    task(project, "sums/a")
    return project


def task(project: Project, name: str, *, answer: str = "7", solution: str | None = None) -> Path:
    folder = project.task(name, expected={"answer": 7})
    project.write(
        f"tasks/{name}/instruction.md",
        "Add up `/workspace/data.csv`. Write `/workspace/outputs/answer.json` with the key `answer`.\n",
    )
    script = f"mkdir -p outputs && echo '{{\"answer\": {answer}}}' >outputs/answer.json\n"
    project.write(f"tasks/{name}/solution/solve.sh", solution or script)
    return folder


def test_check_exits_with_0_for_a_correct_task_and_writes_no_files(correct: Project) -> None:
    done = call(correct.path, "check")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "1 task checked: 0 errors, 0 warnings\n"
    assert not list(correct.path.glob("runs"))
    assert not list(correct.path.rglob(".pytest_cache"))


def test_a_task_is_found_by_its_id_in_a_locale_without_utf8(correct: Project) -> None:
    task(correct, "sums/café")
    done = call(correct.path, "check", "sums/café", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "1 task checked: 0 errors, 0 warnings\n"


def test_findings_are_printed_in_the_format_of_linters_and_of_github(correct: Project) -> None:
    correct.write("tasks/sums/a/instruction.md", "Add up `data.csv`: 100%, all of it.\n")
    done = call(correct.path, "check", "--core", "none")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "tasks/sums/a/instruction.md:1: error: the instruction does not name the key 'answer' [key-not-named]",
        "tasks/sums/a/instruction.md:1: error: the instruction does not name /workspace/outputs/answer.json, "
        "so an agent can't know where to write [output-path]",
    ]
    done = call(correct.path, "check", "sums/a", "--core", "none", "--format", "github")
    assert done.stdout.splitlines()[0] == (
        "::error file=tasks/sums/a/instruction.md,line=1,title=sums/a%3A key-not-named::"
        "the instruction does not name the key 'answer'"
    )


def test_a_task_that_can_not_be_loaded_is_a_finding_with_its_line(correct: Project) -> None:
    correct.task("broken", yaml="tags: [a]\ntimeout: 10:00\n")
    done = call(correct.path, "check", "--core", "none")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("tasks/broken/task.yaml:2: error: timeout: 10:00 is ambiguous")
    assert line.endswith("[load]")
    assert call(correct.path, "check", "broken", "--core", "none").returncode == 1
    correct.write("tasks/broken/task.yaml", "tags: [a]\n")
    correct.write("tasks/broken/expected.json", '{\n  "x": 1,\n  "y": NaN\n}')
    [line] = call(correct.path, "check", "broken", "--core", "none").stdout.splitlines()
    assert line.startswith("tasks/broken/expected.json:3: error: not valid JSON: NaN is not a JSON number (line 3, ")
    assert call(correct.path, "check", "sums/a", "--core", "none").returncode == 0


def test_warnings_fail_the_check_with_strict(correct: Project) -> None:
    shutil.rmtree(correct.path / "tasks/sums/a/solution")
    done = call(correct.path, "check", "--core", "none")
    assert (done.returncode, done.stderr) == (0, "1 task checked: 0 errors, 1 warning\n")
    assert "[no-solution]" in done.stdout
    assert call(correct.path, "check", "--core", "none", "--strict").returncode == 1


@pytest.mark.parametrize("arguments", [("nowhere",), ("sums",)])
def test_an_unknown_task_is_a_usage_error(correct: Project, arguments: tuple[str, ...]) -> None:
    done = call(correct.path, "check", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ERROR: unknown task {arguments[0]!r}; pass a task's id, or a path that exists\n"


def test_a_project_without_tasks_is_a_usage_error(project: Project) -> None:
    done = call(project.path, "check")
    assert done.returncode == 2
    assert done.stderr.startswith("ERROR: no tasks: folder ")


def test_running_solutions_and_nop_finds_more_faults(correct: Project) -> None:
    task(correct, "fails", answer="8")
    task(correct, "breaks", solution="echo out of luck >&2; exit 3\n")
    task(
        correct,
        "unstable",
        solution='mkdir -p outputs; echo "{\\"answer\\": 7, \\"at\\": $(date +%s%N)}" >outputs/answer.json\n',
    )
    folder = task(correct, "lazy")
    correct.write("tasks/lazy/grader.py", "def grade(answer): return 1.0 if answer.value == {'answer': 7} else 0.1\n")
    assert folder.is_dir()
    done = call(correct.path, "check")
    found = {line.split("/")[1]: line for line in done.stdout.splitlines()}
    assert found.keys() == {"fails", "breaks", "unstable", "lazy"}, done.stdout
    assert "the solution earns 0 (completed): answer is 8 [solution-fails]" in found["fails"]
    assert "exited with status 3: out of luck" in found["breaks"]
    assert "the solution gave two different answers, which both earn 1 [solution-unstable]" in found["unstable"]
    assert "an agent that does nothing earns 0.1 (completed)" in found["lazy"]
    assert done.returncode == 1


def test_each_fault_is_reported_once(correct: Project) -> None:
    graders = {
        "raises": "def grade(answer): raise KeyError('x')\n",
        "passes": "def grade(answer): return 1.0\n",
        "zero": "def grade(answer): return 0.0\n",
        "breaks": "def grade(answer): return 1.0 if answer.value['answer'] == 7 else 0.0\n",
    }
    for name, code in graders.items():
        task(correct, name)
        correct.write(f"tasks/{name}/grader.py", code)
    folder = task(correct, "by-run")  # nothing but its solution shows that the grader is unstable
    (folder / "expected.json").unlink()
    counter = "from pathlib import Path\ndef grade(answer):\n    if answer.value != {'answer': 7}: return 0.0\n"
    mark = f"    calls = Path({str(correct.path / 'calls')!r})\n    first = not calls.exists()\n    calls.touch()\n"
    correct.write("tasks/by-run/grader.py", f"{counter}{mark}    return 1.0 if first else 0.5\n")
    shutil.rmtree(task(correct, "empty") / "solution")
    correct.write("tasks/empty/solution/solve.bash", "true\n")
    task(correct, "hooked/a")
    task(correct, "hooked/b")
    correct.write("tasks/hooked/conftest.py", "def pytest_rollout_grade(task): raise KeyError('x')\n")
    done = call(correct.path, "check")
    found = [(line.split("/")[1], line.rpartition("[")[2].rstrip("]")) for line in done.stdout.splitlines()]
    assert found == [
        ("breaks", "grader-fails"),
        ("by-run", "grader-unstable"),
        ("empty", "no-solution"),
        ("hooked", "grader-fails"),
        ("passes", "wrong-answer-passes"),
        ("raises", "grader-fails"),
        ("zero", "expected-fails"),
    ], done.stdout
    assert "the solution's answer earns 0.5 and 1; the same answer must always get the same reward" in done.stdout
    assert "KeyError: 'x' (conftest.py:1), and for 1 other task [grader-fails]" in done.stdout


def test_an_expensive_grader_is_called_as_few_times_as_possible(correct: Project) -> None:
    calls = correct.path / "calls"
    count = f"import time\ndef grade(answer):\n    with open({str(calls)!r}, 'a') as file: file.write('x')\n"
    correct.write(
        "tasks/sums/a/grader.py", f"{count}    time.sleep(0.2)\n    return float(answer.value == {{'answer': 7}})\n"
    )
    done = call(correct.path, "check")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    # The expected answer twice, a missing answer, an empty object, another value. Neither run is graded again.
    assert len(calls.read_text()) == 5
    calls.unlink()
    correct.write("tasks/sums/a/task.yaml", "check: static\n")
    correct.write("tasks/sums/a/solution/solve.sh", "exit 3\n")
    done = call(correct.path, "check")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "1 task checked: 0 errors, 0 warnings\n"
    assert not calls.exists()


def test_tasks_made_in_code_are_checked_with_the_project_s_hook(correct: Project) -> None:
    correct.write(
        "conftest.py",
        "from pytest_core_rollouts.tasks.task import Task\n"
        "def pytest_rollout_tasks(config):\n"
        "    yield Task(id='made/1', instruction='Say `n` in /workspace/outputs/answer.json', expected={'n': 1})\n"
        "def pytest_rollout_grade(task): return 1.0 if task.id == 'made/1' else None\n",
    )
    done = call(correct.path, "check", "--core", "none")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("made/1: error: wrong answers that earn 1: a missing answer, an empty object, n changed")


def test_a_scaffold_passes_the_check_after_three_edits(project: Project, core: FakeCore) -> None:
    project.ini()
    made = call(project.path, "new-task", "sql/sums")
    assert made.returncode == 0, made.stderr
    folder = project.path / "tasks" / "sql" / "sums"
    assert str(folder.relative_to(project.path)) in made.stdout
    before = call(project.path, "check", "sql/sums")
    assert before.returncode == 1
    assert before.stdout.count("[unfinished]") == 3
    for workers in ([], ["-n", "1"]):
        run = project.run("tasks", "--harness", "codex", *workers)
        assert outcomes(run) == {"errors": 1}, text_of(run)
        assert "unfinished, it still contains TODO(new-task); to find it, run python -m pytest" in text_of(run)
    assert not core.requests
    assert project.run("tasks", "--harness", "codex", "--collect-only").ret == 0
    instruction = (folder / "instruction.md").read_text()
    instruction = instruction.replace("TODO(new-task): say what to find out from", "Add up the amounts in")
    (folder / "instruction.md").write_text(instruction.replace("TODO(new-task): what it is", "their sum"))
    (folder / "expected.json").write_text('{"answer": 7}\n')
    solution = (
        (folder / "solution/solve.sh")
        .read_text()
        .replace(" TODO(new-task): replace the 0 by what works the answer out.", "")
    )
    (folder / "solution/solve.sh").write_text(
        solution.replace("answer=0", "answer=$(awk -F, 'NR > 1 { sum += $2 } END { print sum }' data.csv)")
    )
    after = call(project.path, "check", "sql/sums")
    assert (after.returncode, after.stdout) == (0, ""), after.stdout


@pytest.mark.parametrize("name", ["../out", "/abs", "a b", "", "a//b", ".hidden", "sql/build", "x.egg"])
def test_new_task_refuses_an_invalid_id(project: Project, name: str) -> None:
    done = call(project.path, "new-task", name)
    assert done.returncode != 0
    assert "invalid id" in done.stderr
    assert not (project.path / "tasks").exists()


def test_new_task_overwrites_nothing(correct: Project) -> None:
    done = call(correct.path, "new-task", "sums/a")
    assert done.returncode != 0
    assert "already exists" in done.stderr


@pytest.mark.slow
def test_two_hundred_tasks_are_checked(project: Project) -> None:
    project.ini()
    for number in range(200):
        task(project, f"t{number:03}")
        rows = "\n".join(f"r{row},{row * number % 97}" for row in range(300))
        project.write(f"tasks/t{number:03}/files/data.csv", f"name,amount\n{rows}\n")
    done = call(project.path, "check")
    assert (done.returncode, done.stderr) == (0, "200 tasks checked: 0 errors, 0 warnings\n"), done.stdout
