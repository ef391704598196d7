"""A folder of files by which a controller and its workers tell each other what cannot wait for xdist."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pytest_core_rollouts.running.display import State

PREFIX = "pytest-core-rollouts-run-"


class SharedFolder:
    """Workers that wait for rollouts hear nothing else of their controller, which hears nothing of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None

    # ---- as long as one of them lives, it stays

    @classmethod
    def make(cls) -> SharedFolder:
        """A new one, held. Those that nobody holds any more, since their controllers were killed, are removed."""
        for abandoned in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            _remove_unless_held(abandoned)
        new = cls(Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}")))
        new.hold()
        new.path = new.path.rename(new.path.with_name(new.path.name.removeprefix("new-")))
        return new

    def hold(self) -> None:
        """While this process lives, nobody is to take it for abandoned. Raises OSError where it is gone."""
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Hold it no longer; the last one removes it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        _remove_unless_held(self.path)

    def remove(self) -> None:
        """All is over."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    # ---- stopping

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """Every worker is to cancel what it has in flight and to start nothing more. `urgent`: nor to end its test."""
        if urgent:
            (self.path / "urgent").touch()
        partial = self.path / "stop.part"
        partial.write_text(reason, encoding="utf-8")
        partial.replace(self.path / "stop")

    def break_off(self, reason: str) -> None:
        """The same, from a worker that can't write its rows any more."""
        (self.path / "broken").write_text(reason, encoding="utf-8")
        self.stop(reason)

    @property
    def broken(self) -> str | None:
        """Why a worker broke off."""
        file = self.path / "broken"
        return file.read_text(encoding="utf-8") if file.exists() else None

    @property
    def urgent(self) -> bool:
        """Whether a signal is what ends the run."""
        return (self.path / "urgent").exists()

    @property
    def stop_reason(self) -> str | None:
        file = self.path / "stop"
        return file.read_text(encoding="utf-8") if file.exists() else None

    def deal(self, worker: str, indices: Iterable[int]) -> None:
        """These items are the worker's."""
        (self.path / f"{worker}.items").write_text(" ".join(map(str, indices)), encoding="ascii")

    def dealt_to(self, worker: str) -> list[int]:
        file = self.path / f"{worker}.items"
        return [int(index) for index in file.read_text(encoding="ascii").split()] if file.exists() else []

    def tell(self, worker: str, state: State) -> None:
        """How things stand in a worker."""
        partial = self.path / f"{worker}.part"
        partial.write_text(f"{state.in_flight} {state.waits}", encoding="utf-8")
        partial.replace(self.path / f"{worker}.state")

    def forget(self, worker: str) -> None:
        """The worker is gone."""
        (self.path / f"{worker}.state").unlink(missing_ok=True)

    def state(self) -> State:
        """How things stand in all workers; of their troubles the first one's."""
        told = []
        for file in sorted(self.path.glob("*.state")):
            with suppress(FileNotFoundError):  # the worker has just gone
                told.append(file.read_text(encoding="utf-8").partition(" "))
        waits = [text for _, _, text in told if text]
        others = f" (and {len(waits) - 1} of {len(told) - 1} other workers)" if len(waits) > 1 else ""
        return State(sum(int(in_flight) for in_flight, _, _ in told), f"{waits[0]}{others}" if waits else "")

    def add(self, kind: Literal["again", "told"], rollout_ids: Iterable[str]) -> None:
        """`again`: begun by a worker that died, to be looked for among the rows first. `told`: not to be run,
        since pytest has heard of them."""
        with (self.path / kind).open("a", encoding="ascii") as file:
            file.writelines(f"{rollout_id}\n" for rollout_id in rollout_ids)

    def listed(self, kind: Literal["again", "told"]) -> frozenset[str]:
        file = self.path / kind
        return frozenset(file.read_text(encoding="ascii").split()) if file.exists() else frozenset()


def _remove_unless_held(path: Path) -> None:
    """Remove a folder of ours, unless a process holds it; a kill lets go of it too."""
    with suppress(OSError):  # it is somebody else's, held, or gone
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(folder).st_uid == os.getuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(folder)
