"""The end of a run: leftovers swept, the table made from the JSONL, all of it told."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

from pytest_core_rollouts import judging
from pytest_core_rollouts.frontier import Frontier
from pytest_core_rollouts.judging import Judged
from pytest_core_rollouts.leftovers import Sweep, sweep
from pytest_core_rollouts.matrix import Agent
from pytest_core_rollouts.records import RecordsError, RolloutRecord
from pytest_core_rollouts.report.cells import plain
from pytest_core_rollouts.report.html import HtmlReport, HtmlReportError, write_html
from pytest_core_rollouts.report.markdown import markdown
from pytest_core_rollouts.report.markdown import terminal as terminal_table
from pytest_core_rollouts.report.summary import Summary, slim, summarize
from pytest_core_rollouts.run import Run

SWEEP_SECONDS = 6.0
NOT_RUN_LINES = 20


@dataclass
class Ending:
    """What the end of the session says about its rollouts."""

    run: Run
    summary: Summary = field(default_factory=lambda: summarize(()))
    not_run: list[str] = field(default_factory=list)
    """A line per task and agent of which samples did not run."""
    judged: Judged = field(default_factory=Judged)
    gained: list[str] = field(default_factory=list)
    """A line for each task and agent that was expected to fail and passes."""
    swept: Sweep = field(default_factory=Sweep)
    html: HtmlReport | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def green(self) -> bool:
        """Whether the rollouts give no reason of their own to fail the session."""
        return not self.not_run and not self.problems and self.judged.passed

    def write(self, terminal: pytest.TerminalReporter, warnings: list[str]) -> None:
        """The table, what is missing or left behind, the gate's verdict, where the rows are."""
        config = self.run.config
        terminal.section("rollouts")
        whole, width = terminal.verbosity > 0, config.get_terminal_writer().fullwidth
        table = terminal_table(self.summary, width, whole=whole, groups=self._collects)
        for text in (table, *self.judged.changes(width=width, whole=whole)):
            for line in text.strip("\n").split("\n"):  # pytest escapes what a terminal lacks, line breaks too
                terminal.write_line(line)
            terminal.write_line("")
        for line in [*self.problems, *self._not_run(whole=terminal.verbosity > 0), *self._left_behind(warnings)]:
            terminal.write_line(line, red=True)
        for line in self.gained:
            terminal.write_line(f"gained: {plain(line)}", green=True)
        for judgment in self.judged.judgments:
            terminal.write_line(plain(str(judgment)), red=not judgment.passed, green=bool(judgment.passed))
        for hint in filter(None, (self._hint(), self._resume())):
            terminal.write_line(hint)
        here = config.invocation_params.dir
        if self.html is not None:
            terminal.write_line(f"{_relative(self.html.path, here)} {self.html.extent}")
        for path in filter(None, (self.run.settings.report, self.run.out)):
            terminal.write_line(_relative(path, here))

    def _not_run(self, *, whole: bool) -> Iterator[str]:
        shown = self.not_run if whole else self.not_run[:NOT_RUN_LINES]
        yield from (f"not run: {line}" for line in shown)
        if len(self.not_run) > len(shown):
            yield f"not run: ... and samples of {len(self.not_run) - len(shown)} more (-v names all)"

    def _left_behind(self, warnings: list[str]) -> Iterator[str]:
        yield from (f"left behind: Session {session_id}: {reason}" for session_id, reason in self.swept.left.items())
        if self.swept.problem is not None:
            yield f"Sessions may be left behind, and could not be listed: {self.swept.problem}"
            yield from warnings
        if self.swept.left or self.swept.problem is not None:
            yield f"to delete them: python -m pytest_core_rollouts reap {self.run.run_id}"

    def _hint(self) -> str | None:
        if self.run.settings.soft or self.summary.samples[1] < 2 or self.summary.solved == self.summary.graded:
            return None
        return "every rollout had to solve its task; to let the run decide as a whole, see --rollout-gate"

    @property
    def _collects(self) -> bool:
        return any(gate.expression == "none" for gate in self.run.settings.gates)

    def _resume(self) -> str | None:
        """How to get the results that are lacking."""
        if not (self.not_run or self.judged.undecided) or self.summary.graded == self.summary.planned:
            return None
        config = self.run.config
        given = shlex.join(map(str, config.invocation_params.args))
        return f"to finish: pytest {given} --rollout-resume {_relative(self.run.out, config.invocation_params.dir)}"


def finish(run: Run) -> Ending:
    """Close the run: sweep its Sessions, stop its Core, sum up its rows."""
    ending = Ending(run)
    if run.reached:  # the embedded Core's Sessions end with it
        since = run.started_at.timestamp() - 60
        ending.swept = asyncio.run(sweep(run.connect, run.run_id, since=since, seconds=SWEEP_SECONDS))
    run.close()
    seen: set[str] = set()
    frontier = Frontier()
    try:
        rows = [slim(record) for record in frontier.noting(_noting(run.rows(), seen))]
        ending.gained = frontier.gained
        ending.summary = summarize(rows, planned=len(run.selected))
        ending.judged = judging.ask(run, rows, ending.summary)
    except RecordsError as error:
        ending.problems.append(str(error))
    ending.not_run = list(name_missing(one for rollout_id, one in run.selected.items() if rollout_id not in seen))
    if run.settings.report is not None:
        _write_report(run.settings.report, ending)
    if run.settings.html is not None:
        _write_html(run.settings.html, ending)
    return ending


def _noting(records: Iterable[RolloutRecord], seen: set[str]) -> Iterator[RolloutRecord]:
    for record in records:
        seen.add(record.rollout_id)
        yield record


def _write_report(path: Path, ending: Ending) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        judged = ending.judged
        text = markdown(ending.summary, verdicts=list(map(str, judged.judgments)), appendix=judged.changes())
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        ending.problems.append(f"--rollout-report: {path}: {error.strerror or error}")


def _write_html(path: Path, ending: Ending) -> None:
    run, settings = ending.run, ending.run.settings
    try:
        ending.html = write_html(
            [run.out] if run.out.exists() else [],
            path,
            items_limit=settings.html_items,
            baseline=run.baseline,
            run_id=run.run_id,
            hide_expected=settings.hide_expected,
        )
    except (HtmlReportError, RecordsError) as error:
        ending.problems.append(f"--rollout-html: {error}")


def name_missing(rollouts: Iterable[tuple[str, Agent, int]]) -> Iterator[str]:
    """Rollouts as lines such as `orders-json codex-default 0-3, 7`, one per task and agent."""
    ordered = sorted((task_id, agent.slug, sample) for task_id, agent, sample in rollouts)
    for (task_id, agent_slug), group in groupby(ordered, key=lambda one: one[:2]):
        yield f"{task_id} {agent_slug} {', '.join(_ranges([sample for _, _, sample in group]))}"


def _ranges(numbers: list[int]) -> Iterator[str]:
    """Ascending numbers as `0-3`, `7`."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in run]
        yield f"{first}-{rest[-1]}" if rest else str(first)


def _relative(path: Path, here: Path) -> str:
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
