"""The table of docs/design.md: which module may import which, between rooms and inside them."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.support.tables import rows

ROOT = "pytest_core_rollouts"
PACKAGE = Path(__file__).parents[1] / ROOT
FILES = sorted(PACKAGE.rglob("*.py"))

ROOMS = {
    "plugin": "running collecting options hookspecs text",
    "__main__": "cli",
    "cli": "checking options engine rollout report results training agents_api records tasks embedded text",
    "checking": "running collecting options engine records tasks grading embedded text",
    "running": "collecting options engine rollout report results records tasks grading embedded text",
    "collecting": "options engine rollout records tasks grading text",
    "options": "engine rollout report results agents_api records tasks secret_values strict_json text",
    "hookspecs": "tasks grading",
    "engine": "rollout results training agents_api records tasks grading embedded",
    "rollout": "agents_api records tasks grading text",
    "report": "results records text",
    "results": "agents_api records tasks text",
    "training": "records",
    "grader_worker": "records tasks grading embedded",
    "agents_api": "strict_json text",
    "matrix": "",
    "records": "tasks grading secret_values strict_json text",
    "tasks": "grading embedded strict_json text",
    "grading": "embedded strict_json",
    "embedded": "secret_values",
    "secret_values": "",
    "strict_json": "",
    "text": "",
}
"""Each room and the rooms that it may import, from the top down: an arrow upward can't be written here."""

KNOW_PYTEST = {"checking", "collecting", "hookspecs", "options", "plugin", "running"}

INSIDE = {
    "cli": "history check compare export new_task reap report __init__",
    "checking": "__init__ collecting runs checks grading_checks",
    "running": (
        "__init__ session_plugin failed pytest_files ending completion_order early_stop workers session_run gates "
        "plan project distribution session_parts shared_folder display signals"
    ),
    "collecting": "__init__ generated selection shards collect explain nodeids inactive task_data",
    "options": "__init__ settings deciding activation agents agent_file skill_folder values declared completion",
    "engine": "__init__ engine host preparation parts core_access pool preflight replay runs store caps cost_cap "
    "resume",
    "rollout": (
        "__init__ runner attempts attempt_state fetching session_creation adaptive_limit session_adoption "
        "session_deletion late_usage turn_watch poll_schedule dialects stopping witnesses"
    ),
    "report": (
        "__init__ history html html_data html_baseline html_causes by changes markdown agents_table costs verdicts "
        "plan progress cells"
    ),
    "results": (
        "__init__ history gate plan looks gate_forms gate_kinds scope comparison summary early_stop scores prices "
        "health number_text passing significance"
    ),
    "training": "__init__ lines sequences conversations captures groups",
    "agents_api": "__init__ client sse transport address responses retry errors fault_policies types",
    "records": "__init__ rows kept_files kept_folders record columns why jsonable masking",
    "tasks": (
        "__init__ matrix loading task harness_file folders grader_file grader_pool grader_process packing files "
        "task_yaml strict_yaml task_settings"
    ),
    "grading": "__init__ answers local_sandbox rules comparing pairing sandbox threads failures",
    "embedded": (
        "__init__ __main__ launch model.forwarder sandbox.namespace_helper server app store sessions "
        "events requests environment bodies errors turns harnesses harnesses.claude_sdk harnesses.codex "
        "harnesses.command harnesses.traffic harnesses.native harnesses.nop_and_oracle harnesses.base "
        "installed model model.proxy model.channel model.exchange model.failures model.reply_mask "
        "model.streams model.tokens model.upstream model_provider sandbox sandbox.sandbox "
        "sandbox.process sandbox.isolation sandbox.bubblewrap sandbox.programs sandbox.mounts hidden "
        "sandbox.seccomp sandbox.watch sandbox.cgroups sandbox.usage sandbox.files "
        "sandbox.limits sandbox.namespaces trajectory ids descriptors"
    ),
}
"""The modules of each room from the top down: a module imports only those that stand after it.

Imports that run only in a type checker don't count here: two modules may name each other's types.
"""

FRONT_DOOR = {ROOT, f"{ROOT}._deprecated"}
"""`__init__` and the import paths of earlier versions load everything lazily, so they are no part of the order."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def room(module: str) -> str:
    """The part of the package below the top: a package or a module."""
    return module.split(".")[1] if module != ROOT else ROOT


@cache
def imports(path: Path, *, type_only: bool) -> tuple[str, ...]:
    """Returns the full names that a file imports, inside functions too.

    `type_only`: whether to include imports that run only in a type checker.
    """
    here = path.relative_to(PACKAGE.parent).parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    skipped = set() if type_only else {id(child) for node in guarded for child in ast.walk(node)}
    names: list[str] = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            names += [f"{module}.{alias.name}" for alias in node.names]
    return tuple(names)


@cache
def graph(*, type_only: bool) -> dict[str, set[str]]:
    """The package's modules that each module imports; a package stands for its `__init__`."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        found[module] = set()
        for name in imports(path, type_only=type_only):
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name and name != module and name not in FRONT_DOOR:
                found[module].add(name)
    return {module: others for module, others in found.items() if module not in FRONT_DOOR}


def users_of(library: str) -> set[str]:
    return {
        room(module)
        for module, path in MODULES.items()
        if any(name.split(".")[0] == library for name in imports(path, type_only=True))
    }


def test_each_library_is_imported_in_its_rooms_only() -> None:
    assert users_of("pytest") == KNOW_PYTEST
    assert users_of("httpx") == {"agents_api"}
    assert users_of("httpcore") == set()
    assert users_of("h11") == {"embedded"}


def test_rooms_import_only_what_the_table_allows() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module, others in graph(type_only=True).items():
        found[room(module)] |= {room(other) for other in others} - {room(module)}
    unknown = sorted(found.keys() - ROOMS.keys())
    assert not unknown, f"add them to ROOMS, above the rooms that they import: {unknown}"
    forbidden = {name: sorted(others - set(ROOMS[name].split())) for name, others in found.items()}
    assert {name: others for name, others in forbidden.items() if others} == {}


def test_the_table_of_rooms_has_no_upward_arrow() -> None:
    order = list(ROOMS)
    upward = {
        name: [other for other in ROOMS[name].split() if order.index(other) <= order.index(name)] for name in order
    }
    assert {name: others for name, others in upward.items() if others} == {}


@rows("name", INSIDE)
def test_modules_import_only_later_modules_of_their_room(name: str) -> None:
    order = INSIDE[name].split()
    inside = {module: others for module, others in graph(type_only=False).items() if room(module) == name}
    prefix = f"{ROOT}.{name}"
    short = {module: module.removeprefix(prefix).lstrip(".") or "__init__" for module in inside}
    changed = sorted(set(short.values()) ^ set(order))
    assert not changed, f"new or gone: list modules in INSIDE, above the modules that they import: {changed}"
    upward = [
        f"{short[module]} -> {short[other]}"
        for module, others in inside.items()
        for other in others & inside.keys()
        if order.index(short[other]) <= order.index(short[module])
    ]
    assert upward == []


def test_every_room_with_several_modules_has_an_order() -> None:
    packages = {room(module) for module in MODULES if module.count(".") > 1}
    assert set(INSIDE) == packages
