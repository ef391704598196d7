"""Test runs that take longer: `tests` on all Pythons and pytests, `smoke` a few of them, `slow` and `deep`."""

from __future__ import annotations

import sys

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
OTHERS = [version for version in PYTHONS if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]
"""All except the one that runs nox: CI runs all tests on that one."""

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

DEEP_SEEDS = {"CHAOS_SEEDS": "20", "CRASH_SEEDS": "20"}

nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]


@nox.session(python=PYTHONS)
@nox.parametrize("pytest", PYTESTS)
def tests(session: nox.Session, pytest: str) -> None:
    """Runs the fast tests; arguments go to pytest."""
    session.install("-q", ".[dev]", PYTESTS[pytest])
    session.run("pytest", "-q", *session.posargs)


@nox.session(python=OTHERS)
def smoke(session: nox.Session) -> None:
    """Runs a few dozen tests that touch pytest in many places; on the oldest Python with the oldest pytest."""
    session.install("-q", ".[embedded]", PYTESTS["8.3" if session.python == OTHERS[0] else "newest"])
    processes = ["-n", "2", "--dist", "worksteal"]
    session.run("pytest", "-q", "-p", "no:cacheprovider", *processes, *(session.posargs or SMOKE))


@nox.session
def slow(session: nox.Session) -> None:
    """Runs one case of each slow test. The argument is the seed that chooses it, by default 0."""
    session.install("-q", ".[dev]")
    session.run("pytest", "-m", "slow", "--one-case-each", *(session.posargs or ["0"]))


@nox.session
def deep(session: nox.Session) -> None:
    """Runs every slow test, with many seeds for crashes and chaos, then the fast tests on every Python and pytest.

    Takes hours. `slow` runs the same tests in a bounded form.
    """
    session.install("-q", ".[dev]")
    session.run("pytest", "-m", "slow", *session.posargs, env=DEEP_SEEDS)
    session.notify("tests")
