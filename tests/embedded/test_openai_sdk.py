"""The official client, in an environment of its own, drives every route it has in common with the embedded Core."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore

pytestmark = pytest.mark.slow

VERSIONS = ["3.13.0"]


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    """A Python that has the client; its environment is kept between runs, in the temporary folder."""
    package = f"openai=={request.param}"
    name = f"pytest-core-rollouts-openai-{request.param}-py{sys.version_info.major}{sys.version_info.minor}"
    folder = Path(tempfile.gettempdir()) / name
    python = folder / "bin" / "python"
    if not _has(python, request.param):
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", package], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"not installed: {python} -m pip install {package}: {done.stderr.strip()[-300:]}")
    return python


def _has(python: Path, version: str) -> bool:
    if not python.exists():
        return False
    code = f"import openai, sys; sys.exit(openai.__version__ != {version!r})"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def test_the_official_client_is_served(python: Path) -> None:
    core = EmbeddedCore.reserve()
    core.start()
    try:
        script = Path(__file__).with_name("sdk_script.py")
        done = subprocess.run(
            [python, script, core.base_url], input=core.api_key, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("all answers are as")
        assert core.errors() == ""
    finally:
        core.stop()
