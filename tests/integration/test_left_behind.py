"""What a sandbox or a Core leaves never runs on the host: not by a bare `pytest`, not by git, not by its name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import RIGHT, Project, node_ids, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Script
from tests.support.left_behind import CONTROL_NAMES, CORE_PATHS, MARK, harmful_files, solution

OFF = ("-p", "no:core-rollouts")
BARE = ((), (".",), ("--collect-only",), ("-n", "2"), ("--doctest-glob=*",))
YAML = "outputs: {files: ['**'], max_total_bytes: 10000000}\n"


@pytest.fixture
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


def paths_of(project: Project) -> set[str]:
    """Every path in the project, except the folders of pytest and git."""
    found = (path.relative_to(project.path) for path in project.path.rglob("*"))
    ours = (path for path in found if not {".pytest_cache", "__pycache__", ".git"} & set(path.parts))
    return {path.as_posix() for path in ours}


def kept_folders(project: Project) -> Iterator[Path]:
    """Each folder that the run made, outermost first."""
    runs = project.path / "runs"
    yield from (runs, *sorted(path for path in runs.rglob("*") if path.is_dir()))


def assert_named_by_rollouts(project: Project, before: set[str]) -> None:
    """The run's files are named by what the user chose, by rollout ids, and by numbers; none can be executed."""
    ids = {row["rollout_id"] for row in project.records}
    runs = {row["run_id"] for row in project.records}
    own = "|".join(map(re.escape, ids))
    run = "|".join(map(re.escape, runs))
    allowed = rf"runs(/({run})\.jsonl|/\.({run})\.files(/({own})(/a\d+(/\d{{4}}|\.items\.jsonl)?)?)?)?|named-by-me\.\w+"
    new = paths_of(project) - before
    assert [path for path in new if not re.fullmatch(allowed, path)] == []
    assert not [path for path in new if MARK in path]
    modes = {path: (project.path / path).stat().st_mode for path in new if (project.path / path).is_file()}
    assert [path for path, mode in modes.items() if mode & 0o111] == []
    assert sum("/a1/" in path for path in new) > 30


def assert_nothing_runs(project: Project, canaries: Path, *, commands: Iterable[tuple[str, ...]]) -> None:
    """After the run: bare pytest and git, in the project and in each folder that the run made."""
    project.write("tests/test_honest.py", "def test_honest():\n    pass\n")
    for plugin in ((), OFF):
        for args in commands:
            result = project.run_apart(*args, *plugin)
            assert result.ret == 0, text_of(result)
            assert "1 passed" in text_of(result) or "1 test collected" in text_of(result), text_of(result)
            assert MARK not in text_of(result)
    *_, deepest = kept_folders(project)
    assert project.run_apart(*OFF, cwd=deepest).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    subprocess.run(["git", "init", "-q", project.path], check=True)
    for folder in (project.path, *kept_folders(project)):
        shown = git(folder, "rev-parse", "--show-toplevel")
        assert Path(shown.strip()) == project.path, folder
        git(folder, "status", "--untracked-files=all")
    git(project.path, "add", "-A")
    assert list(canaries.iterdir()) == []


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("no_core")
def test_no_file_that_an_agent_left_runs_on_the_host(project: Project, canaries: Path) -> None:
    files = harmful_files(canaries)
    assert len(files) >= 30
    assert_harmful(project.path / "proof", canaries)
    task = project.task("sum", yaml=YAML)
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text(solution({**files, **dict.fromkeys(CONTROL_NAMES, b"x")}))
    before = paths_of(project)
    args = ("--rollout-html", "named-by-me.html", "--rollout-report", "named-by-me.md", "--junitxml", "named-by-me.xml")
    result = project.run_apart("tasks", "--core", "embedded", "--rollout-items", "files", *args)
    assert outcomes(result) == {"failed": 1}, text_of(result)
    (row,) = project.records
    assert {one["path"] for one in row["outputs"]} == files.keys()
    assert_named_by_rollouts(project, before)
    assert_nothing_runs(project, canaries, commands=BARE)


def assert_harmful(folder: Path, canaries: Path) -> None:
    """The files do harm where they lie under their own names: else the tests would show nothing."""
    for path, content in harmful_files(canaries).items():
        if path == "pytest.py" or path.endswith((".ini", ".cfg", ".toml")):  # with these pytest itself would not start
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    subprocess.run([sys.executable, "-m", "pytest", *OFF], cwd=folder, capture_output=True, check=False)
    git_dir = {**os.environ, "GIT_DIR": str(folder / ".git")}
    subprocess.run(["git", "status"], cwd=folder, env=git_dir, capture_output=True, check=False)
    made = {path.name for path in canaries.iterdir()}
    assert {"python-0", "git"} <= made, made
    shutil.rmtree(folder)
    for canary in canaries.iterdir():
        canary.unlink()


