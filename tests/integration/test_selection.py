"""Node ids, and every way to choose among rollouts."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, node_ids, outcomes, text_of
from tests.support.fake_core import FakeCore, Script

ODD_MODELS = [
    "openai/gpt-5:free",
    "a[b]",
    "my model (v2)",
    "not",
    "a and b",
    "../../x",
    "m#1",
    "a::b",
    "x|y",
    "é",
    "a/b",
    "a-b",
    "CON",
]


@pytest.fixture
def two(project: Project) -> Project:
    project.task("sales")
    project.task("logins", yaml="tags: [security, slow-one]")
    return project


def listed(project: Project, *args: str) -> list[str]:
    return [line.replace("/instruction.md", "") for line in node_ids(project.run("--collect-only", "-q", *args))]


MATRIX = ("--harness", "codex", "--harness", "claude_sdk", "--samples", "2")


def test_node_ids_name_task_harness_model_and_sample(two: Project) -> None:
    assert node_ids(two.run("tasks", *MATRIX, "--model", "m-1", "--collect-only", "-q")) == [
        f"tasks/{task}/instruction.md::{harness}-m-1-{sample}"
        for task in ("logins", "sales")
        for harness in ("codex", "claude_sdk")
        for sample in (0, 1)
    ]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("-k", "sales and codex"), ["tasks/sales::codex-default-0", "tasks/sales::codex-default-1"]),
        (("-k", "codex-default-1"), ["tasks/logins::codex-default-1", "tasks/sales::codex-default-1"]),
        (
            ("-m", "rollout(sample=0, harness='codex')"),
            ["tasks/logins::codex-default-0", "tasks/sales::codex-default-0"],
        ),
        (("-m", "rollout(task='sales', sample=1)", "-k", "codex"), ["tasks/sales::codex-default-1"]),
        (("-m", "security", "-k", "claude_sdk-default-0"), ["tasks/logins::claude_sdk-default-0"]),
        (("-m", "slow-one and rollout(sample=1)", "-k", "codex"), ["tasks/logins::codex-default-1"]),
        (("-k", "security and codex-default-0"), ["tasks/logins::codex-default-0"]),
        (
            ("--rollout-task", "sales", "-k", "codex", "--deselect", "tasks/sales/instruction.md::codex-default-0"),
            ["tasks/sales::codex-default-1"],
        ),
        (("-k", "nothing"), []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_rollouts_are_selected_by_k_m_and_paths(two: Project, args: tuple[str, ...], expected: list[str]) -> None:
    assert listed(two, *MATRIX, *args) == expected


def test_the_option_task_selects_by_exact_id(project: Project) -> None:
    for name in ("sum", "sum-2", "sql/sum"):
        project.task(name)
    assert listed(project, "--rollout-task", "sum") == ["tasks/sum::default-default-0"]
    assert listed(project, "--rollout-task", "sql/sum", "--rollout-task", "sum-2") == [
        "tasks/sql/sum::default-default-0",
        "tasks/sum-2::default-default-0",
    ]


def test_models_with_any_name_have_unique_node_ids(project: Project, core: FakeCore) -> None:
    project.task()
    models = [part for model in ODD_MODELS for part in ("--model", model)]
    ids = node_ids(project.run("tasks", "--harness", "codex", *models, "--collect-only", "-q"))
    assert len(set(ids)) == len(ODD_MODELS)
    for node_id in ids:
        assert re.fullmatch(r"tasks/sum/instruction\.md::codex-[A-Za-z0-9._-]+-0", node_id)
    for model, node_id in zip(ODD_MODELS, ids, strict=True):
        slug = node_id.rpartition("::")[2]
        assert listed(project, "tasks", "--harness", "codex", *models, "-k", slug) == [f"tasks/sum::{slug}"]
        assert listed(project, node_id, "--harness", "codex", "--model", model) == [f"tasks/sum::{slug}"]
    result = project.run(
        "tasks", "--harness", "codex", *models, "-m", "rollout(sample=0)", "--rollout-concurrency", "8"
    )
    assert outcomes(result) == {"passed": len(ODD_MODELS)}
    assert sorted(session.body["agent"]["model"] for session in core.sessions.values()) == sorted(ODD_MODELS)
    assert sorted(record["model"] for record in project.records) == sorted(ODD_MODELS)
    assert [path.parent for path in project.results] == [project.path / "runs"]


def test_a_rollout_is_selected_by_the_printed_node_id(two: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=WRONG if body["metadata"]["agent"].startswith("codex-a-b-") else RIGHT)
    args = ("--harness", "codex", "--model", "a[b]", "--model", "m")
    for workers in ((), ("-n", "2")):
        result = two.run("tasks", *args, *workers)
        printed = [line.split(" ")[1] for line in result.outlines if line.startswith("FAILED ")]
        assert len(printed) == 2, text_of(result)
        before = len(core.sessions)
        assert outcomes(two.run(printed[0], *args, *workers)) == {"failed": 1}
        assert len(core.sessions) == before + 1


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_lf_runs_exactly_what_failed(two: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    two.unit_tests()
    args = ("tests", "tasks", "--harness", "codex", "--model", "a[b]", "--model", "m", "--samples", "2", *workers)
    core.script = lambda body: Script(
        answer=WRONG if body["metadata"]["task"] == "sales" and body["metadata"]["sample"] == "1" else RIGHT
    )
    assert outcomes(two.run(*args)) == {"failed": 2, "passed": 8}
    core.script = lambda body: Script(answer=RIGHT)
    before = len(core.sessions)
    result = two.run(*args, "--lf")
    assert outcomes(result)["passed"] == 2, text_of(result)
    again = list(core.sessions.values())[before:]
    assert [(session.metadata["task"], session.metadata["sample"]) for session in again] == [("sales", "1")] * 2


@pytest.mark.parametrize("name", ["a[b]", "a::b", "a\\x41", "in[x]/a"])
def test_a_path_that_pytest_can_not_select_is_a_collection_error(two: Project, core: FakeCore, name: str) -> None:
    folder = two.task(name)
    result = two.run("tasks", "--continue-on-collection-errors")
    assert outcomes(result) == {"passed": 2, "errors": 1}, text_of(result)
    assert f"{folder}: pytest can't select a path that contains " in text_of(result)


def test_tags_are_markers_even_when_markers_are_strict(two: Project) -> None:
    two.ini("addopts = --strict-markers")
    assert listed(two, "tasks", "-m", "security") == ["tasks/logins::default-default-0"]
    assert "security: tag of a task" not in text_of(two.run("--markers"))


def test_a_project_can_register_a_tag_as_a_marker(two: Project) -> None:
    """`--strict-markers` asks for it, and the description stays the project's."""
    two.ini("addopts = --strict-markers\nmarkers = security(level): about logins")
    assert listed(two, "tasks", "-m", "security") == ["tasks/logins::default-default-0"]
    assert "about logins" in text_of(two.run("--markers"))


