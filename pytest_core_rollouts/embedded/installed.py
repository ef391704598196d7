"""Where the real agent programs are on this machine. Standard library alone: the client asks here too.

A program is looked for on PATH, in npm's global folder, and in the PyPI packages that carry one. What counts is the
native program: a launcher written for node is only a pointer to it, and would leave it behind when killed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_NPM_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Program:
    """A native program, and what it wants to find relative to itself."""

    file: Path
    companions: tuple[Path, ...] = ()

    def binds(self, folder: str) -> Iterator[tuple[Path, str]]:
        """What to bind, and where below `folder` inside; the program is the first."""
        yield self.file, f"{folder}/bin/{self.file.stem}"
        for path in self.companions:
            yield path, f"{folder}/{path.relative_to(self.file.parents[1])}"


class NotInstalled(Exception):
    """A program is not on this machine; str: what to do."""


def find_codex() -> Program:
    """Raises NotInstalled."""
    for place in _places("codex", "@openai/codex", "codex_cli_bin"):
        for file in _codex_files(place):
            if _is_native(file):
                beside = (file.parents[1] / "codex-path", file.parent / "codex-code-mode-host")
                return Program(file, tuple(path for path in beside if path.exists()))
    raise NotInstalled(
        "the codex program is not installed: npm install -g @openai/codex (or pip install openai-codex-cli-bin)"
    )


def find_claude() -> Program:
    """Raises NotInstalled."""
    for place in _places("claude", "@anthropic-ai/claude-code", "claude_agent_sdk"):
        for file in _claude_files(place):
            if _is_native(file):
                return Program(file)
    raise NotInstalled(
        "the Claude Code program is not installed: npm install -g @anthropic-ai/claude-code "
        "(or pip install claude-agent-sdk)"
    )


def _places(command: str, npm_package: str, module: str) -> Iterator[Path]:
    """Where a program may be: the command on PATH, then folders of packages, the cheapest to ask for first."""
    on_path = shutil.which(command)
    if on_path is not None:
        yield Path(on_path).resolve()
    found = importlib.util.find_spec(module)
    if found is not None and found.submodule_search_locations:
        yield Path(next(iter(found.submodule_search_locations)))
    if on_path is None and (root := _npm_root()) is not None:
        yield root / npm_package


@cache
def _npm_root() -> Path | None:
    """npm's global folder, None without npm."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        told = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=_NPM_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    path = Path(told.stdout.strip() or "/nonexistent")
    return path if path.is_dir() else None


def _codex_files(place: Path) -> Iterator[Path]:
    """`place`: the native program, its launcher, or a package's folder."""
    if place.is_file():
        yield place
        place = place.parents[1]
    for package in (place, *_npm_variants(place, "codex")):
        for pattern in ("bin/codex", "vendor/*/bin/codex", "vendor/*/codex/codex"):
            yield from sorted(package.glob(pattern))


def _claude_files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        place = place.parents[1]
    for package in (place, *_npm_variants(place, "claude-code")):
        for pattern in ("bin/claude*", "claude", "_bundled/claude"):
            yield from sorted(package.glob(pattern))


def _npm_variants(package: Path, name: str) -> Iterator[Path]:
    """The packages for one kind of machine each, that npm puts below the package or beside it."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    for scope in (package / "node_modules" / package.parent.name, package.parent):
        for libc in ("", "-musl"):
            variant = scope / f"{name}-linux-{machine}{libc}"
            if variant.is_dir():
                yield variant


def _is_native(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"\x7fELF" and os.access(file, os.X_OK)
    except OSError:
        return False
