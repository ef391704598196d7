"""The live display: one line that is redrawn on a terminal, elsewhere a line now and then, so no run looks hung."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

import pytest

from pytest_core_rollouts.report.progress import Progress

REDRAW = 0.5
"""Seconds between two drawings on a terminal."""
LINE = 30.0
"""Seconds between two lines in a log."""


class State(NamedTuple):
    """How things stand right now."""

    in_flight: int
    """Rollouts that are under way."""
    waits: str
    """What they wait for beside their agents; "" for nothing."""


class Display:
    """Draws a run's progress between the lines that pytest writes.

    `state` tells how things stand; `places` is the most rollouts that there can be in flight.
    """

    def __init__(self, config: pytest.Config, total: int, state: Callable[[], State], *, places: int = 1) -> None:
        self.progress = Progress(total, places)
        self._state = state
        self._reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
        if config.get_verbosity() < -1:
            self._reporter = None  # -qq: as little as can be
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._writer = config.get_terminal_writer() if self._reporter is not None else None
        self._terminal = _terminal(config, self._reporter)
        self.hides_letters = self._terminal is not None and config.get_verbosity() <= 0
        """Whether the line stands in for pytest's letter per rollout."""
        self._goes_back = config.getoption("capture", None) != "no"
        """Whether pytest's line goes on where it was left: nothing else was written behind it."""
        self._drawn = False
        self._column = 0
        self._next = time.monotonic() + (0.0 if self._terminal is not None else LINE)
        self._lock = threading.RLock()
        self._timer: threading.Thread | None = None
        self._closed = threading.Event()

    def tick(self) -> None:
        """Draw, if it is time to. Cheap enough to call several times a second."""
        now = time.monotonic()
        if now < self._next:
            return
        with self._lock:
            if self._reporter is None:
                return
            in_flight, waits = self._state()
            line = f"rollouts: {f'{waits}; ' if waits else ''}{self.progress.line(in_flight)}"
            if self._terminal is None:
                self._next = now + LINE
                self._say(self._reporter, line)
            else:
                self._next = now + REDRAW
                self._draw(self._reporter, self._terminal, line)

    def _say(self, reporter: pytest.TerminalReporter, line: str) -> None:
        """A line of its own in a log, also when pytest waits within a test and captures what is written."""
        with self._capture.global_and_fixture_disabled() if self._capture is not None else nullcontext():
            self._end_line(reporter)
            reporter.write(f"{line}\n", flush=True)

    def _draw(self, reporter: pytest.TerminalReporter, terminal: int, line: str) -> None:
        width = os.get_terminal_size(terminal).columns or 80
        if not self._drawn:
            if not self._goes_back:
                self._end_line(reporter)
            reporter.flush()
            self._column = self._writer.width_of_current_line if self._writer is not None else 0
            if self._column:
                _write(terminal, "\n")
            self._drawn = True
        _write(terminal, f"\r{line[: width - 1]:<{width - 1}}")

    def _end_line(self, reporter: pytest.TerminalReporter) -> None:
        if self._writer is not None and self._writer.width_of_current_line:
            reporter.write("\n")
            reporter.currentfspath = None  # the next letter names its file again

    def _erase(self) -> None:
        """Take the line away, and go back to where pytest's own line ends. It comes back with the next tick."""
        if self._drawn and self._terminal is not None:
            width = os.get_terminal_size(self._terminal).columns or 80
            back = f"\x1b[A\x1b[{(self._column - 1) % width + 1}C" if self._column else ""
            _write(self._terminal, f"\r{'':<{width - 1}}\r{back}")
            self._drawn = False
            self._next = 0.0

    @contextmanager
    def aside(self, *, silent: bool = False) -> Iterator[None]:
        """While pytest tells of a test: nothing is drawn, and nothing is in its way, unless it has nothing to say."""
        with self._lock:
            if not (silent and self.hides_letters):
                self._erase()
                yield
                return
            assert self._reporter is not None
            names_files = self._reporter.showfspath
            self._reporter.showfspath = False
            try:
                yield
            finally:
                self._reporter.showfspath = names_files

    def hold(self, seconds: float) -> None:
        """Draw nothing for so long: others are about to write."""
        with self._lock:
            self._erase()
            self._next = max(self._next, time.monotonic() + seconds)

    def tick_by_itself(self) -> None:
        """Draw from a thread of its own: for a controller, which hears nothing while its workers wait."""
        self._timer = threading.Thread(target=self._tick_until_closed, name="rollouts-display", daemon=True)
        self._timer.start()

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(min(REDRAW, LINE)):
            self.tick()

    def conclude(self) -> None:
        """All tests are done: what stands where the letters would; pytest writes the last percentage behind it."""
        with self._lock:
            self._erase()
            if self._reporter is not None and self.hides_letters and (done := self.progress.done):
                self._reporter.write_ensure_prefix(f"{done} rollout{'s' if done > 1 else ''}")
        self.close()

    def close(self) -> None:
        """Nothing is drawn any more."""
        self._closed.set()
        if self._timer is not None:
            self._timer.join()
        with self._lock:
            self._erase()
            self._reporter = None
            if self._terminal is not None:
                os.close(self._terminal)
                self._terminal = None


def _terminal(config: pytest.Config, reporter: pytest.TerminalReporter | None) -> int | None:
    """A descriptor of the terminal, which no capturing touches; None where there is none that we alone redraw on."""
    if reporter is None or not reporter.isatty or os.environ.get("TERM", "dumb") == "dumb":
        return None
    if config.pluginmanager.hasplugin("sugar") or sys.__stdout__ is None or not sys.__stdout__.isatty():
        return None
    return os.dup(sys.__stdout__.fileno())


def _write(terminal: int, text: str) -> None:
    with suppress(OSError):  # the terminal is gone; pytest will say so
        os.write(terminal, text.encode())
