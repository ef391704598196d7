"""A pytest session that runs rollouts: what happens at its start and at its end, in each process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pytest_core_rollouts.collecting import selection, task_data
from pytest_core_rollouts.collecting.collect import RolloutFault, RolloutItem, run_key
from pytest_core_rollouts.collecting.inactive import shown
from pytest_core_rollouts.collecting.nodeids import NamedRollout, NodeIds
from pytest_core_rollouts.options.activation import task_files
from pytest_core_rollouts.options.settings import Settings, read_settings, settings_key
from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.running import completion_order, ending, pytest_files
from pytest_core_rollouts.running.failed import FailedRollouts, PutBack, TakeAgain
from pytest_core_rollouts.running.plan import CollectOnly
from pytest_core_rollouts.running.session_run import SessionRun
from pytest_core_rollouts.running.signals import Signals
from pytest_core_rollouts.running.workers import Controller, Worker, mute_output
from pytest_core_rollouts.tasks.grader_pool import POOL
from pytest_core_rollouts.text import reward_text

DRY = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test")
"""pytest's options under which nothing runs."""


def begin(config: pytest.Config) -> None:
    """Start a session with rollouts: aim pytest at the tasks, and register the hooks unless it is a dry run."""
    gc.unfreeze()  # what an earlier session of this process froze
    config.stash[settings_key] = settings = read_settings(config)
    if settings.replay is not None:
        gc.freeze()  # its rows live to the end, so no search for garbage needs to look at them
    if settings.aimed and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = existing_roots(settings, task_files(config))
    if not hasattr(config, "workerinput"):  # the controller has checked it
        task_data.refuse_collected(config)
    if any(config.getoption(name, False) for name in DRY):
        if config.option.collectonly:
            config.pluginmanager.register(CollectOnly(settings), "core-rollouts-plan")
        return
    worker = Worker(config.workerinput) if hasattr(config, "workerinput") else None
    config.stash[run_key] = run = SessionRun(config, settings, worker)
    signals = Signals()
    config.pluginmanager.register(SessionPlugin(run, signals, worker), "core-rollouts-session")
    if not run.is_worker and config.getoption("dist", "no") != "no":
        if settings.concurrency not in (None, 1) and config.getoption("dist") != "load":
            raise pytest.UsageError(
                "--dist: can't be combined with --rollout-concurrency, which assigns rollouts to workers itself; "
                "remove --dist"
            )
        run.require_core()  # before the workers start
        config.pluginmanager.register(Controller(run, signals), "core-rollouts-controller")


def header(config: pytest.Config) -> str | None:
    """Return the line that names the run and its JSONL; None in a dry run."""
    run = config.stash.get(run_key, None)
    if run is None:
        return None
    assert isinstance(run, SessionRun)
    shard = "" if run.settings.shard is None else ", shard {} of {}".format(*run.settings.shard)
    return f"rollouts: run {run.run_id}{shard}, results in {shown(run.out, config)}"


def existing_roots(settings: Settings, sources: Sequence[Path] = ()) -> list[str]:
    """Return the tasks roots that exist, and files elsewhere that make tasks. Raises pytest.UsageError without any."""
    roots = [str(root) for root in settings.roots if root.is_dir()]
    roots += [str(file) for file in sources if not any(file.is_relative_to(root) for root in roots)]
    if not roots:
        raise pytest.UsageError(
            f"no tasks: folder {', '.join(map(str, settings.roots))} not found; "
            "the ini key rollout_tasks names other folders"
        )
    return roots


Status = tuple[str, str, Any]


def soft_status(report: pytest.TestReport, *, soft: bool) -> Status | None:
    """Return how a rollout is shown if a gate judges it: not red. None: as pytest shows it."""
    properties = dict(report.user_properties)
    if report.when != "call" or hasattr(report, "wasxfail") or "status" not in properties:
        return None
    if report.skipped and properties.get("reward") is None:
        return "errored", "e", ("ERRORED", {"yellow": True})
    if not (soft and report.passed):
        return None
    return ("solved", ".", ("SOLVED", {"green": True})) if properties.get("solved") else UNSOLVED


UNSOLVED: Status = ("unsolved", "u", ("UNSOLVED", {"yellow": True}))

