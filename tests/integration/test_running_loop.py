"""A session in whose main thread an event loop runs: a fixture of Playwright's leaves one there."""

from __future__ import annotations

import asyncio

from tests.integration.conftest import Project, outcomes, text_of


def test_rollouts_run_while_an_event_loop_runs_in_the_main_thread(project: Project) -> None:
    project.task()

    async def within() -> None:
        result = project.run("tasks", "--harness", "codex")
        assert outcomes(result) == {"passed": 1}, text_of(result)

    asyncio.run(within())
