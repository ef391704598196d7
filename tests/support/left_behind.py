"""Names and contents of files that do harm when they are imported, collected, sourced or looked at."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

MARK = "mallory"
"""Is in every name below, or in a folder of it: no path on the host may hold it."""


def harmful_files(canaries: Path) -> Mapping[str, bytes]:
    """Files by their paths below /workspace/outputs. Each makes a file in `canaries` when the host runs it."""
    return {path: content.encode() for path, content in _files(canaries)}


def _files(canaries: Path) -> Iterator[tuple[str, str]]:
    def python(name: str) -> str:
        return f"open({str(canaries / name)!r}, 'w').close()\n\ndef test_it():\n    pass\n"

    def shell(name: str) -> str:
        return f"#!/bin/sh\n: > {shlex.quote(str(canaries / name))}\n"

    tests = ("conftest.py", "test_x.py", "x_test.py", "setup.py", "sitecustomize.py", "usercustomize.py", "__init__.py")
    modules = ("__main__.py", "pytest.py", "grader.py", "test_mallory/conftest.py", "test_mallory/__init__.py")
    for number, name in enumerate((*tests, *modules, "noxfile.py", "tasks.py", "CONFTEST.PY", "mallory.pth")):
        yield name, python(f"python-{number}")
    ini = "[{}]\naddopts = -p conftest\npythonpath = .\npython_files = *\ndoctest_glob = *\nnorecursedirs =\n"
    yield "pytest.ini", ini.format("pytest")
    yield "tox.ini", ini.format("pytest")
    yield "setup.cfg", ini.format("tool:pytest")
    yield "pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p conftest'\npythonpath = '.'\n"
    for name in ("test_mallory.txt", "mallory.rst", "test_mallory.md"):
        yield name, f">>> open({str(canaries / 'doctest')!r}, 'w').close()\n"
    for name in (".envrc", "Makefile", ".bashrc", ".git/hooks/post-checkout", "hooks/post-index-change"):
        yield name, shell(f"shell-{name.replace('/', '-')}")
    # A bare repository, which git takes any folder for that holds these, and an ordinary one.
    touch = shell("git").splitlines()[1]
    for prefix in ("", ".git/"):
        yield f"{prefix}HEAD", "ref: refs/heads/main\n"
        yield f"{prefix}config", f'[core]\n\trepositoryformatversion = 0\n\tworktree = .\n\tfsmonitor = "{touch} #"\n'
        yield f"{prefix}objects/mallory", ""
        yield f"{prefix}refs/mallory", ""
    yield ".gitattributes", "* filter=mallory\n"
    yield ".vscode/tasks.json", '{"version": "2.0.0", "tasks": []}'
    yield "instruction.md", "A task of the agent's own."
    yield "expected.json", "{}"
    odd = ("mal\u202elory.exe", "mallory " * 20, f"mallory-{'x' * 247}", "-mallory", "--mallory=rf", "mallory*?[x]")
    more = (
        "...mallory",
        "mallory..",
        "CON",
        "con.mallory",
        "nul",
        "mallory'\"$(id)`id`",
        "a/../mallory".replace("/", "%2f"),
    )
    for name in (*odd, *more, "é-mallory", "mallory/deep/er/conftest.py"):
        yield name, python("odd")


CONTROL_NAMES = ("mal\nlory", "mallory\x1b[2J")
"""Names with control characters: an agent can make them, and no row holds them."""
CORE_PATHS = (
    *CONTROL_NAMES,
    "../mallory.py",
    "/mallory.py",
    "a/../../mallory.py",
    "mal\\lory",
    "mallory\0",
    "./mallory",
)
"""Paths that a Core can name, and that no row holds."""


def solution(files: Mapping[str, bytes]) -> str:
    """A script that makes these files, executable, in outputs/ of the folder that it runs in."""
    lines = ["set -eu", "mkdir -p outputs", "cd outputs"]
    for path, content in files.items():
        folder = path.rpartition("/")[0] or "."
        lines.append(f"mkdir -p -- ./{shlex.quote(folder)}")
        lines.append(f"printf %s {shlex.quote(content.decode())} > ./{shlex.quote(path)}")
    return "\n".join([*lines, "chmod -R a+rwx .", ""])
