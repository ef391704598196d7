"""docs/tasks.md says what is so: every setting and finding is in it, its YAML is taken, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_core_rollouts.tasks.grader_file import ARGUMENTS
from pytest_core_rollouts.tasks.strict_yaml import load_yaml
from pytest_core_rollouts.tasks.task_settings import FINDINGS
from pytest_core_rollouts.tasks.task_yaml import RULES

DOC = Path(__file__).parents[2] / "docs" / "tasks.md"
TEXT = DOC.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_every_setting_finding_and_argument_is_there() -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert {name for name in RULES if f"`{name}:" not in rows} == set()
    assert {name for name in [*FINDINGS, *ARGUMENTS] if f"`{name}`" not in rows} == set()


@pytest.mark.parametrize("block", blocks("yaml"))
def test_its_yaml_is_taken(block: str) -> None:
    assert load_yaml(Path("task.yaml"), block.encode()).checked(RULES)


@pytest.mark.parametrize("setting", re.findall(r"^\| `([a-z_]+: .+?)` \|", TEXT, re.MULTILINE))
def test_its_settings_are_taken(setting: str) -> None:
    assert load_yaml(Path("task.yaml"), setting.encode()).checked(RULES)


@pytest.mark.parametrize("block", blocks("python"))
def test_its_python_compiles(block: str) -> None:
    compile(block, "tasks.md", "exec")


def test_its_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        assert not path or (DOC.parent / path).exists(), target
        assert not anchor or anchor in anchors, target
