"""What `check` finds in a task without running it: each finding in a task made for it, and none in a correct task."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_core_rollouts.checking import grading_checks
from pytest_core_rollouts.checking.checks import Finding, TaskChecks, apply_silence
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import FINDINGS, WARNINGS
from tests.support.tables import rows

INSTRUCTION = """\
Add up `/workspace/sales.csv`.

Write the answer to `/workspace/outputs/answer.json`, one JSON object with these keys:

- `total`: the sum (integer)
- `best`: the best region (string)
- `mean`: their mean (number)
"""
EXPECTED = '{"total": 48213, "best": "west", "mean": 12.25}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task without faults."""
    folder = tmp_path / "sales"
    write(folder, "instruction.md", INSTRUCTION)
    write(folder, "expected.json", EXPECTED)
    write(folder, "files/sales.csv", "region,amount\nwest,17\neast,12\n")
    write(folder, "solution/solve.sh", "true\n")
    return folder


def write(folder: Path, name: str, content: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content, encoding="utf-8")


def findings(folder: Path) -> list[Finding]:
    task = load_task(folder, "sales")
    checks = TaskChecks(task, lambda task, answer: task.grade(answer), custom=task.grader is not None)
    return list(apply_silence(task, checks.findings(), frozenset(FINDINGS)))


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in findings(folder)]


def test_a_correct_task_has_no_findings(folder: Path) -> None:
    assert findings(folder) == []


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            lambda folder: write(folder, "instruction.md", INSTRUCTION.replace("outputs/", "")),
            "output-path",
            "the instruction does not name /workspace/outputs/answer.json",
        ),
        (
            lambda folder: write(
                folder, "instruction.md", INSTRUCTION.replace("`mean`", "`average`").replace("mean", "x")
            ),
            "key-not-named",
            "the instruction does not name the key 'mean'",
        ),
        (
            lambda folder: write(folder, "instruction.md", "Write /workspace/outputs/answer.json."),
            "key-not-named",
            "the instruction does not name the keys 'total', 'best', 'mean'",
        ),
        (
            lambda folder: write(folder, "expected.json", '{"total": {"north": 1, "west": 2}, "best": "x", "mean": 1}'),
            "nested-key-not-named",
            "keys found neither in the instruction nor in a file: north",
        ),
        (
            lambda folder: write(folder, "instruction.md", f"{INSTRUCTION}\nLast year: 48,213, west and 12.25.\n"),
            "answer-in-instruction",
            "the instruction contains every expected value; all are short, so it may be a coincidence",
        ),
        (
            lambda folder: write(folder, "files/old/result.json", f"[{EXPECTED}]"),
            "answer-in-file",
            "old/result.json contains every expected value",
        ),
        (
            lambda folder: write(folder, "expected.json", '{"total": 0.0, "best": "west", "mean": 1.5}'),
            "zero-tolerance",
            "total: a relative tolerance of 0.0 is 0; set an absolute tolerance",
        ),
        (
            lambda folder: (folder / "solution/solve.sh").unlink(),
            "no-solution",
            "solution/solve.sh is missing",
        ),
        (
            lambda folder: write(folder, "files/run.sh", "#!/bin/sh\r\n"),
            "warning",
            "run.sh: a script with Windows line endings",
        ),
        (
            lambda folder: write(folder, "solution/solve.sh", "# TODO(new-task)\n"),
            "unfinished",
            "solution/solve.sh is unfinished: it still contains TODO(new-task)",
        ),
        (
            lambda folder: write(folder, "grader.py", "def grade(task, answer): return answer.problem is None"),
            "wrong-answer-passes",
            "that earn 1: an empty object, total left out, total changed, best left out, best changed and 2 more",
        ),
        (
            lambda folder: write(folder, "grader.py", "def grade(task, answer): return answer.value == {'total': 1}"),
            "expected-fails",
            "the expected answer earns 0 instead of 1",
        ),
        (
            lambda folder: write(folder, "grader.py", "def grade(answer): return answer.value['total'] == 48213"),
            "grader-fails",
            "the grader raised TypeError: 'NoneType' object is not subscriptable",
        ),
        (
            lambda folder: write(folder, "grader.py", "N = []\ndef grade():\n    N.append(1)\n    return len(N) % 2\n"),
            "grader-unstable",
            "the expected answer earns 1, then 0; the same answer must always get the same reward",
        ),
        (
            lambda folder: write(folder, "expected.json", '{"total": 48213, "best": "west", "mean": {}}'),
            "constrains-nothing",
            "mean: every object matches an empty object; add keys to it",
        ),
    ],
)
def test_each_fault_has_its_finding(folder: Path, change: Callable[[Path], object], code: str, message: str) -> None:
    change(folder)
    found = [finding for finding in findings(folder) if not (code != "no-solution" and finding.code == "no-solution")]
    assert [finding.code for finding in found] in ([code], [code, "warning"]), found
    assert message in found[0].message
    assert found[0].path is not None
    assert found[0].path.is_relative_to(folder)
    assert found[0].is_warning == (code in WARNINGS)


