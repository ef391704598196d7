"""The official client, in its own environment, uses every route that it and the embedded Core have in common."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.launch import EmbeddedCore, why_missing
from tests.support.agents import PROTOCOLS
from tests.support.openai_client import NEWEST, python_with_client
from tests.support.scripted_models import Ask, Fail, Reply, Say, ScriptedModel, Shell, Tool

pytestmark = pytest.mark.slow

VERSIONS = ["3.13.0", NEWEST]


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return python_with_client(request.param)


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
