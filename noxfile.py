"""The Pythons and pytests that this project is for: `nox` runs all tests on each that is here, `nox -s smoke` a few."""

from __future__ import annotations

import sys

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
OTHERS = [version for version in PYTHONS if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]
"""All but the one that runs nox: on that one CI runs everything."""

PYTESTS = {
    "8.3": "pytest==8.3.*",
    "newest": "pytest",
    "main": "pytest @ git+https://github.com/pytest-dev/pytest@main",
}

SMOKE = [
    "tests/integration/test_embedded.py",
    "tests/integration/test_good_guest.py",
    "tests/integration/test_selection.py",
    "tests/integration/test_skip_and_xfail.py",
]

nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]


@nox.session(python=PYTHONS)
@nox.parametrize("pytest", PYTESTS)
def tests(session: nox.Session, pytest: str) -> None:
    """All but the slow tests; arguments go to pytest."""
    session.install("-q", ".[dev]", PYTESTS[pytest])
    session.run("pytest", "-q", *session.posargs)


@nox.session(python=OTHERS)
def smoke(session: nox.Session) -> None:
    """A few dozen tests that touch pytest in many places; on the oldest Python with the oldest pytest."""
    session.install("-q", ".[embedded]", PYTESTS["8.3" if session.python == OTHERS[0] else "newest"])
    spread = ["-n", "4", "--dist", "worksteal"]
    session.run("pytest", "-q", "-p", "no:cacheprovider", *spread, *(session.posargs or SMOKE))
