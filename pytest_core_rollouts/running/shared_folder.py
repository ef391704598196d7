"""What a controller and its workers exchange in files, because it can't wait for xdist's messages."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from pytest_core_rollouts.report.progress import State

PREFIX = "pytest-core-rollouts-run-"


class WorkerLink(Protocol):
    """What a worker reads from its controller and reports to it."""

    def stop_reason(self) -> str | None:
        """Why the run must stop, or None."""

    def maybe_finished(self) -> Collection[str]:
        """Ids of rollouts that a dead worker may have finished."""

    def reported_elsewhere(self) -> Collection[str]:
        """Ids of rollouts that were reported to pytest by a dead worker or, given up, by the controller."""

    def assigned_items(self) -> Sequence[int]:
        """Which of the collected items are this worker's, if the controller assigned them all at once."""

    def publish(self, state: State) -> None:
        """Publish the state of this worker, now and then."""

    def mark_failed(self, reason: str) -> None:
        """Stop all workers: rows can't be written any more."""

    def name_left_behind(self, text: str) -> None:
        """Report a Session that could not be deleted."""


class NoLink:
    """The link of a run without workers."""

    def stop_reason(self) -> str | None:
        return None

    def maybe_finished(self) -> Collection[str]:
        return ()

    def reported_elsewhere(self) -> Collection[str]:
        return ()

    def assigned_items(self) -> Sequence[int]:
        return ()

    def publish(self, state: State) -> None:
        """Do nothing."""

    def mark_failed(self, reason: str) -> None:
        """Do nothing: no other process writes rows."""

    def name_left_behind(self, text: str) -> None:
        """Do nothing: the process that reports the end knows it."""


class SharedFolder:
    """Files that a controller and its workers share: a worker that waits for a rollout reads no messages of xdist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None

    # ---- the folder exists as long as one of its processes

    @classmethod
    def make(cls) -> SharedFolder:
        """Make a folder and hold it. Folders of controllers that were killed are removed."""
        for abandoned in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            _remove_unless_held(abandoned)
        new = cls(Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}")))
        new.hold()
        new.path = new.path.rename(new.path.with_name(new.path.name.removeprefix("new-")))
        return new

    def hold(self) -> None:
        """Keep others from removing the folder while this process lives. Raises OSError if it was removed."""
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Stop holding the folder. The last process removes it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        _remove_unless_held(self.path)

    def remove(self) -> None:
        """Remove the folder at the end of the run."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    # ---- stopping

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """Make every worker cancel its rollouts and start nothing more. `urgent`: it ends its current test too."""
        if urgent:
            (self.path / "urgent").touch()
        partial = self.path / "stop.part"
        with suppress(OSError):  # on a full disk the file is empty, and still stops them
            partial.write_text(reason, encoding="utf-8")
        partial.replace(self.path / "stop")

    def fail(self, reason: str) -> None:
        """Stop all workers, because this one can't write its rows any more."""
        (self.path / "broken").write_text(reason, encoding="utf-8")
        self.stop(reason)

    @property
    def failure(self) -> str | None:
        """Why a worker could not write its rows; None if all could."""
        file = self.path / "broken"
        return file.read_text(encoding="utf-8") if file.exists() else None

    @property
    def urgent(self) -> bool:
        """Whether a signal ends the run."""
        return (self.path / "urgent").exists()

    @property
    def stop_reason(self) -> str | None:
        file = self.path / "stop"
        return file.read_text(encoding="utf-8") if file.exists() else None

    def name_left_behind(self, text: str) -> None:
        """Add the name of a Session that could not be deleted, with the reason."""
        with suppress(OSError), (self.path / "left").open("a", encoding="utf-8") as file:  # no folder: no controller
            file.write(f"{' '.join(text.split())}\n")

    def left_behind(self) -> list[str]:
        """Return what workers named as left behind."""
        file = self.path / "left"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def assign(self, worker: str, indices: Iterable[int]) -> None:
        """Set which items are the worker's."""
        (self.path / f"{worker}.items").write_text(" ".join(map(str, indices)), encoding="ascii")

    def assigned_to(self, worker: str) -> list[int]:
        file = self.path / f"{worker}.items"
        return [int(index) for index in file.read_text(encoding="ascii").split()] if file.exists() else []

    def publish(self, worker: str, state: State) -> None:
        """Publish a worker's state."""
        partial = self.path / f"{worker}.part"
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(self.path / f"{worker}.state")

    def forget(self, worker: str) -> None:
        """Remove the state of a worker that has ended."""
        (self.path / f"{worker}.state").unlink(missing_ok=True)

    def state(self) -> State:
        """Return the sum of all workers' states, with what the first one waits for."""
        states = []
        for file in sorted(self.path.glob("*.state")):
            with suppress(FileNotFoundError):  # the worker has just ended
                states.append(State(*json.loads(file.read_text(encoding="utf-8"))))
        waits = [state.waits for state in states if state.waits]
        others = f" (and {len(waits) - 1} of {len(states) - 1} other workers)" if len(waits) > 1 else ""
        first = min((state for state in states if state.oldest), key=lambda state: state.since, default=State())
        return State(
            sum(state.in_flight for state in states), f"{waits[0]}{others}" if waits else "", first.oldest, first.since
        )

    def add(self, kind: Literal["again", "reported"], rollout_ids: Iterable[str]) -> None:
        """Add to a list. "again": started by a worker that died, so look for their rows first. "reported": pytest has
        their report, so they must not run again."""
        with (self.path / kind).open("a", encoding="ascii") as file:
            file.writelines(f"{rollout_id}\n" for rollout_id in rollout_ids)

    def listed(self, kind: Literal["again", "reported"]) -> frozenset[str]:
        file = self.path / kind
        return frozenset(file.read_text(encoding="ascii").split()) if file.exists() else frozenset()


def _remove_unless_held(path: Path) -> None:
    """Remove this user's folder unless a process holds it. A killed process holds nothing."""
    with suppress(OSError):  # another user owns it, a process holds it, or it was removed
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(folder).st_uid == os.getuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(folder)
