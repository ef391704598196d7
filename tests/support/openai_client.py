"""The official client in its own environment, which is kept between runs in the temporary folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

NEWEST = "newest"


def python_with_client(version: str) -> Path:
    """Return a Python that has this version of `openai`, or NEWEST; without a registry, the test is skipped."""
    package = "openai" if version == NEWEST else f"openai=={version}"
    name = f"pytest-core-rollouts-openai-{version}-py{sys.version_info.major}{sys.version_info.minor}"
    folder = Path(tempfile.gettempdir()) / name
    python = folder / "bin" / "python"
    if not _has(python, version):
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", package], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"not installed: {python} -m pip install {package}: {done.stderr.strip()[-300:]}")
    return python


def _has(python: Path, version: str) -> bool:
    if not python.exists():
        return False
    code = f"import openai, sys; sys.exit({version!r} not in (openai.__version__, {NEWEST!r}))"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
