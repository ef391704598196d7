"""The examples, and a packed repository, on the embedded Core: in real sandboxes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_core_rollouts.grading.answers import Answer
from pytest_core_rollouts.grading.comparing import Reason
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task
from tests.integration.conftest import Project, outcomes, text_of
from tests.integration.test_check_command import call

pytestmark = pytest.mark.usefixtures("no_core")

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Task:
    return load_task(EXAMPLES / "tasks" / name, name)


def test_the_examples_are_solved_and_have_no_findings(project: Project) -> None:
    shutil.copytree(EXAMPLES, project.path / "examples")
    project.ini("rollout_tasks = examples/tasks")
    result = project.run("--core", "embedded", "--harness", "oracle", "--harness", "nop")
    assert outcomes(result) == {"passed": 2, "failed": 2}, text_of(result)
    (patched,) = [row for row in project.records if row["task"] == "patch-repository" and row["harness"] == "oracle"]
    assert (patched["reward"], [one["path"] for one in patched["outputs"]]) == (1.0, ["fix.patch"])
    kept = (project.path / "runs" / patched["outputs"][0]["file"]).read_text()
    assert kept.startswith("--- a/textstats/words.py\n+++ b/textstats/words.py\n")
    done = call(project.path, "check", "examples/tasks", "examples/dataset/conftest.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_partly_right_answer_earns_a_partial_reward() -> None:
    task = example("partial-credit")
    assert task.expected is not None
    right = json.loads(json.dumps(task.expected))
    assert task.grade(Answer(value=right)).reward == 1
    right["topics"]["r6"] = "price"
    grade = task.grade(Answer(value=right))
    assert grade.reward == pytest.approx(0.5 * 7 / 8 + 0.5)
    assert grade.reasons == (Reason("topics.r6", "other", "price"),)
    assert grade.reward >= task.pass_threshold
    assert task.grade(Answer(value={"topics": "none"})).reward == 0
    assert task.grade(Answer(problem="not found")).reward == 0


PATCH = """\
--- a/textstats/words.py
+++ b/textstats/words.py
@@ -8,4 +8,4 @@

 def longest_word(text):
     \"\"\"The longest word; the first of several.\"\"\"
-    return max(words(text), key=len)
+    return {code}
"""


@pytest.mark.parametrize(
    ("code", "reward", "note"),
    [
        ('max((w.strip(".,!?") for w in words(text)), key=len, default="")', 1.0, None),
        ('max((w.strip(".,!?") for w in words(text)), key=len)', 0.75, None),
        ('""', 0.0, "the repository's own tests fail"),
        ("__import__('os')._exit(0)", 0.0, "the tests gave no result"),
        ("print('{}') or max(words(text), key=len)", 0.25, None),
        ("exec('while True: pass')", 0.0, "the tests did not finish"),
    ],
)
def test_a_patch_is_graded_by_running_it(
    code: str, reward: float, note: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = example("patch-repository")
    assert task.grader is not None
    if "while" in code:  # the time limit, without waiting for it
        monkeypatch.setitem(task.grader._load()[0].__globals__, "run_in_sandbox", _impatient)
    answer = Answer(artifacts={"fix.patch": PATCH.format(code=code).encode()})
    grade = task.grader.grade_here(task, answer, None) if "while" in code else task.grade(answer)
    assert grade.reward == reward, grade
    assert (note is None) == (grade.note is None)
    assert note is None or note in str(grade.note)


def _impatient(argv: list[str], files: dict[str, bytes], timeout: float) -> object:
    from pytest_core_rollouts.grading.sandbox import run_in_sandbox

    return run_in_sandbox(argv, files, timeout=2)


@pytest.mark.parametrize(("artifacts", "note"), [({}, "no fix.patch"), ({"fix.patch": b"garbage"}, "does not apply")])
def test_an_output_that_is_not_a_patch_earns_0(artifacts: dict[str, bytes], note: str) -> None:
    grade = example("patch-repository").grade(Answer(artifacts=artifacts))
    assert grade.reward == 0
    assert note in str(grade.note)


def test_a_packed_repository_reaches_the_sandbox_unchanged(project: Project) -> None:
    """Modes, empty folders, links, a nested repository and more files than a Session takes."""
    files = project.task("packed", expected={"modes": "755 600", "log": "first", "many": 120, "ok": True}) / "files"
    (files / "empty").mkdir(parents=True)
    for number in range(120):
        (files / f"many{number}").write_text("x")
    for name, mode in (("run.sh", 0o755), ("private", 0o600)):
        (files / name).write_text("#!/bin/sh\necho ran\n")
        (files / name).chmod(mode)
    (files / "link").symlink_to("empty")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "run.sh"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], cwd=files, check=True)
    project.write("tasks/packed/task.yaml", "pack: true\nsetup_commands: ['test -x run.sh && touch after']\n")
    project.write(
        "tasks/packed/solution/solve.sh",
        """set -eu
test -d empty && test "$(readlink link)" = empty && test -f after && test -z "$(ls -A empty)"
test -z "$(ls -A | grep task-files || true)"
test -z "$(git status --porcelain -- run.sh)"
mkdir -p outputs
printf '{"modes": "%s %s", "log": "%s", "many": %d, "ok": %s}' "$(stat -c %a run.sh)" "$(stat -c %a private)" \
  "$(git log --format=%s)" "$(ls | grep -c many)" "$(./run.sh >/dev/null && echo true)" >outputs/answer.json
""",
    )
    result = project.run("tasks", "--core", "embedded")
    assert outcomes(result) == {"passed": 1}, text_of(result)


@pytest.mark.slow
def test_a_data_set_of_fifty_thousand_rows_is_collected_in_bounded_time_and_memory(project: Project) -> None:
    """100,000 items within 10 s and 400 MiB; a few of them run."""
    shutil.copytree(EXAMPLES / "dataset", project.path / "dataset")
    with (project.path / "dataset" / "questions.jsonl").open("w") as file:
        for number in range(50_000):
            question = f"How much is {number} times 3? Explain nothing, show nothing, and give only the number."
            file.write(json.dumps({"id": f"q{number:05}", "question": question, "answer": 3 * number}) + "\n")
    project.ini()
    # Not ru_maxrss: a process starts with that of the one that it was forked from.
    limits = "import re, sys, pytest; code = pytest.main(sys.argv[1:]); "
    limits += "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024); sys.exit(code)"
    arguments = ["dataset/conftest.py", "--harness", "nop", "--core", "embedded", "--samples", "2"]
    done = project.pytester.run(sys.executable, "-c", limits, *arguments, "--collect-only", "-q", "-q")
    assert done.ret == 0
    assert int(done.outlines[-1]) <= 400
    ran = project.run(*arguments, "-k", "questions/q0000", "--rollout-gate", "none")
    assert outcomes(ran)["unsolved"] == 20, text_of(ran)
