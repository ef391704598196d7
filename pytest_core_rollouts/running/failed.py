"""How failed rollouts are listed at the end: equal failures together, and each on a line that is never cut.

pytest lists what is in `terminalreporter.stats`, cuts the lines at the terminal's width, and repeats what is equal. So
rollouts are taken out of it while pytest writes its own lists: its hook writes some before all other summaries (such as
that of --durations, which need the rollouts), and some after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from pytest_core_rollouts.collecting.nodeids import NamedRollout
from pytest_core_rollouts.tasks.matrix import name_rollouts

SECTIONS: Final = {"error": "ROLLOUTS WITHOUT A REWARD", "failed": "FAILED ROLLOUTS"}
"""pytest's categories, with our titles."""
LETTERS: Final = {"failed": "f", "error": "E"}
"""The letter of -r that lists each category."""

Sections = Sequence[tuple[str, str]]
"""Captured output: titles and texts."""
_Failure = tuple[NamedRollout, str, Sections]
"""A rollout, the ids to look it up, and what was captured."""


@dataclass
class FailedRollouts:
    """The failed rollouts of a session. `read(node_id)` returns a rollout's names, None for other tests."""

    terminal: pytest.TerminalReporter
    read: Callable[[str], NamedRollout | None]
    _all: dict[str, list[pytest.TestReport]] = field(default_factory=dict)
    _ours: dict[str, list[tuple[NamedRollout, pytest.TestReport]]] = field(default_factory=dict)

    def take(self) -> None:
        """Take rollouts out of what pytest lists. Those with a traceback stay there."""
        for category in SECTIONS:
            self._all[category] = reports = self.terminal.stats.get(category, [])
            ours = self._ours[category] = []
            others = []
            for report in reports:
                named = self.read(report.nodeid) if isinstance(report.longrepr, str) else None
                if named is None:
                    others.append(report)
                else:
                    ours.append((named, report))
            if ours:
                self.terminal.stats[category] = others

    def put_back(self) -> None:
        """Undo `take`."""
        self.terminal.stats.update({category: reports for category, reports in self._all.items() if reports})

    def write_sections(self, address: Callable[[NamedRollout], str | None]) -> None:
        """Write why rollouts failed. Errors, and with -v all, have the ids to look them up, and `address` if any."""
        if self.terminal.config.option.tbstyle in ("no", "line"):
            return
        for category, title in SECTIONS.items():
            if self._ours[category]:
                self.terminal.write_sep("=", title)
            for text, group in _equal(self._ours[category]):
                [name] = name_rollouts((one.task_id, one.agent, one.sample) for one, _, _ in group)
                self.terminal.write_sep("_", name, red=True, bold=True)
                lines = text.splitlines()
                for named, ids, _ in group:
                    if ids and (category == "error" or self.terminal.verbosity > 0):
                        lines.append(ids)
                    lines += filter(None, [address(named)])
                for line in lines:
                    self.terminal.write_line(line)
                self._write_captured(group[0][2])

    def _write_captured(self, sections: Sections) -> None:
        wanted = self.terminal.config.option.showcapture
        for name, text in sections:
            if wanted == "all" or wanted in name:
                self.terminal.write_sep("-", name)
                self.terminal.write_line(text.removesuffix("\n"))

    def write_lines(self, more: Iterable[str]) -> None:
        """Write a line for each failed rollout, as `-r` selects them, and `more` lines."""
        lines = [
            f"{category.upper()} {report.nodeid} - {str(report.longrepr).partition(chr(10))[0]}"
            for category, letter in LETTERS.items()
            if letter in self.terminal.reportchars
            for _, report in self._ours[category]
        ]
        if lines := [*lines, *more]:
            self.terminal.write_sep("=", "short summary of rollouts", cyan=True, bold=True)
        for line in lines:
            self.terminal.write_line(line)


class PutBack:
    """Puts rollouts back before other plugins write their summaries."""

    def __init__(self, failed: FailedRollouts) -> None:
        self._failed = failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self) -> None:
        self._failed.put_back()


class TakeAgain:
    """Takes them out again before pytest writes its short summary."""

    def __init__(self, failed: FailedRollouts) -> None:
        self._failed = failed

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self) -> None:
        self._failed.take()


def _equal(failed: Iterable[tuple[NamedRollout, pytest.TestReport]]) -> Iterator[tuple[str, list[_Failure]]]:
    """Yield each text with the rollouts of one task and agent that have it, and the same captured output."""
    groups: dict[tuple[str, str, str, str], list[_Failure]] = {}
    for named, report in failed:
        text, _, ids = str(report.longrepr).rpartition("\n")
        if not (text and ids.startswith("[")):
            text, ids = str(report.longrepr), ""
        key = named.task_id, named.agent.slug, text, repr(report.sections)
        groups.setdefault(key, []).append((named, ids, report.sections))
    for (_, _, text, _), group in groups.items():
        yield text, group
