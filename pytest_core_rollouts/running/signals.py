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
"""Seconds to wait for an orderly end that was requested; rollouts need 6 of them."""


class Signals:
    """Handlers for SIGINT and SIGTERM, until `restore`. Does nothing outside the main thread, as Python requires."""

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
        """Restore the handlers from before the first call of `handle`."""
        self._disarm()
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    # ---- what the processes of a run do

    def interrupt_pytest(self) -> None:
        """Make both signals end pytest as Ctrl-C does. Background jobs would otherwise ignore SIGINT."""
        self.handle(signal.SIGINT, signal.default_int_handler)
        self.handle(signal.SIGTERM, _interrupt)

    def stop_on_first(self, stop: Callable[[str], None], abort_message: str) -> None:
        """In a controller: the first signal calls `stop`, the second ends the process.

        If the run does not end in time (a worker may be busy with another test), pytest is interrupted as usual.
        """

        def first(number: int, frame: FrameType | None) -> None:
            self.end_at_once(abort_message)
            self._alarm = threading.Timer(OVERDUE, self._interrupt_late)
            self._alarm.daemon = True
            self._alarm.start()
            stop(f"stopped by {signal.Signals(number).name}")

        self.handle(signal.SIGINT, first)
        self.handle(signal.SIGTERM, first)

    def stop_on_sigterm(self, stop: Callable[[str], None]) -> None:
        """In a worker: SIGTERM calls `stop`. Ctrl-C reaches the whole process group, and the controller handles it."""
        self.handle(signal.SIGINT, lambda number, frame: None)  # processes that tests start would inherit SIG_IGN
        self.handle(signal.SIGTERM, lambda number, frame: stop(f"stopped by {signal.Signals(number).name}"))

    def end_at_once(self, abort_message: str) -> None:
        """Make a signal end the process, with this message."""
        self._disarm()

        def end(number: int, frame: FrameType | None) -> None:
            if self._late.is_set():
                self._late.clear()
                raise KeyboardInterrupt("the workers did not end in time")
            sys.__stderr__ and print(f"\n{abort_message}", file=sys.__stderr__, flush=True)
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
