"""What is uploaded: built, checked, installed far from the checkout, and used there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.fake_core import FakeCore, Script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GITHUB_", "COLUMNS"))}
    done = subprocess.run(
        command, cwd=cwd, env={**kept, "PYTHONPATH": "", **env}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fresh(folder: Path, *packages: str | Path, python: str | Path = sys.executable) -> Path:
    """The folder of programs of a new environment with these packages."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin" / "pip", "install", "-q", *packages, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was made of it."""
    tools = fresh(tmp_path_factory.mktemp("tools"), "build", "twine")
    folder = tmp_path_factory.mktemp("dist")
    run(tools / "python", "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    run(tools / "twine", "check", "--strict", *folder.iterdir(), cwd=folder)
    again = tmp_path_factory.mktemp("again")
    run(tools / "python", "-m", "build", "--outdir", again, ROOT, cwd=again)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }, "two builds of the same sources are the same files"
    return folder


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = subprocess.run(
        ["git", "ls-files", "pytest_core_rollouts"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert set(sources.stdout.split()) <= names, "report templates and py.typed too"
    others = {name for name in names if not name.startswith("pytest_core_rollouts/")}
    assert all(re.match(r"pytest_core_rollouts-[^/]+\.dist-info/", name) for name in others), others


def test_the_sdist_has_what_its_tests_need(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for path in (
        "README.md",
        "README.zh.md",
        "LICENSE",
        "docs/report.png",
        "docs/report-dark.png",
        "examples/README.md",
        "noxfile.py",
        "mkdocs.yml",
    ):
        assert path in names
    assert "tests/test_package.py" in names
    assert "tasks/sales-by-region/expected.json" in names


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_an_installed_wheel_runs_a_task(built: Path, tmp_path: Path, version: str) -> None:
    found = [path for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python3") if path.exists()]
    python = str(found[0]) if found else shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"requires Python {version}: install it with pyenv or your system")
    [wheel] = built.glob("*.whl")
    programs = fresh(tmp_path / "env", wheel, python=python)
    project = tmp_path / "project"
    task = project / "tasks" / "sum"
    task.mkdir(parents=True)
    (task / "instruction.md").write_text("Write /workspace/outputs/answer.json with the key `x`.\n")
    (task / "expected.json").write_text('{"x": 1}')
    with FakeCore(script=lambda body: Script(answer=b'{"x": 1}')) as core:
        env = {"OPENAI_BASE_URL": core.base_url, "OPENAI_API_KEY": core.api_key}
        printed = run(
            programs / "pytest", "tasks", "--harness", "codex", "--rollout-out", "r.jsonl", cwd=project, **env
        )
    assert "1 passed" in printed
    assert "| codex   |    1/1 |       1.000 |" in printed
    report = run(programs / "core-rollouts", "report", "r.jsonl", cwd=project)
    assert "| codex" in report
    assert run(programs / "python", "-m", "pytest_core_rollouts", "report", "r.jsonl", cwd=project) == report
    refused = subprocess.run(
        [programs / "pytest", "tasks", "--core", "embedded", "--harness", "nop"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR, refused.stdout + refused.stderr
    assert "pip install 'pytest-core-rollouts[embedded]'" in refused.stderr


def test_the_wheel_s_version_is_the_package_s(built: Path) -> None:
    import pytest_core_rollouts

    assert {path.name.split("-")[1].removesuffix(".tar.gz") for path in built.iterdir()} == {
        pytest_core_rollouts.__version__
    }
