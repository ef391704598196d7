"""Agent programs are found wherever their installers put them, and it is the native program that is found."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded import installed
from pytest_core_rollouts.embedded.harnesses import HARNESSES
from pytest_core_rollouts.embedded.installed import NotInstalled, Program, find_claude, find_codex
from pytest_core_rollouts.embedded.launch import HARNESSES as SERVED
from pytest_core_rollouts.embedded.launch import why_missing

MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
CODEX, CLAUDE = "lib/node_modules/@openai/codex", "lib/node_modules/@anthropic-ai/claude-code"
VENDOR = "vendor/x86_64-unknown-linux-musl"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty place to install to; PATH is only its `bin`, so that this machine's programs are not found."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    importlib.invalidate_caches()
    installed._npm_root.cache_clear()
    yield tmp_path
    installed._npm_root.cache_clear()


def native(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF...")
    path.chmod(0o755)
    return path


def script(path: Path, text: str = "#!/usr/bin/env node\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def link(prefix: Path, name: str, target: Path) -> None:
    (prefix / "bin" / name).symlink_to(os.path.relpath(target, prefix / "bin"))


def npm(prefix: Path) -> None:
    script(prefix / "bin" / "npm", f'#!/bin/sh\necho "{prefix}/lib/node_modules"\n')


def codex_of_npm(prefix: Path) -> Path:
    return native(prefix / CODEX / f"node_modules/@openai/codex-linux-{MACHINE}" / VENDOR / "bin/codex")


def codex_beside(prefix: Path) -> Path:
    """As npm lays it in a project's own node_modules."""
    return native(prefix / f"lib/node_modules/@openai/codex-linux-{MACHINE}" / VENDOR / "bin/codex")


def codex_of_old(prefix: Path) -> Path:
    return native(prefix / CODEX / VENDOR / "codex/codex")


@pytest.mark.parametrize("layout", [codex_of_npm, codex_beside, codex_of_old])
@pytest.mark.parametrize("on_path", [True, False])
def test_codex_from_npm_is_found(prefix: Path, layout: Callable[[Path], Path], on_path: bool) -> None:
    launcher = script(prefix / CODEX / "bin/codex.js")
    program = layout(prefix)
    if on_path:
        link(prefix, "codex", launcher)
    else:
        npm(prefix)
    assert find_codex().file == program


def test_codex_on_the_path_is_found_with_its_companions(prefix: Path) -> None:
    program = native(prefix / "bin/codex")
    assert find_codex() == Program(program)
    (prefix / "codex-path").mkdir()
    assert list(find_codex().binds("/opt/agent")) == [
        (program, "/opt/agent/bin/codex"),
        (prefix / "codex-path", "/opt/agent/codex-path"),
    ]


def test_codex_from_pypi_is_found(prefix: Path) -> None:
    (prefix / "site/codex_cli_bin").mkdir(parents=True)
    (prefix / "site/codex_cli_bin/__init__.py").touch()
    program = native(prefix / "site/codex_cli_bin/bin/codex")
    assert find_codex().file == program


@pytest.mark.parametrize("on_path", [True, False])
def test_claude_from_npm_is_found(prefix: Path, on_path: bool) -> None:
    """The file that its installer puts in place, or where scripts are not run the package for this machine."""
    variant = native(prefix / CLAUDE / f"node_modules/@anthropic-ai/claude-code-linux-{MACHINE}/claude")
    placeholder = script(prefix / CLAUDE / "bin/claude.exe")
    if on_path:
        link(prefix, "claude", placeholder)
    else:
        npm(prefix)
    assert find_claude().file == variant
    assert find_claude().file.read_bytes().startswith(b"\x7fELF")
    native(placeholder)
    assert find_claude().file == placeholder
    assert next(find_claude().binds("/opt/agent"))[1] == "/opt/agent/bin/claude"


def test_claude_from_its_installer_and_from_pypi_is_found(prefix: Path) -> None:
    (prefix / "site/claude_agent_sdk").mkdir(parents=True)
    (prefix / "site/claude_agent_sdk/__init__.py").touch()
    bundled = native(prefix / "site/claude_agent_sdk/_bundled/claude")
    assert find_claude().file == bundled
    program = native(prefix / "share/claude/versions/2.1.197")
    link(prefix, "claude", program)
    assert find_claude().file == program, "the one on PATH goes first"


@pytest.mark.parametrize("harness", ["codex", "claude_sdk"])
def test_missing_program_is_reported_with_the_command_that_installs_it(prefix: Path, harness: str) -> None:
    for broken in (script(prefix / "bin/codex"), script(prefix / "bin/claude")):
        assert broken.exists()
    message = why_missing(harness)
    assert message is not None
    assert "is not installed: npm install -g @" in message
    assert "(or pip install " in message
    script(prefix / "bin/npm", "#!/bin/sh\nexit 1\n")
    installed._npm_root.cache_clear()
    with pytest.raises(NotInstalled):
        {"codex": find_codex, "claude_sdk": find_claude}[harness]()


def test_client_and_core_list_the_same_harnesses() -> None:
    assert tuple(HARNESSES) == SERVED
    assert [why_missing(harness) for harness in ("oracle", "nop")] == [None, None]
