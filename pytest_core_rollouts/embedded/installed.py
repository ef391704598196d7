"""Find the real agent programs on this machine. Only the standard library, because the client imports this too.

A program is looked for on PATH, in the PyPI packages that contain one, and in npm's global folder. Only the native
program is used: if a launcher written for node is killed, the program that it has started goes on.
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
    """A native program, and the files that it needs at fixed places relative to itself."""

    file: Path
    companions: tuple[Path, ...] = ()

    def binds(self, folder: str) -> Iterator[tuple[Path, str]]:
        """Yield what to mount, and where in the sandbox below `folder`; the program comes first."""
        yield self.file, f"{folder}/bin/{self.file.stem}"
        for path in self.companions:
            yield path, f"{folder}/{path.relative_to(self.file.parents[1])}"


class NotInstalled(Exception):
    """A program is not installed on this machine; str: what to do."""


def find_codex() -> Program:
    """Return the codex program. Raises NotInstalled."""
    for place in _places("codex", "@openai/codex", "codex_cli_bin"):
        for file in _codex_files(place):
            if _is_native(file):
                companions = (file.parents[1] / "codex-path", file.parent / "codex-code-mode-host")
                return Program(file, tuple(path for path in companions if path.exists()))
    raise NotInstalled(
        "the codex program is not installed: npm install -g @openai/codex (or pip install openai-codex-cli-bin)"
    )


def find_claude() -> Program:
    """Return the Claude Code program. Raises NotInstalled."""
    for place in _places("claude", "@anthropic-ai/claude-code", "claude_agent_sdk"):
        for file in _claude_files(place):
            if _is_native(file):
                return Program(file)
    raise NotInstalled(
        "the Claude Code program is not installed: npm install -g @anthropic-ai/claude-code "
        "(or pip install claude-agent-sdk)"
    )


def _places(command: str, npm_package: str, module: str) -> Iterator[Path]:
    """Yield where a program may be: the command on PATH, then packages' folders, starting with the fastest look-up."""
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
    """Return npm's global folder; None without npm."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        done = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=_NPM_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    path = Path(done.stdout.strip() or "/nonexistent")
    return path if path.is_dir() else None


def _codex_files(place: Path) -> Iterator[Path]:
    """Yield candidates; `place` is the native program, its launcher, or a package's folder."""
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
    """Yield the packages for this kind of machine, which npm installs below the package or next to it."""
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
