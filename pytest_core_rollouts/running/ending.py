"""The end of a run: deletes leftover Sessions, summarizes the JSONL, prints the report, writes verdicts to files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_core_rollouts.engine.resume import unmark_run
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import slim_rows
from pytest_core_rollouts.report.html import HtmlReport, HtmlReportError, write_html
from pytest_core_rollouts.report.markdown import append_summary, markdown
from pytest_core_rollouts.report.markdown import terminal as terminal_table
from pytest_core_rollouts.report.progress import short_number
from pytest_core_rollouts.report.verdicts import verdict_lines
from pytest_core_rollouts.results.comparison import comparisons
from pytest_core_rollouts.results.summary import Summary, summarize, summarize_rounds
from pytest_core_rollouts.rollout.session_deletion import Sweep
from pytest_core_rollouts.running import gates
from pytest_core_rollouts.running.gates import GateResults
from pytest_core_rollouts.running.session_run import SessionRun
from pytest_core_rollouts.tasks.matrix import Chosen, name_rollouts, run_began
from pytest_core_rollouts.text import counted, one_line

LEAST_SWEEP = 1.5
"""Seconds for the sweep if a stop has used up its time: enough to find and name the Sessions that are left."""


@dataclass
class Ending:
    """What is reported at the end of a session."""

    run: SessionRun
    summary: Summary = field(default_factory=lambda: summarize(()))
    stopped: bool = False
    """Whether the session ended before its last rollout, because of a signal, `-x` or the like."""
    not_run: list[Chosen] = field(default_factory=list)
    finished_late: int = 0
    """Rollouts that finished while the run was stopping, so that pytest does not count them."""
    judged: GateResults = field(default_factory=GateResults)
    tokens: Sequence[int | None] = ()
    """Of each row, in a run that stops early."""
    swept: Sweep = field(default_factory=Sweep)
    html: HtmlReport | None = None
    problems: list[str] = field(default_factory=list)
    incomplete: bool = False
    """Whether a rollout has no reward yet."""

    @property
    def green(self) -> bool:
        """Whether the rollouts as a whole give no reason to fail the session."""
        complete = not (self.run.settings.shard and self.incomplete)
        return not self.not_run and not self.problems and self.judged.passed and complete

    def write(self, terminal: pytest.TerminalReporter) -> None:
        """Write the table, what is missing or left behind, the verdicts of gates, and where the rows are."""
        config = self.run.config
        terminal.write_sep("=", "rollouts")
        whole, width = terminal.verbosity > 0, config.get_terminal_writer().fullwidth
        failed = bool(self.judged.judgments) and not self.judged.passed
        table = terminal_table(self.summary, width, whole=whole, groups=self._collects, whys=failed)
        pairs = self.run.baseline is None and len(self.judged.comparisons) > 1 and not whole
        changes = () if pairs else self.judged.changes(width=width, whole=whole)
        for text in (table, *changes):
            for line in text.strip("\n").split("\n"):  # pytest escapes what a terminal lacks, line breaks too
                terminal.write_line(line)
            terminal.write_line("")
        if pairs:
            count = len(self.judged.comparisons)
            terminal.write_line(f"{count} comparisons of an agent with the first one by name: -v shows them")
        for line in self.problems:
            terminal.write_line(line, red=True)
        for line in self._not_run(whole=whole):
            terminal.write_line(line, red=not self.stopped)
        for line in self._left_behind():
            terminal.write_line(line, red=True)
        for line in self._notes():
            terminal.write_line(line)
        for line, verdict in verdict_lines(self.judged.judgments, aligned=True):
            terminal.write_line(line, red=not verdict.passed, green=bool(verdict.passed))
        for hint in filter(None, (self._hint(), self._shard(), self._resume())):
            terminal.write_line(hint)
        here = config.invocation_params.dir
        if self.html is not None:
            terminal.write_line(f"{_relative(self.html.path, here)} {self.html.extent}")
        for path in filter(None, (self.run.settings.report, self.run.out)):
            if path.exists():
                terminal.write_line(_relative(path, here))

    def _not_run(self, *, whole: bool) -> Iterator[str]:
        lines = list(name_rollouts(self.not_run))
        if whole or len(lines) <= 1:
            yield from (f"not run: {line}" for line in lines)
        else:
            tasks = len({task_id for task_id, _, _ in self.not_run})
            yield f"not run: {counted(len(self.not_run), 'rollout')} of {counted(tasks, 'task')} (-v lists them)"

    def _left_behind(self) -> Iterator[str]:
        yield from (f"left behind: Session {session_id}: {reason}" for session_id, reason in self.swept.left.items())
        if self.swept.problem is not None:
            yield f"Sessions may be left behind, and could not be listed: {self.swept.problem}"
            known = {*self.swept.left, *self.swept.deleted}
            yield from (text for text in self.run.left_behind() if known.isdisjoint(text.split()))
        if self.swept.left or self.swept.problem is not None:
            yield f"to delete them: {self.run.reap_command}"

    def _hint(self) -> str | None:
        if self.run.settings.soft or self.summary.samples[1] < 2 or self.summary.solved == self.summary.graded:
            return None
        return "every rollout had to solve its task; use --rollout-gate to judge the run as a whole"

    def _shard(self) -> str | None:
        if (shard := self.run.settings.shard) is None:
            return None
        return (
            f"shard {shard[0]} of {shard[1]}: gates judge all shards together: "
            f"python -m pytest_core_rollouts report --gate EXPR {one_line(str(self.run.out))} ..."
        )

    @property
    def _collects(self) -> bool:
        return any(gate.kind == "none" for gate in self.run.settings.gates)

    def _resume(self) -> str | None:
        """Say how to get the missing results."""
        if not self.incomplete or self.run.settings.replay is not None or not self.run.out.exists():
            return None
        return f"to finish: {self.run.masked(self.run.resume_command)}"

    def _notes(self) -> Iterator[str]:
        """Yield notes about the run as a whole."""
        run = self.run
        if run.resumed is not None:
            reused = len(run.reused)
            yield f"resumed: {reused} rollout{' was' if reused == 1 else 's were'} reused, not run again"
        if self.not_run and (reason := run.store.caps.reached()) is not None:
            yield f"stopped: {reason}"
        if run.not_needed:
            known = [count for count in self.tokens if count is not None]
            spared = sum(known) / len(known) * run.not_needed if known else 0
            saved = f"; about {short_number(int(spared))} tokens not spent" if spared else ""
            whole = len(self.tokens) + run.not_needed + len(self.not_run)
            yield f"not needed: {run.not_needed} of {counted(whole, 'rollout')}, the gates are decided{saved}"
        tasks = [task for agent in self.summary.agents for task in (*agent.tasks, *agent.xfails)]
        if interrupted := sum(task.interrupted for task in tasks):
            yield f"interrupted: {interrupted} rollout{' that was' if interrupted == 1 else 's that were'} in flight"
        if self.finished_late:
            late = counted(self.finished_late, "rollout")
            yield f"finished while the run stopped: {late}, which the table counts and pytest does not"
        if run.store.caps.unknown:
            yield f"--rollout-max-tokens counted without {run.store.caps.unknown} attempts whose usage is unknown"
        if run.store.caps.cost is not None and (unknown := run.store.caps.cost.unknown):
            yield f"--rollout-max-cost counted {unknown} attempts of unknown cost as their agent's mean"


def finish(run: SessionRun, *, stopped: bool) -> Ending:
    """Close the run: sweep its Sessions, stop its Core, summarize its rows."""
    ending = Ending(run, stopped=stopped)
    if run.may_have_sessions:
        ending.swept = run.host.sweep(
            run.run_id,
            since=_began(run) - 60,
            seconds=_sweep_seconds(run),
            spare=_spare(run),
            rollouts=None if run.settings.shard is None else frozenset(run.selected),  # others run elsewhere
        )
    run.close()
    if run.store.failure is not None:
        ending.problems.append(run.store.failure)
    seen: dict[str, str] = {}
    try:
        rows = list(slim_rows(_note_status(run.store.rows(run.run_id), seen)))
        graded = {row.rollout_id for row in rows if row.graded}
        ending.incomplete = any(rollout_id not in graded for rollout_id in run.selected)
        if rows:
            unmark_run(run.out, run.run_id)
        ending.summary = summarize(rows, planned=run.planned_rollouts, prices=run.settings.prices)
        ending.judged = gates.judge_run(run, ending.summary)
        if ending.summary.stop is not None:
            ending.summary = summarize_rounds(rows, planned=run.planned_rollouts, prices=run.settings.prices)
            ending.judged.comparisons = comparisons(ending.summary, run.baseline)
            ending.tokens = [row.tokens for row in rows]
    except RecordsError as error:
        ending.problems.append(str(error))
    finished = {rollout_id for rollout_id, status in seen.items() if status != "cancelled"}
    ending.not_run = [one for key, one in run.selected.items() if key not in finished and key not in run.reused]
    unreported = [key for key in run.selected if key in finished and key not in run.reported]
    if stopped:
        ending.finished_late = len(unreported)
    elif unreported:
        names = ", ".join(unreported[:3]) + (", ..." if len(unreported) > 3 else "")
        ending.problems.append(f"{len(unreported)} rollouts finished but were not reported to pytest: {names}")
    _write_markdown(run.settings.report, ending)
    if run.settings.html is not None:
        _write_html(run.settings.html, ending)
    return ending


def _sweep_seconds(run: SessionRun) -> float:
    """Return the seconds left for the sweep: CI kills a process some ten seconds after its SIGTERM."""
    run.note_stop()
    assert run.stop_deadline is not None
    return max(LEAST_SWEEP, run.stop_deadline - time.monotonic())


def _began(run: SessionRun) -> float:
    """Return when the run began (Unix time). If two clocks disagree, the earlier time counts."""
    began = (run_began(run.run_id) if run.resumed is not None else None) or run.started_at
    return min(began.timestamp(), time.time() - (time.monotonic() - run.started))


def _spare(run: SessionRun) -> str | None:
    """Say why Sessions must not be deleted: they hold the only copy of results."""
    if run.store.failure is None:
        return None
    return "its result could not be written; --rollout-resume reads it from the Session"


def _note_status(records: Iterable[tuple[RolloutRecord, bool]], seen: dict[str, str]) -> Iterator[RolloutRecord]:
    """Yield the records. `seen` gets the status of those that this session wrote."""
    for record, new in records:
        if new:
            seen[record.rollout_id] = record.status
        yield record


def _write_markdown(report: Path | None, ending: Ending) -> None:
    """Write the report as Markdown: to its file, and to the summary page of a GitHub Actions job."""
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if report is None and not page:
        return
    judged = ending.judged
    text = markdown(
        ending.summary, verdicts=[line for line, _ in verdict_lines(judged.judgments)], appendix=judged.changes()
    )
    if report is not None:
        with _collect_os_error(f"--rollout-report: {report}", ending.problems):
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(text, encoding="utf-8")
    if page:
        with _collect_os_error(f"GITHUB_STEP_SUMMARY: {page}", ending.problems):
            append_summary(Path(page), text)


@contextlib.contextmanager
def _collect_os_error(label: str, problems: list[str]) -> Iterator[None]:
    """Add an OSError to the problems instead of raising it."""
    try:
        yield
    except OSError as error:
        problems.append(f"{label}: {error.strerror or error}")


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
            judgments=ending.judged.judgments,
            prices=settings.prices,
            name=", ".join(_relative(root, run.config.rootpath) for root in settings.roots),
        )
    except (HtmlReportError, RecordsError) as error:
        ending.problems.append(f"--rollout-html: {error}")


def _relative(path: Path, here: Path) -> str:
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
