"""Ctrl-C, SIGTERM and SIGHUP: the first asks for an orderly end, a second ends the process at once."""

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


OVERDUE = 10.0
"""Seconds to wait for workers that were asked to end; those with rollouts on a slow Core need up to 9 of them."""


class Signals:
    """Handlers for these signals, until `restore`. Does nothing outside the main thread, as Python requires."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._alarm: threading.Timer | None = None
        self._late = threading.Event()
        self._lock = threading.Lock()
        """Guards `_alarm`: once it is None, no interrupt follows."""

    def handle(self, number: int, handler: Handler | signal.Handlers) -> None:
        """Install a handler, remembering the one before the first."""
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(number, handler)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        """Restore the handlers from before the first call of `handle`."""
        self.disarm()
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    # ---- what the processes of a run do

    def interrupt_pytest(self) -> None:
        """Make each signal end pytest as Ctrl-C does. Background jobs would otherwise ignore SIGINT."""
        self.handle(signal.SIGINT, signal.default_int_handler)
        self._handle_others(_interrupt)

    def stop_on_first(self, stop: Callable[[str], None], abort_message: str) -> None:
        """In a controller: the first signal calls `stop`, the second ends the process.

        If the workers do not end in time (one may be busy with another test), pytest is interrupted as usual.
        """

        def first(number: int, frame: FrameType | None) -> None:
            self.end_at_once(abort_message)
            self._alarm = threading.Timer(OVERDUE, self._interrupt_late)
            self._alarm.daemon = True
            self._alarm.start()
            stop(f"stopped by {signal.Signals(number).name}")

        self.handle(signal.SIGINT, first)
        self._handle_others(first)

    def stop_on_sigterm(self, stop: Callable[[str], None]) -> None:
        """In a worker: SIGTERM calls `stop`.

        Ctrl-C, and the end of a terminal, reach the whole process group, and the controller handles them.
        """

        def ignore(number: int, frame: FrameType | None) -> None:
            """Not SIG_IGN, which processes that tests start would inherit."""

        self.handle(signal.SIGINT, ignore)
        self._handle_others(ignore)
        self.handle(signal.SIGTERM, lambda number, frame: stop(f"stopped by {signal.Signals(number).name}"))

    def end_at_once(self, abort_message: str) -> None:
        """Make a signal end the process, with this message."""
        self.disarm()

        def end(number: int, frame: FrameType | None) -> None:
            if self._late.is_set():
                self._late.clear()
                if self._alarm is None:  # the workers ended at the same moment
                    return
                raise KeyboardInterrupt("the workers did not end in time")
            sys.__stderr__ and print(f"\n{abort_message}", file=sys.__stderr__, flush=True)
            os._exit(2)

        self.handle(signal.SIGINT, end)
        self._handle_others(end)

    def disarm(self) -> None:
        """Do not interrupt pytest any more for workers that are late: it no longer waits for them in its loop."""
        with self._lock:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = None

    def _handle_others(self, handler: Handler) -> None:
        """Install a handler for SIGTERM, and for SIGHUP unless `nohup` has it ignored."""
        self.handle(signal.SIGTERM, handler)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.handle(signal.SIGHUP, handler)

    def _interrupt_late(self) -> None:
        with self._lock:
            if self._alarm is not None:
                self._late.set()
                _thread.interrupt_main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")
