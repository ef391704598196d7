"""The official client, in its own environment, uses every route that it and the embedded Core have in common."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore, why_missing
from tests.support.agents import PROTOCOLS
from tests.support.scripted_models import Ask, Fail, Reply, Say, ScriptedModel, Shell, Tool

pytestmark = pytest.mark.slow

NEWEST = "newest"
VERSIONS = ["3.13.0", NEWEST]


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    """A Python that has the client; its environment is kept between runs, in the temporary folder."""
    package = "openai" if request.param == NEWEST else f"openai=={request.param}"
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
    code = f"import openai, sys; sys.exit({version!r} not in (openai.__version__, {NEWEST!r}))"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def _reply(ask: Ask) -> Reply:
    if ask.path.startswith("/refusing"):
        return Fail(401)
    other = Tool("Read", {"file_path": "/workspace/in.txt"}) if ask.is_messages else Shell("exit 4")
    work = Shell("echo out && mkdir -p outputs && touch outputs/answer.json", thought="Hm.", remark="Now.")
    return (work, other, Say("Done."))[ask.step]


def test_official_client_accepts_every_response(python: Path) -> None:
    core = EmbeddedCore.reserve()
    core.start()
    try:
        script = Path(__file__).parents[1] / "support" / "sdk_script.py"
        installed = [harness for harness in PROTOCOLS if why_missing(harness) is None]
        with ScriptedModel(_reply) as model:
            arguments = [core.base_url, model.url, *installed]
            done = subprocess.run(
                [python, script, *arguments], input=core.api_key, capture_output=True, text=True, timeout=180
            )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("all responses are valid")
        assert core.errors() == ""
    finally:
        core.stop()
