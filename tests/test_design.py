"""The arrows of docs/design.md: who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_core_rollouts"
FILES = sorted(PACKAGE.rglob("*.py"))
KNOW_PYTEST = {"plugin.py", "hookspecs.py", "options", "collecting", "running", "checking"}
ALONE = {
    "agents_api": {"strict_json", "text"},
    "embedded": {"secret_values"},
    "grading": {"_deprecated", "embedded", "strict_json"},
}
"""Parts that import nothing else of ours, but for what stands here."""


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imports(path: Path) -> Iterator[str]:
    """The full names of the modules that a file imports, wherever in it; names imported from one count as well."""
    here = ("pytest_core_rollouts", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def users_of(library: str) -> set[str]:
    return {part(path) for path in FILES if any(name.split(".")[0] == library for name in imports(path))}


def test_pytest_is_known_above_and_httpx_in_one_place() -> None:
    assert users_of("pytest") == KNOW_PYTEST
    assert users_of("httpx") == {"agents_api"}
    assert users_of("httpcore") == set()
    assert users_of("h11") == {"embedded"}


@pytest.mark.parametrize("name", ALONE)
def test_parts_that_stand_alone(name: str) -> None:
    files = [path for path in FILES if part(path) == name]
    assert files
    ours = {found for path in files for found in imports(path) if found.startswith("pytest_core_rollouts")}
    others = {found.split(".")[1] for found in ours} - {name}
    assert others == ALONE[name]
