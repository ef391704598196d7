"""A pytest session that runs rollouts: what happens at its start and at its end, in each process."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.collecting import task_data
from pytest_core_rollouts.collecting.collect import RolloutFault, RolloutItem, run_key
from pytest_core_rollouts.collecting.nodeids import NamedRollout, NodeIds
from pytest_core_rollouts.collecting.unasked import shown
from pytest_core_rollouts.options import task_sources
from pytest_core_rollouts.options.settings import Settings, read_settings, settings_key
from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.running import finish, runloop
from pytest_core_rollouts.running.session_run import SessionRun
from pytest_core_rollouts.running.signals import Signals
from pytest_core_rollouts.running.workers import Controller, Worker, fall_silent
from pytest_core_rollouts.tasks.grader_pool import POOL
from pytest_core_rollouts.text import reward_text

DRY = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test")
"""pytest's options under which nothing is run."""


def begin(config: pytest.Config) -> None:
    """Rollouts were asked for: aim pytest at the tasks, and take part in its run unless nothing is to be run."""
    config.stash[settings_key] = settings = read_settings(config)
    if settings.aimed and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = existing_roots(settings, task_sources.files(config))
    if not hasattr(config, "workerinput"):  # the controller has looked
        task_data.refuse_collected(config)
    if any(config.getoption(name, False) for name in DRY):
        return
    worker = Worker(config.workerinput) if hasattr(config, "workerinput") else None
    config.stash[run_key] = run = SessionRun(config, settings, worker)
    signals = Signals()
    config.pluginmanager.register(SessionPlugin(run, signals, worker), "core-rollouts-session")
    if not run.is_worker and config.getoption("dist", "no") != "no":
        if settings.concurrency not in (None, 1) and config.getoption("dist") != "load":
            raise pytest.UsageError("--rollout-concurrency under -n deals out the rollouts itself; leave out --dist")
        config.pluginmanager.register(Controller(run, signals), "core-rollouts-controller")


def header(config: pytest.Config) -> str | None:
    """The line that says which run this is and where its rows go; None where nothing is run."""
    run = config.stash.get(run_key, None)
    if run is None:
        return None
    assert isinstance(run, SessionRun)
    return f"rollouts: run {run.run_id}, results in {shown(run.out, config)}"


def existing_roots(settings: Settings, sources: Sequence[Path] = ()) -> list[str]:
    """The tasks roots that are there, and files elsewhere that make tasks. Raises pytest.UsageError when none is."""
    roots = [str(root) for root in settings.roots if root.is_dir()]
    roots += [str(file) for file in sources if not any(file.is_relative_to(root) for root in roots)]
    if not roots:
        raise pytest.UsageError(
            f"no tasks: there is no folder {', '.join(map(str, settings.roots))} (ini key rollout_tasks names others)"
        )
    return roots


Status = tuple[str, str, Any]


def soft_status(report: pytest.TestReport, *, soft: bool) -> Status | None:
    """How a rollout shows where a gate decides about it: not red. None: as pytest shows it."""
    told = dict(report.user_properties)
    if report.when != "call" or hasattr(report, "wasxfail") or "status" not in told:
        return None
    if report.skipped and told.get("reward") is None:
        return "errored", "e", ("ERRORED", {"yellow": True})
    if not (soft and report.passed):
        return None
    return ("solved", ".", ("SOLVED", {"green": True})) if told.get("solved") else UNSOLVED


UNSOLVED: Status = ("unsolved", "u", ("UNSOLVED", {"yellow": True}))

SUMMARY_CHARACTERS = {"unsolved": "xpP", "errored": "sxpP", "solved": "pP"}
"""Letters of -r that list each of our outcomes: -ra all but the solved, -rA all."""


def outcome_lines(terminal: pytest.TerminalReporter) -> Iterator[str]:
    """Lines for pytest's short summary, as `-r` asks for them."""
    for category, letters in SUMMARY_CHARACTERS.items():
        if not set(letters) & set(terminal.reportchars):
            continue
        for report in terminal.stats.get(category, ()):
            told = dict(report.user_properties)
            reward = (
                f"reward {reward_text(told['reward'])} ({told['status']})"
                if category != "errored"
                else str(told["status"])
            )
            yield f"{category.upper()} {report.nodeid} - {reward}"


class Account(str):
    """Why a rollout failed. Within a line, as in pytest's summary on CI and under -vv, it is its first line alone."""

    def __format__(self, spec: str) -> str:
        return format(self.partition("\n")[0], spec)


