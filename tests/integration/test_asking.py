"""Rollouts run when an option, the ini file or a path asks for them, and then what was asked for runs and no more."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Project, node_ids, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore
from tests.support.tables import rows


@pytest.fixture
def mixed(project: Project) -> Project:
    """Two tasks, one of them nested, and two unit tests that testpaths names."""
    project.ini("testpaths = tests")
    project.unit_tests()
    project.task("a")
    project.task("sql/joins")
    return project


A = "tasks/a/instruction.md::default-default-0"
JOINS = "tasks/sql/joins/instruction.md::default-default-0"


MERGES = pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 loses all but the innermost argument")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("tasks",), [A, JOINS]),
        (("tasks/",), [A, JOINS]),
        (("tasks/a",), [A]),
        (("tasks/sql",), [JOINS]),
        (("tasks/sql/joins/instruction.md",), [JOINS]),
        ((A,), [A]),
        pytest.param(("tasks", "tasks/a", A), [A, JOINS], marks=MERGES),
        (("--rollout-samples", "1"), [A, JOINS]),
        (("--samples=1", "."), [A, JOINS, "tests/test_unit.py::test_one", "tests/test_unit.py::test_two"]),
        (("tests", "tasks/a"), ["tests/test_unit.py::test_one", "tests/test_unit.py::test_two", A]),
        (("tests", "--samples=1"), ["tests/test_unit.py::test_one", "tests/test_unit.py::test_two"]),
        ((), ["tests/test_unit.py::test_one", "tests/test_unit.py::test_two"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_and_paths_decide_what_is_collected(mixed: Project, args: tuple[str, ...], expected: list[str]) -> None:
    assert node_ids(mixed.run("--collect-only", "-q", *args)) == expected


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_a_path_that_is_named_twice_runs_once(mixed: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    result = mixed.run("--keep-duplicates", "tests", "tests", "tasks/a", "tasks/a", *workers)
    assert outcomes(result)["passed"] == 5, text_of(result)  # other tests are pytest's business
    assert result.ret == 0
    assert [record["task"] for record in mixed.records] == ["a"]
    assert len(core.sessions) == 1


def test_an_option_without_a_path_runs_the_tasks_and_nothing_else(mixed: Project, core: FakeCore) -> None:
    assert outcomes(mixed.run("--harness", "codex", "--samples", "2")) == {"passed": 4}
    assert len(core.sessions) == 4


@pytest.mark.slow
def test_an_option_without_a_path_runs_only_the_tasks_with_workers(mixed: Project, core: FakeCore) -> None:
    result = mixed.run_apart("--harness", "codex", "--samples", "2", "-n", "2")
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert len(core.sessions) == 4
    assert len(mixed.results) == 1


def test_workers_run_no_tasks_that_their_controller_was_not_asked_for(mixed: Project, core: FakeCore) -> None:
    """Workers get testpaths as arguments; that does not mean that somebody named the tasks."""
    mixed.ini("testpaths = tests tasks")
    result = mixed.run_apart("-n", "2")
    assert outcomes(result) == {"passed": 2}, text_of(result)
    assert not core.sessions


def test_the_ini_key_rollout_run_runs_every_collected_task(mixed: Project, core: FakeCore) -> None:
    mixed.ini("rollout_run = true", "rollout_harness = codex")
    assert outcomes(mixed.run()) == {"passed": 4}
    mixed.ini("testpaths = tests", "rollout_run = true")
    assert outcomes(mixed.run()) == {"passed": 2}
    assert len(core.sessions) == 2


def test_tasks_are_found_below_several_roots(project: Project) -> None:
    project.ini("rollout_tasks = evals/easy evals/hard", "testpaths = tests")
    project.unit_tests()
    for name in ("easy/a", "hard/b/c"):
        project.task(name, root="evals")
    project.task("not-in-a-root")
    listed = ["evals/easy/a/instruction.md::codex-default-0", "evals/hard/b/c/instruction.md::codex-default-0"]
    assert node_ids(project.run("--harness", "codex", "--collect-only", "-q")) == listed
    assert "rollouts: 2 tasks in evals/easy evals/hard, not requested; to run: pytest evals/easy evals/hard" in text_of(
        project.run()
    )
    for quiet in ((), ("-q",)):  # what an editor's test explorer runs
        assert [line for line in project.run("--collect-only", *quiet).outlines if line.startswith("rollouts: ")] == [
            "rollouts: 2 tasks in evals/easy evals/hard, not requested; to list them, as in an editor: rollout_run = "
            "true in the ini file; to run: pytest evals/easy evals/hard"
        ]
    assert outcomes(project.run("evals/easy", "evals/hard")) == {"passed": 2}
    assert sorted(record["task"] for record in project.records) == ["a", "b/c"]  # in the order in which they finish


def test_tasks_with_the_same_folder_name_have_different_ids(project: Project) -> None:
    project.ini("rollout_tasks = suite")
    for name in ("a/sum", "b/sum"):
        project.task(name, root="suite", expected={"x": 7})  # the table names tasks that are not solved
    result = project.run("suite")
    assert outcomes(result) == {"failed": 2}
    assert sorted(record["task"] for record in project.records) == ["a/sum", "b/sum"]
    assert len({record["rollout_id"] for record in project.records}) == 2
    assert {"a/sum", "b/sum"} <= {cell.strip() for line in result.outlines for cell in line.split("|")}


def test_the_same_task_id_below_two_roots_is_a_collection_error(project: Project, core: FakeCore) -> None:
    project.ini("rollout_tasks = one two")
    for root in ("one", "two"):
        project.task("sum", root=root)
    result = project.run("--harness", "codex", "--continue-on-collection-errors")
    assert outcomes(result) == {"passed": 1, "errors": 1}
    assert f"two/sum: task id 'sum' is already used by {project.path / 'one/sum'}; rename one of the tasks" in text_of(
        result
    )
    assert len(core.sessions) == 1


@pytest.mark.parametrize("options", [(), ("--harness", "default")], ids=["path", "path and option"])
def test_a_task_outside_every_root_runs_if_it_is_named(
    project: Project, core: FakeCore, options: tuple[str, ...]
) -> None:
    project.task("mine", root="elsewhere", files={"test_x.py": "raise SystemExit('imported')"})
    result = project.run("elsewhere/mine", *options)
    assert outcomes(result) == {"passed": 1}, text_of(result)
    assert [record["task"] for record in project.records] == ["elsewhere/mine"]
    assert outcomes(project.run("elsewhere/mine/instruction.md::default-default-0")) == {"passed": 1}


def test_a_task_outside_the_rootdir_runs_if_it_is_named(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    project.ini()
    project.task("mine", root=str(outside))
    assert outcomes(project.run(str(outside / "mine"), "--rootdir", str(project.path))) == {"passed": 1}


def test_an_option_without_any_tasks_folder_is_a_usage_error(project: Project) -> None:
    project.unit_tests()
    assert "no tasks" in usage_error(project.run("--harness", "codex"))
    assert outcomes(project.run("tests", "--harness", "codex")) == {"passed": 2}


INSIDE = [
    "tasks/a/files",
    "tasks/a/files/test_x.py",
    "tasks/a/files/test_x.py::test_y",
    "tasks/a/expected.json",
    "tasks/a/x/y",
]


@rows("argument", INSIDE)
def test_a_path_inside_a_task_is_a_usage_error(project: Project, argument: str) -> None:
    project.task(
        "a", files={"test_x.py": "raise SystemExit('imported')", "conftest.py": "raise SystemExit('imported')"}
    )
    line = usage_error(project.run(argument))
    assert line.endswith(
        f"is inside a task folder, which contains no tests; pass the task instead: {project.path / 'tasks/a'}"
    )


def test_pytest_run_inside_a_task_imports_nothing_of_it(project: Project) -> None:
    """Even if the files look like a project or a task."""
    files = {
        "conftest.py": "raise SystemExit('imported')",
        "pytest.ini": "[pytest]",
        "instruction.md": "",
        "expected.json": "",
    }
    folder = project.task("a", files=files)
    for cwd in (folder / "files", folder):
        result = project.run_apart(cwd=cwd)
        assert "imported" not in text_of(result)
        assert len(node_ids(result)) == 0
    assert "is inside a task folder" in usage_error(project.run_apart(cwd=folder / "files"))


def test_linked_tasks_run_once_and_loops_end(project: Project, core: FakeCore) -> None:
    project.task("t1")
    project.task("outside", root="elsewhere")
    tasks = project.path / "tasks"
    (tasks / "round").symlink_to(tasks)
    (tasks / "t3").symlink_to("t1")
    (tasks / "linked").symlink_to(project.path / "elsewhere/outside")
    (project.path / "elsewhere/back").symlink_to(project.path / "elsewhere")
    (tasks / "far").symlink_to(project.path / "elsewhere")
    result = project.run("tasks", "-W", "always")
    assert outcomes(result) == {"passed": 3, "warnings": 3}
    assert sorted(record["task"] for record in project.records) == ["far/outside", "linked", "t1"]
    assert f"{tasks / 't3'} is left out: it is a link to {tasks / 't1'}, which is collected there" in text_of(result)


def test_a_link_to_a_task_that_is_named_is_another_task(project: Project) -> None:
    project.task("t1")
    (project.path / "tasks/t3").symlink_to("t1")
    assert outcomes(project.run("tasks/t3", "tasks/t1")) == {"passed": 2}
    assert sorted(record["task"] for record in project.records) == ["t1", "t3"]


def test_other_tests_keep_their_order_and_fixtures(project: Project) -> None:
    project.write(
        "tests/test_order.py",
        """
import pytest
log = []

@pytest.fixture(scope="session")
def shared():
    log.append("up")
    yield
    print("log:", log + ["down"])

def test_one(shared): log.append(1)
def test_two(shared): log.append(2)
def test_three(shared): log.append(3)
""",
    )
    project.task("a")
    result = project.run("tests", "tasks", "--samples", "2", "-s")
    assert outcomes(result) == {"passed": 5}
    assert "log: ['up', 1, 2, 3, 'down']" in text_of(result)


def test_a_project_that_is_reached_through_a_link_runs(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.task("a")
    link = tmp_path_factory.mktemp("links") / "project"
    link.symlink_to(project.path)
    assert outcomes(project.run_apart("tasks", cwd=link)) == {"passed": 1}
