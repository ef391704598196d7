"""The public names: docs/api.md is current, docs and examples import only them, and old paths still work."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

import pytest_core_rollouts
from pytest_core_rollouts._deprecated import MOVED
from tests.support.generators import DOCS, load_generator
from tests.support.tables import rows

ROOT = DOCS.parent
PACKAGE = "pytest_core_rollouts"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
TASKS = sorted((ROOT / "tasks").rglob("grader.py"))
OLD_PATHS = [(module, name) for module, names in MOVED.items() for name in names]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_generator("generate_api")


def test_api_page_is_current(generator: ModuleType) -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert page == generator.api_page(), "run `python docs/generate_api.py`"


def test_api_page_has_a_section_for_every_public_name(generator: ModuleType) -> None:
    named = [name for names in generator.SECTIONS.values() for name in names]
    assert sorted(named) == pytest_core_rollouts.__all__


def python_sources() -> Iterator[tuple[str, str]]:
    for path in (*EXAMPLES, *TASKS):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for page in PAGES:
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)):
            yield f"{page.relative_to(ROOT)}:{number}", block


SOURCES = dict(python_sources())


def test_docs_and_examples_import_only_public_names() -> None:
    assert SOURCES
    private = {where: private_imports(source) for where, source in SOURCES.items()}
    assert {where: names for where, names in private.items() if names} == {}


def private_imports(source: str) -> list[str]:
    """What `source` imports from the package, except for its public names."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith(f"{PACKAGE}.")]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            public = pytest_core_rollouts.__all__ if node.module == PACKAGE else []
            found += [f"{node.module}.{name.name}" for name in node.names if name.name not in public]
    return found


def test_docs_name_no_import_path_below_the_package() -> None:
    for page in PAGES:
        if page.name != "CHANGELOG.md":  # it lists the old paths
            assert re.findall(r"from `?pytest_core_rollouts\.\w+", page.read_text(encoding="utf-8")) == [], page


def test_public_names_have_docstrings() -> None:
    faults = {name: docstring_faults(name) for name in pytest_core_rollouts.__all__}
    assert {name: found for name, found in faults.items() if found} == {}


def docstring_faults(name: str) -> list[str]:
    value = getattr(pytest_core_rollouts, name)
    text = inspect.getdoc(value) or ""
    faults = [] if text.split("\n", 1)[0].endswith((".", ":")) else ["its first line is not a sentence"]
    if inspect.isclass(value):
        faults += ["it is inherited"] if text == inspect.getdoc(value.__base__) else []
        faults += ["dataclasses wrote it"] if text.startswith(f"{name}(") else []
    return faults


RAISING = {
    "Engine": "Raises ",
    "Task": "Raises ",
    "load_task": "Raises TaskError",
    "load_tasks": "Raises TaskError",
    "read_records": "RecordsError",
    "run_in_sandbox": "Raises ",
}


@rows("name", RAISING)
def test_docstring_says_what_it_raises(name: str) -> None:
    assert RAISING[name] in (inspect.getdoc(getattr(pytest_core_rollouts, name)) or "")


@rows("name", ["submit", "asubmit", "submit_rollouts", "prepare"])
def test_engine_methods_say_what_they_raise(name: str) -> None:
    text = inspect.getdoc(getattr(pytest_core_rollouts.Engine, name)) or ""
    assert re.search(r"Raises |`submit`", text)


@rows(("module", "name"), OLD_PATHS, ids=lambda part: part.removeprefix(f"{PACKAGE}."))
def test_old_import_path_warns_and_names_the_new_one(module: str, name: str) -> None:
    old = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=re.escape(f"use `from pytest_core_rollouts import {name}`")):
        value = getattr(old, name)
    assert value is getattr(pytest_core_rollouts, name)


@rows("module", MOVED)
def test_old_module_has_no_other_names(module: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = importlib.import_module(module).nothing


def test_changelog_lists_the_old_import_paths() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [module for module in MOVED if f"`{module}`" not in changelog] == []
