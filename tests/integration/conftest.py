"""A project with tasks, and a Core for it on loopback: pytest is run in there as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_core import FakeCore, Script

for name in (
    "httpcore",
    "httpx",
    "yaml",
    "pytest_core_rollouts.options.agent_file",
    "pytest_core_rollouts.running.session_plugin",
):
    import_module(name)  # an inner run in this process would import it, and lose it again, each time

RIGHT = b'{"x": 1}'
WRONG = b'{"x": 2}'

OURS = ("OPENAI_", "MODEL_", "GITHUB_", "PYTEST_", "PY_COLORS", "FORCE_COLOR", "COLUMNS")
"""How the environment variables begin that would change what an inner run does."""


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """A Core whose agent answers `{"x": 1}` at once. Every Session must be deleted in the end."""
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as running:
        yield running
        left = [session.id for session in running.sessions.values() if not session.deleted]
        assert not left, "Sessions were left behind"


class Project:
    """A folder to run pytest in, with OPENAI_BASE_URL and OPENAI_API_KEY set to the fixture's Core."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path

    def write(self, path: str, content: str | bytes = "") -> Path:
        """A file, and the folders to it."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def ini(self, *lines: str) -> None:
        self.write("pytest.ini", "\n".join(("[pytest]", *lines, "")))

    def task(
        self,
        name: str = "sum",
        *,
        root: str = "tasks",
        expected: Any = {"x": 1},  # noqa: B006 - never changed
        yaml: str | None = None,
        files: Mapping[str, str] = {},
    ) -> Path:
        """A task folder."""
        folder = f"{root}/{name}"
        self.write(f"{folder}/instruction.md", f"Do {name}.\n")
        self.write(f"{folder}/expected.json", json.dumps(expected))
        if yaml is not None:
            self.write(f"{folder}/task.yaml", yaml)
        for path, content in files.items():
            self.write(f"{folder}/files/{path}", content)
        return self.path / folder

    def unit_tests(self, path: str = "tests/test_unit.py") -> None:
        """Two tests that have nothing to do with rollouts."""
        self.write(path, "def test_one():\n    pass\n\ndef test_two():\n    pass\n")

    def run(self, *args: str) -> pytest.RunResult:
        """pytest, within this process."""
        return self.pytester.runpytest_inprocess(*args)

    def run_apart(self, *args: str, cwd: Path | None = None, env: Mapping[str, str] = {}) -> pytest.RunResult:
        """pytest, in its own process."""
        command = [sys.executable, "-m", "pytest", *args]
        done = subprocess.run(
            command, cwd=cwd or self.path, env={**os.environ, **env}, capture_output=True, timeout=600, check=False
        )
        out, err = (text.decode("utf-8", "replace").splitlines() for text in (done.stdout, done.stderr))
        return pytest.RunResult(done.returncode, out, err, 0.0)

    @property
    def results(self) -> list[Path]:
        """The JSONL files of all runs so far, by name."""
        return sorted((self.path / "runs").glob("*.jsonl"))

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows of all runs so far."""
        return [json.loads(line) for path in self.results for line in path.read_bytes().split(b"\n") if line]


@pytest.fixture
def project(pytester: pytest.Pytester, core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in list(os.environ):
        if name.startswith(OURS) and name != "PYTEST_DEBUG_TEMPROOT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:anyio")  # they cost each inner run a second
    monkeypatch.setenv("OPENAI_BASE_URL", core.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", core.api_key)
    return Project(pytester)


@pytest.fixture
def no_core(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Core is configured, and no key."""
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")


def text_of(result: pytest.RunResult) -> str:
    return "\n".join([*result.outlines, *result.errlines])


def usage_error(result: pytest.RunResult) -> str:
    """The one line of a usage error; everything else about it is checked."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text_of(result)
    assert "Traceback" not in text_of(result)
    assert "INTERNALERROR" not in text_of(result)
    errors = [line for line in result.errlines if line.strip()]
    assert len(errors) == 1, errors
    assert errors[0].startswith("ERROR: ")
    return errors[0].removeprefix("ERROR: ")


def node_ids(result: pytest.RunResult) -> list[str]:
    """What `--collect-only -q` lists."""
    return [line for line in result.outlines if "::" in line]


def outcomes(result: pytest.RunResult) -> dict[str, int]:
    return result.parseoutcomes()