def test_a_grader_that_only_disagrees_on_wrong_answers_is_unstable(folder: Path) -> None:
    wrong = "import itertools\nN = itertools.cycle([0.0, 0.5])\n"
    code = "def grade(task, answer): return 1.0 if answer.value == task.expected else next(N)\n"
    write(folder, "grader.py", wrong + code)
    (finding,) = findings(folder)
    assert finding.code == "grader-unstable"
    assert finding.message.startswith("a missing answer earns 0, then 0.5; ")


def test_a_slow_grader_grades_only_one_changed_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_checks, "SECONDS", 0.0)
    monkeypatch.setattr(grading_checks, "QUICK", 0.0)
    calls = folder.parent / "calls"
    count = f"def grade(task, answer):\n    with open({str(calls)!r}, 'a') as file: file.write('x')\n"
    write(folder, "grader.py", f"{count}    return float(answer.value == task.expected)\n")
    assert findings(folder) == []
    assert len(calls.read_text()) == 5


def test_a_single_expected_value_in_the_data_is_not_reported(folder: Path) -> None:
    write(folder, "files/sales.csv", "region,amount\nwest,48213\n")
    assert codes(folder) == []
    write(folder, "expected.json", '{"total": 48213}')
    assert codes(folder) == []


def test_an_expected_value_inside_a_longer_word_is_not_reported(folder: Path) -> None:
    write(folder, "files/sales.csv", "148213 482130 48213.5 western 12.255 112.25 mean best total\n")
    assert codes(folder) == []


def test_packed_files_are_searched_for_the_answer(folder: Path) -> None:
    write(folder, "task.yaml", "pack: true\n")
    write(folder, "files/.git/old", f"last year: {EXPECTED}")
    assert codes(folder) == ["answer-in-file"]


def test_a_finding_names_the_line_of_its_key(folder: Path) -> None:
    write(folder, "expected.json", '{\n  "best": "west",\n  "mean": 0.0,\n  "total": 48213\n}\n')
    (finding,) = findings(folder)
    assert (finding.code, finding.path, finding.line) == ("zero-tolerance", folder / "expected.json", 3)


@rows("yaml", ["tolerance: {absolute: 0.01}", "grading: {mean: {absolute: 0.1}}", "grading: {mean: {exact: true}}"])
def test_an_expected_zero_with_an_absolute_or_exact_rule_is_not_reported(folder: Path, yaml: str) -> None:
    write(folder, "expected.json", '{"total": 48213, "best": "west", "mean": 0.0}')
    write(folder, "task.yaml", yaml)
    assert codes(folder) == []


@rows(
    "yaml",
    [
        "grading: {total: {relative: 0.5, absolute: 100000}}",
        "grading: {best: {one_of: [west (changed), east]}}",
        "grading: {mean: {one_of: [25.5, 32.5]}}",
        "tolerance: {relative: 0.99, absolute: 5.0}",
    ],
)
def test_generous_rules_are_not_reported(folder: Path, yaml: str) -> None:
    write(folder, "task.yaml", yaml)
    assert codes(folder) == []


def test_a_task_can_silence_a_finding_and_a_useless_silence_is_reported(folder: Path) -> None:
    write(folder, "files/result.json", EXPECTED)
    write(folder, "task.yaml", "silence: {answer-in-file: the agent has to find it}\n")
    assert codes(folder) == []
    (folder / "files/result.json").unlink()
    (finding,) = findings(folder)
    assert (finding.code, finding.message) == (
        "silence-unused",
        "silence: answer-in-file was not found; remove it here",
    )


def test_a_large_expected_answer_is_checked_in_seconds(folder: Path) -> None:
    values = ", ".join(f'"k{n}": {n}' for n in range(20_000))
    write(folder, "expected.json", f'{{"total": {{{values}}}, "best": "west", "mean": 1.5}}')
    start = time.process_time()
    assert set(codes(folder)) <= {"nested-key-not-named"}
    assert time.process_time() - start < 20


def test_findings_of_a_task_made_in_code_have_no_path() -> None:
    task = Task(id="t", instruction="x", expected={"n": 1})
    found = list(TaskChecks(task, lambda task, answer: task.grade(answer)).findings())
    assert [(finding.code, finding.path) for finding in found] == [("output-path", None), ("key-not-named", None)]


def test_an_instruction_must_name_the_files_in_outputs(folder: Path) -> None:
    (folder / "expected.json").unlink()
    write(folder, "task.yaml", "outputs: [fix.patch]\n")
    write(folder, "grader.py", "def grade(artifacts): return 'fix.patch' in artifacts\n")
    write(folder, "instruction.md", "Write `/workspace/outputs/fix.diff`.")
    assert [finding.message[:60] for finding in findings(folder)] == [
        "the instruction does not name /workspace/outputs/fix.patch, "
    ]
