"""docs/openai.md: every message is what its command prints, and nothing is sent before it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.integration.conftest import Project, usage_error

TEXT = (Path(__file__).parents[2] / "docs" / "openai.md").read_text()
ERRORS = re.findall(r"^```\n(pytest .*)\n```\n\n```text\nERROR: (.*)\n```$", TEXT, re.MULTILINE)


def test_each_usage_error_of_the_page_is_printed_by_its_command(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "model-key-0123456789")
    monkeypatch.delenv("OPENAI_BASE_URL")
    project.task()
    project.ini()
    printed = {command: usage_error(project.run(*shlex.split(command)[1:])) for command, _ in ERRORS}
    assert printed == dict(ERRORS)
    assert len(ERRORS) == TEXT.count("```text\nERROR")
