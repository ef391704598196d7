"""The end of a run: leftovers swept, the table made from the JSONL, all of it told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pytest_core_rollouts.gate import Verdict
from pytest_core_rollouts.leftovers import Sweep, sweep
from pytest_core_rollouts.records import RecordsError
from pytest_core_rollouts.report.markdown import markdown, terminal as terminal_table
from pytest_core_rollouts.report.summary import Summary, summarize
from pytest_core_rollouts.run import Run

SWEEP_SECONDS = 6.0


@dataclass
class Ending:
    """What the end of the session says about its rollouts."""

    run: Run
    summary: Summary
    verdicts: list[Verdict] = field(default_factory=list)
    swept: Sweep = field(default_factory=Sweep)
    problems: list[str] = field(default_factory=list)

    def write(self, terminal: pytest.TerminalReporter, warnings: list[str]) -> None:
        """The table, then what is left behind, then where the rows are."""
        config = self.run.config
        terminal.section("rollouts")
        terminal.write_line(terminal_table(self.summary, config.get_terminal_writer().fullwidth).rstrip("\n"))
        terminal.write_line("")
        for line in [*self.problems, *self._left_behind(warnings)]:
            terminal.write_line(line, red=True)
        for verdict in self.verdicts:
            terminal.write_line(f"gate: {verdict.text}", red=not verdict.passed, green=bool(verdict.passed))
        for path in filter(None, (self.run.settings.report, self.run.out)):
            terminal.write_line(os.path.relpath(path, config.invocation_params.dir))

    def _left_behind(self, warnings: list[str]) -> Iterator[str]:
        for session_id, reason in self.swept.left.items():
            yield f"left behind: Session {session_id}: {reason}"
        if self.swept.problem is not None:
            yield f"Sessions may be left behind, and could not be listed: {self.swept.problem}"
            yield from (warning for warning in warnings)
        if self.swept.left or self.swept.problem is not None:
            yield f"to delete them: python -m pytest_core_rollouts reap {self.run.run_id}"


def finish(run: Run) -> Ending | None:
    """Close the run: sweep its Sessions, stop its Core, sum up its rows; None where no rollout was ever due."""
    if not run.ready:
        return None
    ending = Ending(run, summarize(()))
    if not run.settings.embedded:  # the embedded Core's Sessions end with it
        ending.swept = asyncio.run(
            sweep(run.connect, run.run_id, since=run.started_at.timestamp() - 60, seconds=SWEEP_SECONDS)
        )
    run.close()
    try:
        ending.summary = summarize(run.rows(), planned=sum(group["group"] for group in run.planned.values()))
        if run.settings.report is not None:
            run.settings.report.parent.mkdir(parents=True, exist_ok=True)
            run.settings.report.write_text(markdown(ending.summary), encoding="utf-8")
    except RecordsError as error:
        ending.problems.append(str(error))
    except OSError as error:
        ending.problems.append(f"--rollout-report: {run.settings.report}: {error.strerror or error}")
    if run.settings.soft:
        ending.verdicts = [gate.verdict(ending.summary) for gate in run.settings.gates]
    return ending
