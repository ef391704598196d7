"""The live display: on a terminal one line that is redrawn, elsewhere a line now and then, so that no run looks hung."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from pytest_core_rollouts.report.progress import Progress

REDRAW = 0.5
"""Seconds between two drawings on a terminal."""
LINE = 30.0
"""Seconds between two lines in a log."""


class Display:
    """Draws a run's progress through pytest's terminal reporter.

    `in_flight` tells how many rollouts are under way, None where that is not known.
    """

    def __init__(self, config: pytest.Config, total: int, in_flight: Callable[[], int | None]) -> None:
        self.progress = Progress(total, time.monotonic())
        self._in_flight = in_flight
        self._reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
        self._redraws = _can_redraw(config, self._reporter)
        self.hides_letters = self._redraws and config.get_verbosity() <= 0
        """Whether the line stands in for pytest's letter per rollout."""
        self._drawn = False
        self._next = time.monotonic() + (0.0 if self._redraws else LINE)
        self._lock = threading.Lock()
        self._timer: threading.Thread | None = None
        self._closed = threading.Event()
        if self.hides_letters and self._reporter is not None:
            self._reporter.showfspath = False

    def tick(self) -> None:
        """Draw, if it is time to. Cheap enough to call several times a second."""
        now = time.monotonic()
        if self._reporter is None or now < self._next:
            return
        with self._lock:
            self._next = now + (REDRAW if self._redraws else LINE)
            self._draw(f"rollouts: {self.progress.line(now, self._in_flight())}")

    def _draw(self, line: str) -> None:
        assert self._reporter is not None
        if not self._redraws:
            self._reporter.write(f"\n{line}\n")
            self._reporter.currentfspath = None  # the next letter names its file again
            return
        if not self._drawn:
            self._reporter.ensure_newline()
        width = os.get_terminal_size().columns if os.isatty(1) else 80
        self._reporter.rewrite(line[: width - 1], erase=True)
        self._reporter.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the line away, before anything else is written."""
        if self._drawn and self._reporter is not None:
            with self._lock:
                self._reporter.rewrite("", erase=True)
                self._reporter.write("\r")
                self._drawn = False

    def tick_by_itself(self) -> None:
        """Draw from a thread of its own: for a controller, which hears nothing while its workers wait."""
        self._timer = threading.Thread(target=self._tick_until_closed, name="rollouts-display", daemon=True)
        self._timer.start()

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(REDRAW):
            self.tick()

    def close(self) -> None:
        """Nothing is drawn any more."""
        self._closed.set()
        if self._timer is not None:
            self._timer.join()
        self.clear()
        self._reporter = None


def _can_redraw(config: pytest.Config, reporter: pytest.TerminalReporter | None) -> bool:
    """Whether the output is a terminal that nobody else draws on."""
    if reporter is None or not reporter.isatty or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return not config.pluginmanager.hasplugin("sugar")