def test_no_file_that_a_core_names_runs_on_the_host(project: Project, core: FakeCore, canaries: Path) -> None:
    files = {**harmful_files(canaries), **dict.fromkeys(CORE_PATHS, b"x")}
    outputs = {f"/workspace/outputs/{path}": content for path, content in files.items()}
    items = [{"id": f"{MARK}/../conftest.py", "type": MARK, "text": MARK}]
    core.script = lambda body: Script(answer=RIGHT, artifacts=outputs, items=items)
    project.task("sum", yaml=YAML)
    before = paths_of(project)
    result = project.run_apart("tasks", "--rollout-items", "files", "--rollout-html", "named-by-me.html")
    assert outcomes(result) == {"passed": 1}, text_of(result)
    (row,) = project.records
    assert {one["path"] for one in row["outputs"]} == files.keys() - set(CORE_PATHS)
    assert_named_by_rollouts(project, before)
    assert_nothing_runs(project, canaries, commands=BARE[:1])


RUN = "20261129T195937Z-c885"


@pytest.mark.parametrize("name", [f"{RUN}.files", "mine.files", f".{RUN}.files", ".mine.files"])
def test_folders_of_kept_files_are_refused_under_any_name(project: Project, canaries: Path, name: str) -> None:
    """Earlier versions kept files under the agent's names, which pytest would import: the plugin keeps it out."""
    project.unit_tests()
    project.task()
    project.ini("norecursedirs = nothing", "testpaths = tests runs")  # pytest's own default leaves dot folders out
    folder = f"runs/{name}/{RUN}.t.codex-default.0/a1"
    names = ("conftest.py", "__init__.py", "test_x.py", "test_sub/conftest.py", "task/instruction.md", "task/grader.py")
    for path in names:
        project.write(f"{folder}/{path}", harmful_files(canaries)["conftest.py"])
    (project.path / "runs/link").symlink_to(project.path / folder)
    assert outcomes(project.run()) == outcomes(project.run(".")) == {"passed": 2}
    assert len(node_ids(project.run("--collect-only", "-q"))) == 2
    assert outcomes(project.run(".", "--samples", "1")) == {"passed": 3}, "asked for rollouts"
    for path in (
        f"runs/{name}",
        folder,
        f"{folder}/test_x.py::test_it",
        f"{folder}/task",
        "runs/link",
        "runs/link/test_x.py",
    ):
        for args in ((), ("--samples", "1")):
            error = usage_error(project.run(path, *args))
            assert f"is inside {project.path}/runs/{name}, which holds what agents left" in error
    error = usage_error(project.run_apart(cwd=project.path / folder))
    assert "which holds what agents left" in error
    assert list(canaries.iterdir()) == []


def test_a_folder_of_tests_may_have_the_name_of_kept_files(project: Project) -> None:
    project.unit_tests("mine.files/test_unit.py")
    assert outcomes(project.run()) == {"passed": 2}
    assert outcomes(project.run("mine.files/test_unit.py")) == {"passed": 2}


def test_missing_kept_files_are_reported_with_the_setting_that_uploads_them(project: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=RIGHT, artifacts={"/workspace/outputs/a": b"A"})
    project.task("sum", yaml="outputs: [a]")
    project.run("tasks", "--rollout-items", "files", "--rollout-out", "r.jsonl")
    (project.path / ".r.files").rename(project.path / "elsewhere")
    project.task("sum", expected={"x": 3}, yaml="outputs: [a]")
    folder, rows = project.path / ".r.files", project.path / "r.jsonl"
    lost = f"{folder}: missing, but rows of {rows} name it; put .r.files back next to r.jsonl"
    hint = " (a CI's upload leaves it out without `include-hidden-files: true`)"
    for verb in (("report", "r.jsonl", "--html", "r.html"), ("export", "r.jsonl", "--format", "messages")):
        command = [sys.executable, "-m", "pytest_core_rollouts", *verb]
        done = subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=False)
        assert done.returncode == (0 if verb[0] == "report" else 4), done.stderr
        assert ".r.files: missing, but rows of r.jsonl name it" in done.stderr
        assert hint in done.stderr
    assert ".r.files is missing (a CI's upload leaves it out" in done.stderr
    replayed = project.run("tasks", "--rollout-replay", "r.jsonl", "--rollout-out", "again.jsonl")
    assert outcomes(replayed) == {"errors": 1}
    assert lost + hint in text_of(replayed)
    resumed = project.run("tasks", "--rollout-resume", "r.jsonl")
    assert f"resume: {lost}{hint}" in resumed.outlines
    assert outcomes(resumed) == {"failed": 1}, "it ran again"