SUMMARY_CHARACTERS = {"unsolved": "xpP", "errored": "sxpP", "solved": "pP"}
"""Letters of -r that list each of our outcomes: -ra all except solved ones, -rA all."""


def outcome_lines(terminal: pytest.TerminalReporter) -> Iterator[str]:
    """Yield lines for pytest's short summary, as `-r` selects them."""
    for category, letters in SUMMARY_CHARACTERS.items():
        if not set(letters) & set(terminal.reportchars):
            continue
        for report in terminal.stats.get(category, ()):
            yield f"{category.upper()} {report.nodeid} - {_result_text(dict(report.user_properties))}"


def _result_text(properties: dict[str, Any]) -> str:
    reward, why = properties["reward"], properties.get("why")
    result = str(properties["status"]) if reward is None else f"reward {reward_text(reward)}"
    return result if why is None else f"{result}: {why}"


def _stopped(session: pytest.Session) -> bool:
    """Whether the session ended before its last item."""
    ran = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return bool(not ran or session.shouldstop or session.shouldfail)


class SessionPlugin:
    """The hooks of a session that runs rollouts; registered only if rollouts are requested."""

    def __init__(self, run: SessionRun, signals: Signals, worker: Worker | None) -> None:
        self.run = run
        self.signals = signals
        self.node_ids = NodeIds(run.config, run.settings)
        self.worker = worker
        self.last: RolloutItem | None = None
        if worker is None:
            signals.interrupt_pytest()
        else:
            signals.stop_on_sigterm(worker.terminate)
            run.config.pluginmanager.register(worker, "core-rollouts-worker")
        self.ending: ending.Ending | None = None
        if (terminal := run.config.pluginmanager.get_plugin("terminalreporter")) is not None:
            self.failed = FailedRollouts(terminal, self.node_ids.read)
            run.config.pluginmanager.register(PutBack(self.failed), "core-rollouts-put-back")
            run.config.pluginmanager.register(TakeAgain(self.failed), "core-rollouts-take-again")
        self._unsolved: set[str] = set()
        """Node ids of rollouts that have not solved their task; with xdist only of those that were reported."""

    # ---- before the first rollout

    @pytest.hookimpl(tryfirst=True)  # before xdist reports the collection to the controller
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if isinstance(sys.exc_info()[1], (KeyboardInterrupt, pytest.exit.Exception)):
            return  # pytest also calls this hook when it is interrupted
        found = selection.collected(session)
        if self.worker is not None:
            found.dump(self.worker.shared.path)
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return
        rollouts = [item for item in session.items if isinstance(item, RolloutItem)]
        chosen = [(item.task.id, item.agent, item.sample) for item in rollouts]
        tasks = {item.task.id: item.task for item in rollouts}
        selected = [one for one, item in zip(chosen, rollouts, strict=True) if not item.is_skipped]
        self._unsolved = {item.nodeid for item in rollouts if not item.is_skipped}
        self.run.prepare(selected, chosen, tasks.get, found)
        if self.run.ready and not self.run.is_worker:
            self.run.start_display(self.run.concurrency)

    def pytest_report_collectionfinish(self) -> list[str]:
        return [] if self.run.is_worker else self.run.preflight_lines

    # ---- running

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        done = completion_order.run_items(session, self.run)
        if done and self.run.display is not None:
            self.run.display.conclude()
        return done

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self.last is not None:
            self.last.outcome = None  # pytest keeps items until it ends; the outcome is on disk
        self.last = item if isinstance(item, RolloutItem) else None
        return completion_order.wait_before(item, nextitem, self.run)

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
            # The rollout's own duration, reported once, and not the time that pytest waited for it
            counts = (report.when == "call" or report.failed) and not item.outcome.reused
            report.duration = (item.outcome.record.duration_s or 0.0) if counts else 0.0
        return report

    def _mask(self, report: pytest.TestReport) -> None:
        """Mask secrets in what pytest shows of an item: tracebacks, with locals under -l, captured output, properties.

        Values are made plain: others' hooks may put there what aborts xdist (a lone surrogate, a path, a Decimal).
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
        # Suppress the letter but keep the verbose word, so that pytest still counts the test.
        return (status[0], "", status[2]) if display is not None and display.hides_letters else status

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, object, object]:
        with self._paused(nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        named = self.node_ids.read(report.nodeid)
        with self._paused(report.nodeid):
            result = yield
        if named is not None:
            self._note(named, report)
        return result

    def _paused(self, node_id: str) -> AbstractContextManager[None]:
        display = self.run.display
        return nullcontext() if display is None else display.paused(silent=self.node_ids.read(node_id) is not None)

    def _note(self, named: NamedRollout, report: pytest.TestReport) -> None:
        rollout_id = self.run.rollout_id(named.task_id, named.agent, named.sample)
        if report.when == "setup" and report.skipped:
            self.run.selected.pop(rollout_id, None)
            self._unsolved.discard(report.nodeid)
        if str(report.outcome) == "rerun":
            return  # by pytest-rerunfailures, or after a crash: another report follows
        if report.when == "call" or report.failed:
            self.run.reported.add(rollout_id)
            properties: dict[str, Any] = dict(report.user_properties)
            if properties.get("solved") or hasattr(report, "wasxfail"):
                self._unsolved.discard(report.nodeid)
            else:
                self._unsolved.add(report.nodeid)
            if properties.get("reused"):
                self.run.reused.add(rollout_id)
            if (display := self.run.display) is not None:
                reward, tokens = properties.get("reward"), properties.get("tokens")
                solved = bool(properties.get("solved"))
                display.progress.note(reward, tokens, report.duration, solved=solved)
                if not solved and not hasattr(report, "wasxfail") and "status" in properties:
                    mark = display.progress.marks[2 if reward is None else 1]
                    what = f"{named.task_id} {named.agent.slug} {named.sample}: {_result_text(properties)}"
                    display.show_failure(f"{mark} {what}")
                display.tick()

    # ---- after the last one

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.run.display is not None:
            self.run.display.close()
        if self.worker is None:
            self.signals.end_at_once(self.run.abort_message)
        elif self.worker.is_orphan:
            mute_output()
        self.run.stop("the session ended")
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.run.settings.shard is not None:
            session.exitstatus = pytest.ExitCode.OK  # there are more shards than groups: this one has nothing to do
        if self.worker is not None:
            self.worker.close()
        if not self.run.is_worker and (self.run.ready or self._all_skipped(session.exitstatus)):
            self.ending = ending.finish(self.run, stopped=_stopped(session))
            self._write_verdicts(session.config, self.ending)
            if session.exitstatus == pytest.ExitCode.OK and not self.ending.green:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if self.run.store.failure is not None:
                session.exitstatus = pytest.ExitCode.INTERRUPTED
        self.signals.restore()

    def _write_verdicts(self, config: pytest.Config, ended: ending.Ending) -> None:
        """Write figures and verdicts where pytest's own tools find them. pytest has written its files already."""
        judgments = ended.judged.judgments
        if (ended.summary.agents or judgments) and (xml := config.getoption("xmlpath", None)):
            try:
                file = Path(os.path.expandvars(xml)).expanduser()
                pytest_files.add_to_junit(file, ended.summary, judgments)
            except (OSError, ValueError) as error:
                ended.problems.append(f"--junitxml: {xml}: figures and verdicts can't be added: {error}")
        if not ended.judged.passed and (cache := getattr(config, "cache", None)) is not None:
            pytest_files.remember_unsolved(cache, sorted(self._unsolved))

    def _all_skipped(self, status: int | pytest.ExitCode) -> bool:
        """Whether all rollouts were skipped and there is a gate, which does not pass then."""
        return bool(self.run.settings.soft and self.run.agent_tasks and status == pytest.ExitCode.OK)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Write our summary last: pytest's list of failures would scroll the table away."""
        failed = self.failed
        failed.take()
        failed.write_sections(self._address)
        result = yield
        failed.put_back()
        failed.write_lines(outcome_lines(terminalreporter))
        if self.ending is not None:
            self.ending.write(terminalreporter)
        return result

    def _address(self, named: NamedRollout) -> str | None:
        """Return where a rollout is in the HTML report; None without one."""
        if self.ending is None or self.ending.html is None:
            return None
        rollout_id = self.run.rollout_id(named.task_id, named.agent, named.sample)
        return f"{shown(self.ending.html.path, self.run.config)}#/rollout/{quote(rollout_id, safe='')}"

    def pytest_unconfigure(self) -> None:
        self.run.close()
        POOL.close_idle()
        self.signals.restore()
