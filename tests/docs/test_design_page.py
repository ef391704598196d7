"""docs/design.md names files, functions and classes that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_core_rollouts"
TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
OF_TASKS = {"grader.py", "files/"}
PATHS = sorted({path for path in re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.py)`", TEXT) if path not in OF_TASKS})
STEPS = re.findall(r"^\| .*?\| `([\w/]+\.py)` \| (.*?) \|$", TEXT, re.MULTILINE)


def test_named_files_exist() -> None:
    assert PATHS
    assert [path for path in PATHS if not ((PACKAGE / path).exists() or (ROOT / path).exists())] == []


def test_named_functions_and_classes_are_in_their_file() -> None:
    assert STEPS
    missing = {path: set(re.findall(r"`(\w+)`", names)) - names_in(PACKAGE / path) for path, names in STEPS}
    assert {path: names for path, names in missing.items() if names} == {}


def names_in(path: Path) -> set[str]:
    """The functions and classes of a module, and the names that it sets at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    constants = {target.id for node in tree.body for target in ast.walk(node) if isinstance(target, ast.Name)}
    return defined | constants


def test_page_describes_the_whole_way() -> None:
    rooms = {path.split("/", 1)[0] for path, _ in STEPS}
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders - rooms == {"checking", "cli"}, "every room is on a rollout's way, except for these"
