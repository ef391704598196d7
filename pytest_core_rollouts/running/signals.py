"""Ctrl-C and SIGTERM: the first asks for an orderly end, a second ends the process at once."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, "FrameType | None"], Any]


OVERDUE = 8.0
"""Seconds after which an orderly end that was asked for is no longer waited for; rollouts need 6 of them."""


class Signals:
    """Handlers for SIGINT and SIGTERM, put back by `restore`. Off the main thread Python has none: nothing is done."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._alarm: threading.Timer | None = None
        self._late = threading.Event()

    def handle(self, number: int, handler: Handler | signal.Handlers) -> None:
        """Install a handler, remembering the one before the first."""
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(number, handler)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        """Put back what was there."""
        self._disarm()
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    # ---- what the processes of a run do

    def interrupt_pytest(self) -> None:
        """Both signals end pytest as Ctrl-C does. A SIGINT inherited as ignored, as background jobs get it, too."""
        self.handle(signal.SIGINT, signal.default_int_handler)
        self.handle(signal.SIGTERM, _interrupt)

    def ask(self, stop: Callable[[str], None], last_words: str) -> None:
        """A controller: the first signal of either kind calls `stop`, the second ends the process.

        Where what `stop` asks for has not happened in time (a worker may be busy with another test), pytest is
        interrupted as it is without us.
        """

        def first(number: int, frame: FrameType | None) -> None:
            self.end_at_once(last_words)
            self._alarm = threading.Timer(OVERDUE, self._interrupt_late)
            self._alarm.daemon = True
            self._alarm.start()
            stop(f"stopped by {signal.Signals(number).name}")

        self.handle(signal.SIGINT, first)
        self.handle(signal.SIGTERM, first)

    def note(self, stop: Callable[[str], None]) -> None:
        """A worker: Ctrl-C reaches the whole process group, and is the controller's to handle; SIGTERM calls `stop`."""
        self.handle(signal.SIGINT, lambda number, frame: None)  # SIG_IGN would be inherited by what tests start
        self.handle(signal.SIGTERM, lambda number, frame: stop(f"stopped by {signal.Signals(number).name}"))

    def end_at_once(self, last_words: str) -> None:
        """From now on a signal ends the process, with these words."""
        self._disarm()

        def end(number: int, frame: FrameType | None) -> None:
            if self._late.is_set():
                self._late.clear()
                raise KeyboardInterrupt("the workers did not end in time")
            sys.__stderr__ and print(f"\n{last_words}", file=sys.__stderr__, flush=True)
            os._exit(2)

        self.handle(signal.SIGINT, end)
        self.handle(signal.SIGTERM, end)

    def _interrupt_late(self) -> None:
        self._late.set()
        _thread.interrupt_main()

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        self._late.clear()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")
