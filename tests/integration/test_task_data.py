"""A task folder is data: nothing in it is imported by pytest or configures it, and no name in it acts on a log."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.integration.conftest import Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore

TRAP = "import pathlib\npathlib.Path(r'{}').touch()\n"
ARGUMENTS = [
    ("tasks",),
    ("tasks", "--collect-only"),
    ("tasks", "-k", "good"),
    ("--rollout-harness", "codex"),
    ("tasks", "-n", "2"),
    ("tasks/evil",),
    ("tasks/evil/instruction.md",),
    (".", "--rollout-harness", "codex"),
]


@pytest.fixture
def sprung(project: Project) -> Path:
    """Where a trap leaves its mark."""
    project.task("good")
    return project.path / "sprung"


@pytest.mark.parametrize("name", ["evil", "test_evil", "sql/evil"])
def test_a_conftest_in_a_task_is_refused_before_it_is_imported(
    project: Project, core: FakeCore, sprung: Path, name: str
) -> None:
    folder = project.task(name)
    project.write(f"tasks/{name}/conftest.py", TRAP.format(sprung))
    project.write("tasks/conftest.py", "")  # the project's own
    arguments = ARGUMENTS if name == "evil" else [("tasks",), (f"tasks/{name}",)]
    for args in arguments:
        error = usage_error(project.run(*args))
        assert error == f"{folder}/conftest.py: a task folder is data and must not configure pytest; " + (
            "remove the file, or move it"
        )
        assert not sprung.exists(), args
    assert not core.requests
    assert outcomes(project.run("tasks/good")) == {"passed": 1}  # another task is not concerned


@pytest.mark.parametrize("name", ["pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"])
def test_settings_of_pytest_in_a_task_are_refused(project: Project, core: FakeCore, name: str) -> None:
    folder = project.task("evil")
    section = {"setup.cfg": "tool:pytest", "pyproject.toml": "tool.pytest.ini_options"}.get(name, "pytest")
    project.write(f"tasks/evil/{name}", f'[{section}]\nrollout_samples = "3"\n')
    for args in (("tasks",), ("tasks/evil",)):  # the second is applied by pytest before our plugin is loaded
        assert usage_error(project.run(*args)).startswith(f"{folder}/{name}: a task folder is data")
    project.write("own.ini", "[pytest]\n")
    assert usage_error(project.run("-c", "own.ini", "tasks/evil")).startswith(f"{folder}/{name}: ")
    assert not core.requests


def test_settings_in_incomplete_and_linked_tasks_are_refused(project: Project, core: FakeCore, sprung: Path) -> None:
    project.write("tasks/half/task.yaml", "")
    project.write("tasks/half/pytest.ini", "[pytest]\n")
    project.write("tasks/half/conftest.py", TRAP.format(sprung))
    errors = project.run("tasks/half").errlines
    assert [line.partition(": a task folder")[0] for line in errors if line] == [
        f"ERROR: {project.path}/tasks/half/{name}" for name in ("conftest.py", "pytest.ini")
    ]
    (project.path / "tasks/half/pytest.ini").unlink()
    (project.path / "tasks/half/conftest.py").unlink()
    (project.path / "tasks/half/task.yaml").unlink()
    project.task("elsewhere", root="foreign")
    project.write("foreign/elsewhere/conftest.py", TRAP.format(sprung))
    (project.path / "tasks/link").symlink_to(project.path / "foreign/elsewhere")
    assert usage_error(project.run("tasks")).startswith(f"{project.path}/tasks/link/conftest.py: ")
    assert not sprung.exists()


def test_no_file_below_a_task_is_imported(project: Project, core: FakeCore, sprung: Path) -> None:
    """pytest looks into `test*` of each named folder, and a task may well have hidden tests there."""
    trap = TRAP.format(sprung)
    for place in ("files", "files/test_sub", "solution", "tests", "test_more"):
        project.write(f"tasks/good/{place}/conftest.py", trap)
        project.write(f"tasks/good/{place}/test_x.py", f"{trap}def test_x(): pass\n")
    project.write("tasks/good/__init__.py", trap)
    project.write("tasks/good/solution/solve.sh", "true\n")
    for args in (("tasks",), ("tasks/good",), ("tasks/good/instruction.md::default-default-0",), ()):
        assert project.run(*args).ret in (0, 5), args
        assert not sprung.exists(), args
    (project.path / "link").symlink_to(project.path / "tasks/good/files")
    for path in ("tasks/good/files", "tasks/good/tests/test_x.py", "link", "link/test_x.py"):
        assert "is inside a task folder, which contains no tests" in usage_error(project.run(path))
        assert not sprung.exists(), path


def test_a_run_of_other_tests_is_not_affected(project: Project, sprung: Path) -> None:
    project.task("evil")
    project.write("tasks/evil/conftest.py", TRAP.format(sprung))
    project.unit_tests()
    for args in ((), (".",), ("tests",)):
        assert outcomes(project.run(*args)) == {"passed": 2}
        assert not sprung.exists()


def test_check_names_the_settings_file_before_pytest_reads_it(project: Project, sprung: Path) -> None:
    project.task("evil")
    project.write("tasks/evil/pytest.ini", "[pytest]\npythonpath = .\nfilterwarnings = error::trap.X\n")
    project.write("tasks/evil/trap.py", TRAP.format(sprung))
    project.write("tasks/evil/conftest.py", TRAP.format(sprung))
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    for cwd, args in (("", ()), ("", ("evil",)), ("", ("tasks/evil",)), ("tasks/evil", ())):
        command = [sys.executable, "-m", "pytest_core_rollouts", "check", "--core", "none", "--format", "github", *args]
        done = subprocess.run(command, cwd=project.path / cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        found = [line.split(",")[0] for line in done.stdout.splitlines()]
        place = "" if cwd else "tasks/evil/"
        assert found == [f"::error file={place}{name}" for name in ("conftest.py", "pytest.ini")]
        assert not sprung.exists()


HOSTILE = {
    "esc": "a\x1b[2Jb",
    "line": "a\n::error title=x::y",
    "override": "a\u202eb",
    "isolate": "a\u2066b",
    "mark": "a\u200fb",
    "c1": "a\x9b31mb",
    "noncharacter": "a\ufffeb",
}


def test_hostile_names_are_refused_and_shown_escaped(project: Project, core: FakeCore) -> None:
    project.task("good")
    for name in HOSTILE.values():
        project.task(name)
    project.task(f"group{HOSTILE['esc']}/sub")
    project.task("file", files={HOSTILE["override"]: "x"})
    project.task("unset", yaml='skip: "no\\e[2J\\n::error::x"')
    project.write(f"tasks/good/{HOSTILE['line']}", "not sent")
    command = ("tasks", "--continue-on-collection-errors", "-rA", "-v", "--junitxml", "j.xml")
    for workers in ((), ("-n", "1")):
        result = project.run_apart(*command, *workers, env={"GITHUB_ACTIONS": "true"})
        count = len(HOSTILE) + 2
        assert outcomes(result) == {"passed": 1, "skipped": 1, "errors": count}, text_of(result)
        text = text_of(result)
        assert text.isascii() or all(line.isprintable() for line in text.splitlines())
        assert not any(line.startswith("::error") for line in text.splitlines())
        for name in HOSTILE.values():
            assert f"{project.path}/tasks/{name.encode('unicode_escape').decode()}: the character U+" in text
        assert "files/'a\\u202eb': the character U+202E is not allowed in a name; rename it" in text
        ElementTree.parse(project.path / "j.xml")
    listed = project.run("tasks", "--collect-only", "--continue-on-collection-errors")
    assert all(line.isprintable() for line in listed.outlines)


def test_sixty_thousand_tags_give_one_error(project: Project) -> None:
    project.task("many", yaml=f"tags: [{', '.join(f't{number}' for number in range(60_000))}]\n")
    project.task("fifty", yaml=f"tags: [{', '.join(f't{number}' for number in range(50))}]\n")
    result = project.run("tasks", "--continue-on-collection-errors")
    assert outcomes(result) == {"passed": 1, "errors": 1}
    assert "task.yaml:1: tags: expected at most 50 tags, got 60,000; remove some" in text_of(result)
