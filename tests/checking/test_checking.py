"""What `check` finds in a task by reading it: each finding in a task made for it, and nothing in a sound one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_core_rollouts.checking.checks import Finding, Soundness, silenced
from pytest_core_rollouts.tasks.task import Task, load_task
from pytest_core_rollouts.tasks.task_settings import FINDINGS, WARNINGS

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
    """A sound task."""
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
    sound = Soundness(task, lambda task, answer: task.grade(answer), own=task.grader is not None)
    return list(silenced(task, sound.findings(), frozenset(FINDINGS)))


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in findings(folder)]


def test_a_sound_task_has_no_findings(folder: Path) -> None:
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
            lambda folder: write(folder, "expected.json", '{"total": {"north": 1, "west": 2}, "best": "x", "mean": 1}'),
            "nested-key-not-named",
            "keys that stand neither in the instruction nor in a file: north",
        ),
        (
            lambda folder: write(folder, "instruction.md", f"{INSTRUCTION}\nLast year: 48,213, west and 12.25.\n"),
            "answer-in-instruction",
            "the instruction holds every expected value; all are short, so it may be chance",
        ),
        (
            lambda folder: write(folder, "files/old/result.json", f"[{EXPECTED}]"),
            "answer-in-file",
            "old/result.json holds every expected value",
        ),
        (
            lambda folder: write(folder, "expected.json", '{"total": 0.0, "best": "west", "mean": 1.5}'),
            "zero-tolerance",
            "total: of 0.0 every relative tolerance is 0",
        ),
        (
            lambda folder: (folder / "solution/solve.sh").unlink(),
            "no-solution",
            "there is no solution/solve.sh",
        ),
        (
            lambda folder: write(folder, "files/run.sh", "#!/bin/sh\r\n"),
            "warning",
            "run.sh: a script with Windows line endings",
        ),
        (
            lambda folder: write(folder, "solution/solve.sh", "# TODO(new-task)\n"),
            "unfinished",
            "solution/solve.sh is still to be written",
        ),
        (
            lambda folder: write(folder, "grader.py", "def grade(task, answer): return answer.problem is None"),
            "wrong-answer-passes",
            "earns 1: an empty object, total left out, total changed, best left out, best changed and 2 more",
        ),
        (
            lambda folder: write(folder, "grader.py", "def grade(task, answer): return answer.value == {'total': 1}"),
            "expected-fails",
            "the expected answer itself earns 0",
        ),
        (
            lambda folder: write(folder, "grader.py", "def grade(answer): return answer.value['total'] == 48213"),
            "grader-fails",
            "the grader raised TypeError: 'NoneType' object is not subscriptable",
        ),
        (
            lambda folder: write(folder, "grader.py", "N = []\ndef grade():\n    N.append(1)\n    return len(N) % 2\n"),
            "grader-unstable",
            "the expected answer earns 1, then 0; a grader must give one answer one reward",
        ),
        (
            lambda folder: write(folder, "expected.json", '{"total": 48213, "best": "west", "mean": {}}'),
            "constrains-nothing",
            "mean: an empty object, which every object matches",
        ),
    ],
)
def test_each_finding(folder: Path, change: Callable[[Path], object], code: str, message: str) -> None:
    change(folder)
    found = [finding for finding in findings(folder) if not (code != "no-solution" and finding.code == "no-solution")]
    assert [finding.code for finding in found] in ([code], [code, "warning"]), found
    assert message in found[0].message
    assert found[0].path is not None
    assert found[0].path.is_relative_to(folder)
    assert found[0].is_warning == (code in WARNINGS)


def test_a_value_that_stands_in_the_data_is_no_alarm(folder: Path) -> None:
    write(folder, "files/sales.csv", "region,amount\nwest,48213\n")
    assert codes(folder) == []
    write(folder, "expected.json", '{"total": 48213}')
    assert codes(folder) == []


def test_a_value_within_another_is_not_there(folder: Path) -> None:
    write(folder, "files/sales.csv", "148213 482130 48213.5 western 12.255 112.25 mean best total\n")
    assert codes(folder) == []


def test_what_is_packed_is_read_too(folder: Path) -> None:
    write(folder, "task.yaml", "pack: true\n")
    write(folder, "files/.git/old", f"last year: {EXPECTED}")
    assert codes(folder) == ["answer-in-file"]


def test_the_line_is_that_of_the_place(folder: Path) -> None:
    write(folder, "expected.json", '{\n  "best": "west",\n  "mean": 0.0,\n  "total": 48213\n}\n')
    (finding,) = findings(folder)
    assert (finding.code, finding.path, finding.line) == ("zero-tolerance", folder / "expected.json", 3)


@pytest.mark.parametrize(
    "yaml", ["tolerance: {absolute: 0.01}", "grading: {mean: {absolute: 0.1}}", "grading: {mean: {exact: true}}"]
)
def test_an_absolute_tolerance_is_fine_for_zero(folder: Path, yaml: str) -> None:
    write(folder, "expected.json", '{"total": 48213, "best": "west", "mean": 0.0}')
    write(folder, "task.yaml", yaml)
    assert codes(folder) == []


@pytest.mark.parametrize(
    "yaml",
    [
        "grading: {total: {relative: 0.5, absolute: 100000}}",
        "grading: {best: {one_of: [west (changed), east]}}",
        "grading: {mean: {one_of: [25.5, 32.5]}}",
        "tolerance: {relative: 0.99, absolute: 5.0}",
    ],
)
def test_generous_rules_are_no_fault(folder: Path, yaml: str) -> None:
    write(folder, "task.yaml", yaml)
    assert codes(folder) == []


def test_a_task_silences_a_finding_with_a_reason(folder: Path) -> None:
    write(folder, "files/result.json", EXPECTED)
    write(folder, "task.yaml", "silence: {answer-in-file: the agent has to find it}\n")
    assert codes(folder) == []
    (folder / "files/result.json").unlink()
    (finding,) = findings(folder)
    assert (finding.code, finding.message) == (
        "silence-unused",
        "silence: there is no answer-in-file to silence; remove it",
    )


def test_a_large_expected_answer_is_checked_in_little_time(folder: Path) -> None:
    values = ", ".join(f'"k{n}": {n}' for n in range(20_000))
    write(folder, "expected.json", f'{{"total": {{{values}}}, "best": "west", "mean": 1.5}}')
    start = time.perf_counter()
    assert set(codes(folder)) <= {"nested-key-not-named"}
    assert time.perf_counter() - start < 20


def test_a_task_made_in_code_has_no_files_to_name() -> None:
    task = Task(id="t", instruction="x", expected={"n": 1})
    found = list(Soundness(task, lambda task, answer: task.grade(answer)).findings())
    assert [(finding.code, finding.path) for finding in found] == [("output-path", None), ("key-not-named", None)]


def test_a_task_for_a_patch_names_the_patch(folder: Path) -> None:
    (folder / "expected.json").unlink()
    write(folder, "task.yaml", "outputs: [fix.patch]\n")
    write(folder, "grader.py", "def grade(artifacts): return 'fix.patch' in artifacts\n")
    write(folder, "instruction.md", "Write `/workspace/outputs/fix.diff`.")
    assert [finding.message[:60] for finding in findings(folder)] == [
        "the instruction does not name /workspace/outputs/fix.patch, "
    ]