@pytest.mark.parametrize("tag", ["slow", "skipif", "rollout"])
def test_a_tag_with_the_name_of_a_plugin_s_marker_is_a_collection_error(
    project: Project, core: FakeCore, tag: str
) -> None:
    """It would do to the task's rollouts what the plugin does to tests."""
    project.write("conftest.py", "def pytest_configure(config): config.addinivalue_line('markers', 'slow: takes long')")
    project.task("a", yaml=f"tags: [{tag}]")
    project.task("b")
    result = project.run("tasks", "--continue-on-collection-errors")
    assert outcomes(result) == {"passed": 1, "errors": 1}
    assert re.search(rf"tasks/a/task\.yaml.* '{tag}' is a pytest marker", text_of(result))
    assert [session.metadata["task"] for session in core.sessions.values()] == ["b"]


def test_the_marker_rollout_has_exact_values(project: Project) -> None:
    project.task()
    project.write(
        "conftest.py",
        """
def pytest_collection_modifyitems(items):
    for item in items:
        print("mark:", sorted(item.get_closest_marker("rollout").kwargs.items()))
""",
    )
    result = project.run("tasks", "--harness", "codex", "--model", "a/b", "--collect-only")
    expected = [("agent", "codex-a-b-c14cdd"), ("harness", "codex"), ("model", "a/b"), ("sample", 0), ("task", "sum")]
    assert f"mark: {expected}" in text_of(result)


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_tasks_outside_the_rootdir_have_different_node_ids(project: Project, workers: tuple[str, ...]) -> None:
    for name in ("a", "b"):
        project.task(name)
    project.write("ci/pytest.ini", "[pytest]\n")
    result = project.run("-c", "ci/pytest.ini", "tasks/a", "tasks/b", "--rollout-out", "rows.jsonl", *workers)
    assert outcomes(result) == {"passed": 2}, text_of(result)
    rows = [json.loads(line) for line in (project.path / "rows.jsonl").read_text().splitlines()]
    assert sorted(row["task"] for row in rows) == ["../tasks/a", "../tasks/b"]


def test_a_task_in_a_folder_of_norecursedirs_gives_a_warning(project: Project) -> None:
    """By its ini key norecursedirs; a task is not silently absent from a run, or from a check."""
    project.task("a")
    project.task("build")
    project.task("dist/b")
    project.write("tasks/venv/lib/x.py", "")
    result = project.run("tasks")
    assert outcomes(result) == {"passed": 1, "warnings": 2}
    for folder in ("build", "dist"):
        assert f"{folder} is left out: the ini key norecursedirs has {folder}; rename the folder" in text_of(result)
    assert "venv" not in text_of(result)
    assert "rollouts: 1 task (2 more left out by norecursedirs) in tasks, not requested" in text_of(project.run())
    named = project.run("tasks/build", "tasks/dist/b")
    assert outcomes(named) == {"passed": 2}, "a folder that is named is collected"
    assert "left out" not in text_of(named)
    checked = subprocess.run(
        [sys.executable, "-m", "pytest_core_rollouts", "check", "--core", "none"],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1
    message = (
        "error: the ini key norecursedirs has build, so pytest leaves out this folder and the tasks in it; rename it"
    )
    assert f"tasks/build:1: {message} [load]" in checked.stdout
