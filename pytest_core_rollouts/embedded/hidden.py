"""Paths of this machine that no sandbox may show, for this process and the processes that it starts.

    end = hide([rootdir, tasks, results])   # from now on, in every new sandbox
    hidden_places()                         # ("/srv/project", "/srv/results")
    end()

A child process gets them from the environment variable CORE_ROLLOUTS_HIDDEN. A child without this environment must be
given `hidden_places()` and call `hide` itself. Only uses the standard library, so that importing it is cheap.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "CORE_ROLLOUTS_HIDDEN"
PROGRAM_FOLDERS: Final = (
    *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec"),
    *("include", "share", "games", "ssl"),
)
"""The parts of a folder like /usr that sandboxes still show if the folder itself is hidden."""
_BYTES: Final = 48 * 1024  # the kernel passes at most 128 KiB as one variable, and bwrap takes 3,000 masks

_lock = threading.Lock()
_counts: Counter[str] = Counter()
"""How often each place is hidden: two runs in one process may hide the same place."""


def hide(places: Iterable[str | os.PathLike[str]]) -> Callable[[], None]:
    """Hide these places from every sandbox created from now on. Returns a function that ends it."""
    real = frozenset(os.path.realpath(place) for place in places)
    with _lock:
        _counts.update(real)
        _publish()
    ended = threading.Event()

    def end() -> None:
        with _lock:
            if not ended.is_set():
                ended.set()
                _counts.subtract(real)
                _publish()

    return end


def hidden_places() -> tuple[str, ...]:
    """Return the places that no sandbox may show: real paths, sorted, merged so that they are few."""
    with _lock:
        return _places()


def merge_places(places: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the fewest real paths that hide all of these: paths inside another one are left out.

    If very many are left, they are replaced by the folders around them.
    """
    return _fewest({os.path.realpath(place) for place in places})


def _fewest(real: Set[str]) -> tuple[str, ...]:
    kept: set[str] = set()
    whole: set[str] = set()  # those that are hidden whole
    for place in sorted(real, key=_depth):
        around = _parent(place)
        while around not in whole and around != "/":
            around = _parent(around)
        if around not in whole:
            kept.add(place)
            if not holds_programs(place):
                whole.add(place)
    while sum(len(os.fsencode(place)) for place in kept) > _BYTES:
        deepest = max(map(_depth, kept))
        kept = {_parent(place) if _depth(place) == deepest else place for place in kept}
    return tuple(sorted(kept))


def _parent(place: str) -> str:
    return place.rpartition("/")[0] or "/"


@dataclass(frozen=True)
class Places:
    """Real paths. A sandbox never shows `private`; it shows a part of `hidden` if the user mounts it."""

    hidden: tuple[str, ...] = ()
    private: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Both kinds."""
        return (*self.hidden, *self.private)


def find_places(
    project: Iterable[Path], *, tasks: Iterable[Path] = (), files: Iterable[Path] = (), folders: Iterable[Path] = ()
) -> Places:
    """Return what to hide for a project: its folders and the working directory, and what is private.

    `tasks`: folders that are or contain tasks; `files`: result files; `folders`: folders with only results or captures.
    The folders around tasks and files are hidden too, because they contain other tasks, kept files and results.
    """
    files, tasks = list(files), list(tasks)
    real = {os.path.realpath(task) for task in tasks}
    around = {os.path.realpath(parent) for parent in {task.parent for task in tasks}}
    around |= {_parent(task) for task in real}
    around = {place for place in around if not _is_for_programs(place)}  # there only the task itself can be hidden
    kept = [
        path for file in files for path in (file, file.with_suffix(".files"), file.with_name(f".{file.stem}.files"))
    ]
    hidden = merge_places([*project, Path.cwd(), *around, *(file.parent for file in files)])
    return Places(hidden, _fewest({*real, *(os.path.realpath(path) for path in (*folders, *kept))}))


def _is_for_programs(place: str) -> bool:
    """Return whether the folder can't be hidden because the system's programs or Python are in it."""
    return holds_programs(place) or (Path(place).name in PROGRAM_FOLDERS and holds_programs(_parent(place)))


def holds_programs(place: str) -> bool:
    """Return whether the system's programs or the running Python are below, so that it can't be hidden as a whole."""
    roots = ("/usr", "/usr/local", os.path.realpath(sys.base_prefix))
    return any(place == root or root.startswith(place.rstrip("/") + "/") for root in roots)


def _depth(place: str) -> int:
    return place.rstrip("/").count("/")


def _places() -> tuple[str, ...]:
    return merge_places([place for place, count in _counts.items() if count > 0])


def _publish() -> None:
    if places := _places():
        os.environ[VARIABLE] = json.dumps(places)
    else:
        os.environ.pop(VARIABLE, None)


def _inherit() -> None:
    """Hide what the parent process hid when it started this one, until this process ends."""
    if not (text := os.environ.get(VARIABLE)):
        return
    try:
        places = json.loads(text)
    except ValueError:
        places = None
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise ImportError(f"{VARIABLE}: expected a JSON list of paths, got {text[:100]!r}; unset it")
    _counts.update(places)


_inherit()
