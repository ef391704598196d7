"""Task folders and what agents left are data: pytest imports nothing and applies no settings from them.

Before our plugin is loaded, `pytest tasks/x` has read an ini file in `tasks/x`; the run is refused then too.
Every run of pytest in any project imports this module, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_core_rollouts.options.activation import roots_of
from pytest_core_rollouts.options.declared import default_paths
from pytest_core_rollouts.records.kept_folders import kept_folder_around
from pytest_core_rollouts.tasks.folders import (
    PARTS,
    is_task_folder,
    looks_like_task,
    settings_of_pytest,
    task_around,
    utf8_name,
)
from pytest_core_rollouts.text import escaped, name_problem, printable

refused_key = pytest.StashKey[list[Path]]()
"""The files for which a run was refused; `check` looks here."""


def refusal(file: Path) -> str:
    """Return the error for a file of pytest's settings in a task folder."""
    return f"{escaped(str(file))}: a task folder is data and must not configure pytest; remove the file, or move it"


def guard_first_imports(config: pytest.Config) -> None:
    """Refuse named data before the first conftest.py is imported, and keep pytest out of named task folders.

    Raises pytest.UsageError. pytest looks for a conftest.py in each named folder, and in its subfolders `test*`. In a
    task these are data as well, so a task folder is given to pytest's first pass as its instruction file.
    """
    here, roots = config.invocation_params.dir, roots_of(config)
    namespace = config.known_args_namespace
    named: list[str] = namespace.file_or_dir
    paths = [_absolute(here, argument) for argument in named or default_paths(config)]
    for path in paths if named else [*paths, here]:
        _refuse_data(path, roots)
    folders = [folder for path in paths for folder in _conftest_folders(path) if is_task_folder(folder, roots)]
    if config.inipath is not None:
        _refuse_data(config.inipath, roots, settings=True)
        if looks_like_task(config.inipath.parent):
            folders.append(config.inipath.parent)
    refuse(config, _settings_in(folders))
    if any(is_task_folder(path, roots) for path in paths):
        named[:] = [
            str(next((path / part for part in PARTS if (path / part).is_file()), path))
            if is_task_folder(path, roots)
            else str(path)
            for path in paths
        ]


def refuse_collected(config: pytest.Config) -> None:
    """Before collection: raise pytest.UsageError if a task that is going to be collected holds settings of pytest."""
    here = config.invocation_params.dir
    paths = [_absolute(here, argument) for argument in config.args]
    refuse(config, _settings_in(_tasks_below(config, paths)))


def refuse(config: pytest.Config, files: Iterable[Path]) -> None:
    """Raise pytest.UsageError, with a line for each file, if there are any."""
    if found := list(dict.fromkeys(files)):
        config.stash[refused_key] = found
        raise pytest.UsageError(*map(refusal, found))


def problem_of_folder(path: Path) -> str | None:
    """Return why a folder within a tasks root, or a task folder, can't be collected; None if it can."""
    if (problem := name_problem(utf8_name(path.name))) is not None:
        return f"{escaped(utf8_name(str(path)))}: {problem}"
    return None


class RefusedFolder(pytest.File):
    """A folder that is an error. It is not a pytest.Directory, because pytest imports the conftest.py of these."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        files = settings_of_pytest(self.path)
        raise self.CollectError(printable(problem_of_folder(self.path) or "\n".join(map(refusal, files))))


def _absolute(here: Path, argument: str) -> Path:
    return Path(os.path.normpath(here / argument.split("::")[0]))


def _refuse_data(path: Path, roots: tuple[Path, ...], *, settings: bool = False) -> None:
    """Raise pytest.UsageError for a path in a task folder or among kept files, also through a link."""
    shown = escaped(str(path))
    if (kept := kept_folder_around(path)) is not None:
        where = escaped(str(kept))
        raise pytest.UsageError(
            f"{shown} is inside {where}, which holds what agents left and no tests; name another path"
        )
    for place in dict.fromkeys((path, path.resolve())):
        folder = task_around(place, roots)
        if folder is not None and not (settings and folder == place.parent):
            named = escaped(str(folder))
            raise pytest.UsageError(
                f"{shown} is inside a task folder, which contains no tests; pass the task instead: {named}"
            )


def _conftest_folders(path: Path) -> list[Path]:
    """Return the folders in which pytest looks for a conftest.py because of this path, without those above it."""
    if not path.is_dir():
        return [path.parent]
    return [path, *(child for child in path.glob("test*") if child.is_dir())]


def _settings_in(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from settings_of_pytest(folder)


def _tasks_below(config: pytest.Config, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the task folders that pytest will collect. Links are followed as pytest follows them."""
    roots = roots_of(config)
    skipped: list[str] = config.getini("norecursedirs")
    ignored = {_absolute(config.invocation_params.dir, path) for path in config.getoption("ignore") or ()}
    pending = [path if path.is_dir() else path.parent for path in paths if path.is_dir() or path.name in PARTS]
    seen: set[tuple[int, int]] = set()
    while pending:
        folder = pending.pop()
        try:
            status = folder.stat()
            entries = list(os.scandir(folder))
        except OSError:
            continue  # pytest reports it
        if folder in ignored or (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if not {entry.name for entry in entries}.isdisjoint(PARTS) and is_task_folder(folder, roots):
            yield folder
            continue
        children = [entry for entry in entries if not any(fnmatch(entry.name, pattern) for pattern in skipped)]
        pending += [Path(entry.path) for entry in children if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
