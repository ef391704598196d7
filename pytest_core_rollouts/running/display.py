"""The live display: one line that is redrawn on a terminal, or a line now and then in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import pytest

from pytest_core_rollouts.report.cells import clip
from pytest_core_rollouts.report.progress import Progress, State
from pytest_core_rollouts.text import one_line

REDRAW = 0.5
"""Seconds between two drawings on a terminal."""
LINE = 30.0
"""Seconds between two lines in a log."""
ECHO = 5
"""Columns left free after the line: a terminal that echoes `^C` there and wraps would leave the line on the screen."""
ERASE = "\x1b[K"
"""Erases a terminal's line from the cursor to its end."""


class Display:
    """Draws a run's progress between the lines that pytest writes.

    `state()` returns the current state; `places` is the most rollouts that can be in flight.
    """

    def __init__(self, config: pytest.Config, total: int, state: Callable[[], State], *, places: int = 1) -> None:
        self.progress = Progress(total, places)
        if not _writes(self.progress.marks):
            self.progress.marks = ("+", "-", "!")
        self._state = state
        self._reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
        if config.get_verbosity() < -1:
            self._reporter = None  # -qq: no progress
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._writer = config.get_terminal_writer() if self._reporter is not None else None
        self._terminal = _terminal(config, self._reporter)
        self.hides_letters = self._terminal is not None and config.get_verbosity() <= 0
        """Whether the line replaces pytest's letter for each rollout."""
        self._shows_failures = config.get_verbosity() == 0
        self._goes_back = config.getoption("capture", None) != "no"
        """Whether pytest's line continues where it was left, because nothing else was written after it."""
        self._drawn = False
        self._column = 0
        self._next = time.monotonic() + (0.0 if self._terminal is not None else LINE)
        self._lock = threading.RLock()
        self._timer: threading.Thread | None = None
        self._closed = threading.Event()

    def tick(self) -> None:
        """Draw if it is time. Cheap enough to be called several times a second."""
        now = time.monotonic()
        if now < self._next:
            return
        with self._lock:
            if self._reporter is None:
                return
            if self._terminal is None:
                self._next = now + LINE
                self._write_line(self._reporter, f"rollouts: {self.progress.line(self._state())}")
            else:
                self._next = now + REDRAW
                columns = max(0, _width(self._terminal) - ECHO)
                self._draw(self._reporter, self._terminal, self.progress.line(self._state(), columns))

    def show_failure(self, text: str) -> None:
        """Write a line on a terminal whose letters are hidden, cut at its width. The report at the end has the rest."""
        with self._lock:
            if self._reporter is None or self._terminal is None or not self._shows_failures:
                return
            self._erase()
            self._write_line(self._reporter, clip(one_line(text), _width(self._terminal) - 1))

    def _write_line(self, reporter: pytest.TerminalReporter, line: str) -> None:
        """Write a line to a log, also while pytest waits within a test and captures output."""
        with self._capture.global_and_fixture_disabled() if self._capture is not None else nullcontext():
            self._end_line(reporter)
            reporter.write(f"{line}\n", flush=True)

    def _draw(self, reporter: pytest.TerminalReporter, terminal: int, line: str) -> None:
        if not self._drawn:
            if not self._goes_back:
                self._end_line(reporter)
            reporter.flush()
            self._column = self._writer.width_of_current_line if self._writer is not None else 0
            if self._column:
                _write(terminal, "\n")
            self._drawn = True
        _write(terminal, f"\r{line}{ERASE}")

    def _end_line(self, reporter: pytest.TerminalReporter) -> None:
        if self._writer is not None and self._writer.width_of_current_line:
            reporter.write("\n")
            reporter.currentfspath = None  # the next letter names its file again

    def _erase(self) -> None:
        """Remove the line and go back to the end of pytest's own line. The next tick draws it again."""
        if self._drawn and self._terminal is not None:
            width = _width(self._terminal)
            back = f"\x1b[A\x1b[{(self._column - 1) % width + 1}C" if self._column else ""
            _write(self._terminal, f"\r{ERASE}{back}")
            self._drawn = False
            self._next = 0.0

    @contextmanager
    def paused(self, *, silent: bool = False) -> Iterator[None]:
        """Pause drawing while pytest reports a test. `silent`: the report prints nothing, so the line can stay."""
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
        """Draw nothing for `seconds`, because others are about to write."""
        with self._lock:
            self._erase()
            self._next = max(self._next, time.monotonic() + seconds)

    def tick_by_itself(self) -> None:
        """Draw in a separate thread: a controller gets no events while its workers wait."""
        self._timer = threading.Thread(target=self._tick_until_closed, name="rollouts-display", daemon=True)
        self._timer.start()

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(min(REDRAW, LINE)):
            self.tick()

    def conclude(self) -> None:
        """Write the number of rollouts in place of their letters. pytest writes the last percentage after it."""
        with self._lock:
            self._erase()
            if self._reporter is not None and self.hides_letters and (done := self.progress.done):
                self._reporter.write_ensure_prefix(f"{done} rollout{'s' if done > 1 else ''}")
        self.close()

    def close(self) -> None:
        """Stop drawing."""
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
    """Return a descriptor of the terminal that capturing does not affect; None if we can't redraw lines on one."""
    if reporter is None or not reporter.isatty or os.environ.get("TERM", "dumb") == "dumb":
        return None
    if config.pluginmanager.hasplugin("sugar") or sys.__stdout__ is None or not sys.__stdout__.isatty():
        return None
    return os.dup(sys.__stdout__.fileno())


def _writes(marks: Iterable[str]) -> bool:
    """Whether the terminal's encoding has the characters."""
    try:
        "".join(marks).encode(getattr(sys.__stdout__, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _width(terminal: int) -> int:
    with suppress(OSError):  # the terminal was closed
        return os.get_terminal_size(terminal).columns or 80
    return 80


def _write(terminal: int, text: str) -> None:
    with suppress(OSError):  # the terminal was closed; pytest will report it
        os.write(terminal, text.encode())
