"""Test runs that take longer: `tests` on all Pythons and pytests, `smoke` a few of them, and `deep`."""

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

BOUNDED = [
    "tests/integration/test_crashes.py",
    "tests/integration/test_chaos.py",
    "tests/integration/test_signals.py::test_a_signal_cancels_rollouts_writes_rows_and_deletes_sessions",
    "tests/integration/test_resume_kills.py"
    "::test_a_run_whose_processes_were_killed_twice_finishes_and_pays_nothing_twice",
    "tests/integration/test_xdist_crashes.py::test_workers_killed_at_random_moments_lose_nothing",
    "tests/integration/test_embedded_crashes.py::test_a_signal_ends_the_run_its_sessions_and_its_processes",
    "tests/integration/test_embedded_crashes.py::test_a_run_can_be_resumed_after_its_controller_was_killed",
    "tests/integration/test_disk.py::test_a_full_disk_ends_the_run",
    "tests/integration/test_real_agents.py::test_both_solve_every_bundled_task_side_by_side",
    "tests/embedded/test_real_agents.py::test_what_an_agent_does_becomes_items_artifacts_and_usage",
    "tests/embedded/test_real_agents.py::test_cancelling_at_every_stage_keeps_finished_items",
    "tests/integration/test_embedded.py::test_a_solution_that_searches_everything_finds_nothing",
    "tests/integration/test_embedded_hiding.py",
    "tests/integration/test_plan.py",
    "tests/tasks/test_grader_pool.py",
    "tests/embedded/test_sandbox_ordinary_user.py",
    "tests/integration/test_hostile_suite.py",
    "tests/integration/test_shards.py::test_shards_together_are_the_whole_run",
    "tests/integration/test_early_stop.py",
    "tests/integration/test_cost_cap.py",
    "tests/embedded/test_app_requests.py::test_huge_invalid_bodies_are_refused",
    "tests/embedded/test_app_load.py::test_hundred_sessions_at_once_get_their_answers_and_leave_nothing",
    "tests/test_package.py",
]
"""The bounded form of `deep`: one case of each of these. A case of every slow test would take 25 minutes."""

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
def deep(session: nox.Session) -> None:
    """Runs every slow test, with many seeds for crashes and chaos, then the fast tests on every Python and pytest.

    Takes hours. `nox -s deep -- bounded [SEED]` runs one case of each test in BOUNDED, which the seed chooses.
    `nox -s deep -- one [SEED]` runs one case of every slow test. Other arguments go to pytest.
    """
    session.install("-q", ".[dev]")
    form, *rest = session.posargs or ["all"]
    if form in ("bounded", "one"):
        processes = ["-n", "3", "--dist", "worksteal"]
        chosen = ["--one-case-each", *(rest or ["0"]), *(BOUNDED if form == "bounded" else [])]
        session.run("pytest", "-q", "-m", "slow", *processes, *chosen)
        return
    session.run("pytest", "-m", "slow", *session.posargs, env=DEEP_SEEDS)
    session.notify("tests")
