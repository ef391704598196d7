"""Tab completion of harnesses and tasks, where argcomplete is installed and the shell asks it about `pytest`.

pytest itself completes the names of options. argcomplete asks an argparse action for its values, as `completer`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

REQUESTED = "_ARGCOMPLETE" in os.environ
"""Whether this process only completes a command line."""


class _Append(argparse.Action):
    """What `append` does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), values])


class _Harnesses(_Append):
    def completer(self, prefix: str, **_: object) -> Iterable[str]:
        """Return the names of harnesses, and the YAML files and folders that begin with the prefix."""
        from argcomplete.completers import FilesCompleter

        from pytest_core_rollouts.tasks.matrix import HARNESS_PROTOCOLS

        return [*HARNESS_PROTOCOLS, *FilesCompleter(("yaml", "yml"))(prefix)]


class _Tasks(_Append):
    roots: Callable[[], Sequence[Path]]

    def completer(self, prefix: str, **_: object) -> Iterable[str]:
        """Return the ids of the project's tasks."""
        from pytest_core_rollouts.tasks.folders import tasks_below

        found = tasks_below(_Tasks.roots())
        return [folder.relative_to(root).as_posix() for folder, root in found.items()]


ACTIONS = {"harness": _Harnesses, "task": _Tasks}
"""The actions of options whose values are completed, by name."""


def prepare(roots: Callable[[], Sequence[Path]]) -> None:
    """Let tasks be found in the folders that `roots` returns."""
    _Tasks.roots = staticmethod(roots)
