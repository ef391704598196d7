"""docs/tasks.md lists every setting, finding and argument of a grader, and its YAML and Python are valid."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_core_rollouts.tasks.grader_file import ARGUMENTS
from pytest_core_rollouts.tasks.strict_yaml import load_yaml
from pytest_core_rollouts.tasks.task_settings import FINDINGS
from pytest_core_rollouts.tasks.task_yaml import RULES
from tests.support.tables import rows

DOC = Path(__file__).parents[2] / "docs" / "tasks.md"
TEXT = DOC.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_page_lists_every_setting_finding_and_argument() -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert {name for name in RULES if f"`{name}:" not in rows} == set()
    assert {name for name in [*FINDINGS, *ARGUMENTS] if f"`{name}`" not in rows} == set()


@rows("block", blocks("yaml"))
def test_yaml_of_the_page_is_valid(block: str) -> None:
    assert load_yaml(Path("task.yaml"), block.encode()).checked(RULES)


@rows("setting", re.findall(r"^\| `([a-z_]+: .+?)` \|", TEXT, re.MULTILINE))
def test_settings_of_the_page_are_valid(setting: str) -> None:
    assert load_yaml(Path("task.yaml"), setting.encode()).checked(RULES)


@rows("block", blocks("python"))
def test_python_of_the_page_compiles(block: str) -> None:
    compile(block, "tasks.md", "exec")