class SessionPlugin:
    """The hooks of a session that runs rollouts; registered only when rollouts were asked for."""

    def __init__(self, run: SessionRun, signals: Signals, worker: Worker | None) -> None:
        self.run = run
        self.signals = signals
        self.node_ids = NodeIds(run.config, run.settings)
        self.worker = worker
        self.last: RolloutItem | None = None
        if worker is None:
            signals.interrupt_pytest()
        else:
            signals.note(worker.terminate)
            run.config.pluginmanager.register(worker, "core-rollouts-worker")
        self.ending: finish.Ending | None = None
        self.warnings: list[str] = []

    # ---- before the first rollout

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if isinstance(sys.exc_info()[1], (KeyboardInterrupt, pytest.exit.Exception)):
            return  # pytest calls this hook on its way out, too
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return
        rollouts = [item for item in session.items if isinstance(item, RolloutItem)]
        chosen = [(item.task.id, item.agent, item.sample) for item in rollouts]
        tasks = {item.task.id: item.task for item in rollouts}
        selected = [one for one, item in zip(chosen, rollouts, strict=True) if not item.is_skipped]
        self.run.prepare(selected, chosen, tasks.get)
        if self.run.ready and not self.run.is_worker:
            self.run.start_display(self.run.concurrency)

    def pytest_report_collectionfinish(self) -> list[str]:
        return [] if self.run.is_worker else self.run.preflight_lines

    # ---- running

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        done = runloop.run_items(session, self.run)
        if done and self.run.display is not None:
            self.run.display.conclude()
        return done

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self.last is not None:
            self.last.outcome = None  # pytest keeps items to its end; what a rollout came to is on disk
        self.last = item if isinstance(item, RolloutItem) else None
        return runloop.wait_before(item, self.run)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, RolloutFault):
            report.longrepr = str(call.excinfo.value)
        if isinstance(item, RolloutItem):
            self._mask(report)
        if isinstance(item, RolloutItem) and item.outcome is not None and report.when != "teardown":
            # a rollout's duration is its own, told once, wherever pytest waited for it
            tells = report.when == "call" or report.failed
            tells = tells and not item.outcome.reused  # the session that ran it has told it
            report.duration = (item.outcome.record.duration_s or 0.0) if tells else 0.0
        return report

    def _mask(self, report: pytest.TestReport) -> None:
        """What pytest shows of a rollout's item: tracebacks, with locals under -l, captured output, properties.

        No secrets, and plain values: others' hooks put there what aborts xdist (a lone surrogate, a path, a Decimal).
        """
        if isinstance(report.longrepr, tuple):
            path, line, reason = report.longrepr
            report.longrepr = path, line, self._shown(reason)
        elif report.longrepr is not None and (text := str(report.longrepr)) != (shown := self._shown(text)):
            report.longrepr = shown
        report.sections = [(name, self._shown(text)) for name, text in report.sections]
        report.user_properties = [(str(name), jsonable(value)) for name, value in report.user_properties]

    def _shown(self, text: object) -> str:
        return str(jsonable(self.run.masked(str(text))))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> Generator[None, Status, Status]:
        status = yield
        if not isinstance(report, pytest.TestReport) or self.node_ids.read(report.nodeid) is None:
            return status
        status = soft_status(report, soft=self.run.settings.soft) or status
        display = self.run.display
        # without its letter; the word is not shown where letters are, and makes pytest count the test as done
        return (status[0], "", status[2]) if display is not None and display.hides_letters else status

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, object, object]:
        with self._aside(nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        named = self.node_ids.read(report.nodeid)
        if named is not None and isinstance(report.longrepr, str) and not self.run.is_worker:
            report.longrepr = Account(report.longrepr)
        with self._aside(report.nodeid):
            result = yield
        if named is not None:
            self._note(named, report)
        return result

    def _aside(self, node_id: str) -> AbstractContextManager[None]:
        display = self.run.display
        return nullcontext() if display is None else display.aside(silent=self.node_ids.read(node_id) is not None)

    def _note(self, named: NamedRollout, report: pytest.TestReport) -> None:
        rollout_id = self.run.rollout_id(named.task_id, named.agent, named.sample)
        if report.when == "setup" and report.skipped:
            self.run.selected.pop(rollout_id, None)
        if str(report.outcome) == "rerun":
            return  # by pytest-rerunfailures, or after a crash: another report follows
        if report.when == "call" or report.failed:
            self.run.reported.add(rollout_id)
            told: dict[str, Any] = dict(report.user_properties)
            if told.get("reused"):
                self.run.reused.add(rollout_id)
            self.warnings += [str(text) for name, text in report.user_properties if name == "rollout_warning"]
            if (display := self.run.display) is not None:
                display.progress.note(told.get("reward"), told.get("tokens"), report.duration)
                display.tick()

    # ---- after the last one

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.run.display is not None:
            self.run.display.close()
        if self.worker is None:
            self.signals.end_at_once(self.run.abort_message)
        elif self.worker.is_orphan:
            fall_silent()
        self.run.stop("the session ended")
        if self.worker is not None:
            self.worker.close()
        if not self.run.is_worker and (self.run.ready or self._all_skipped(session.exitstatus)):
            self.ending = finish.finish(self.run)
            if session.exitstatus == pytest.ExitCode.OK and not self.ending.green:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if self.run.store.failure is not None:
                session.exitstatus = pytest.ExitCode.INTERRUPTED
        self.signals.restore()

    def _all_skipped(self, status: int | pytest.ExitCode) -> bool:
        """Whether a gate is to be asked although no rollout was to run: then it does not pass."""
        return bool(self.run.settings.soft and self.run.agent_tasks and status == pytest.ExitCode.OK)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Ours comes last, behind pytest's own list of what failed, which would scroll the table away."""
        result = yield
        for line in outcome_lines(terminalreporter):
            terminalreporter.write_line(line)
        if self.ending is not None:
            self.ending.write(terminalreporter, self.warnings)
        return result

    def pytest_unconfigure(self) -> None:
        self.run.close()
        POOL.close_idle()
        self.signals.restore()
