"""Writes `api.md` from the docstrings of the public names: run `python docs/generate_api.py` after a change."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest_core_rollouts

HEAD = """\
# API

Made from the docstrings by `docs/generate_api.py`.

Import these names from `pytest_core_rollouts`.
Everything else in the package is private and may change in any version.
Words such as rollout, attempt and group are explained in the [glossary](glossary.md).

"""

SECTIONS = {
    "Tasks": ("Task", "load_task", "load_tasks", "InputFile", "Network", "Xfail", "TaskError"),
    "Agents and rollouts": ("Agent", "load_harness", "HarnessFile", "HarnessError", "Rollout", "MatrixError"),
    "Running": ("Engine", "Run", "Group", "Outcome", "RunEnded", "CoreError", "CoreUnreachable"),
    "Grading": ("Answer", "Grade", "Reason", "Tolerance", "grade_answer", "run_in_sandbox", "GraderFailed"),
    "Results": ("RolloutRecord", "read_records", "RecordsError"),
    "Training": ("advantages", "sequences", "Sequence", "CaptureError"),
}
"""The order of the page. A name that is not here stands under "Others"."""


def api_page() -> str:
    """Return the page as Markdown."""
    named = {name for names in SECTIONS.values() for name in names}
    others = tuple(name for name in pytest_core_rollouts.__all__ if name not in named)
    sections = {**SECTIONS, **({"Others": others} if others else {})}
    return HEAD + "\n".join(
        f"## {title}\n\n" + "\n".join(_entry(name) for name in names) for title, names in sections.items()
    )


def _entry(name: str) -> str:
    value = getattr(pytest_core_rollouts, name)
    parts = [f"### {name}\n", _code(_signature(name, value)), _docstring(value)]
    if inspect.isclass(value):
        parts += [_fields(value), *(_method(name, method, at) for method, at in _methods(value))]
    return "\n".join(part for part in parts if part)


def _signature(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, (BaseException, enum.Enum)):
        return f"class {name}({value.__bases__[0].__name__})"
    try:
        signature = inspect.signature(value)
    except ValueError:
        return f"class {name}"
    kind = "class " if inspect.isclass(value) else "async " * inspect.iscoroutinefunction(value)
    if inspect.isclass(value):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    return kind + _wrapped(name, signature)


def _wrapped(name: str, signature: inspect.Signature) -> str:
    """Return the signature on one line if it fits, else with a line for each parameter."""
    text = _plain(f"{name}{signature}")
    if len(text) <= 100:
        return text
    lines, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        lines.append(_plain(f"    {parameter},"))
    returned = signature.return_annotation
    end = "" if returned is inspect.Signature.empty else f" -> {_plain(str(returned))}"
    return "\n".join([f"{name}(", *lines, f"){end}"])


def _plain(text: str) -> str:
    """Remove quotes around annotations, names of modules, and addresses of default values."""
    text = re.sub(r"<factory>", "...", text)
    text = re.sub(r"<(?:function|class|object)[^>]*>", "...", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z]\w*)", "", text)


def _docstring(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return f"{_markdown(text)}\n" if text else ""


def _markdown(text: str) -> str:
    """Return a docstring as Markdown, one sentence a line; indented blocks become code."""
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            blocks.append(f"```text\n{textwrap.dedent(block)}\n```")
            continue
        items = re.split(r"\n(?=[*-] )", block)
        blocks.append("\n".join(_sentences(re.sub(r"\s*\n\s*", " ", item)) for item in items))
    return "\n\n".join(blocks)


def _sentences(text: str) -> str:
    indent = "  " if text.startswith(("* ", "- ")) else ""
    return re.sub(r"(?<=[a-z0-9`)\]][.]) (?=[A-Z`])", f"\n{indent}", text)


def _fields(value: type) -> str:
    if not dataclasses.is_dataclass(value):
        return ""
    documented = _comments(value)
    if not documented:
        return ""
    rows = [
        f"| `{field.name}` | `{_plain(str(field.type)).replace('|', chr(92) + '|')}` | {documented.get(field.name, '')} |"
        for field in dataclasses.fields(value)
        if not field.name.startswith("_") and documented.get(field.name)
    ]
    return "\n".join(["| field | type | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def _comments(value: type) -> dict[str, str]:
    """Return what is known of each field: its column's, the docstring under it, or the comment behind it."""
    columns = {
        field.name: field.metadata["column"] for field in dataclasses.fields(value) if "column" in field.metadata
    }
    if columns:
        return {name: column.doc.replace("|", "\\|") for name, column in columns.items()}
    source = inspect.getsource(value)
    behind = re.finditer(r"^    (\w+): [^\n]*?  # ([^\n]*)$", source, re.MULTILINE)
    below = re.finditer(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return {one[1]: re.sub(r"\s*\n\s*", " ", one[2]).replace("|", "\\|") for one in (*behind, *below)}


def _methods(value: type) -> Iterator[tuple[str, Any]]:
    """Yield public methods and properties that the class defines itself."""
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if isinstance(function, property) or inspect.isfunction(function):
            yield name, member


def _method(owner: str, name: str, member: Any) -> str:
    if isinstance(member, property):
        hint = typing.cast("Any", member.fget).__annotations__.get("return", "")
        return f"#### {owner}.{name}\n\n{_code(_plain(f'{name}: {hint}'))}\n{_docstring(member)}"
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    signature = inspect.signature(function)
    if not isinstance(member, staticmethod):
        _, *rest = signature.parameters.values()
        signature = signature.replace(parameters=rest)
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    shown = f"{owner}.{name}" if isinstance(member, (classmethod, staticmethod)) else name
    return f"#### {owner}.{name}\n\n{_code(prefix + _wrapped(shown, signature))}\n{_docstring(function)}"


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(api_page(), encoding="utf-8")
