"""Files and folders that get their names only once they are whole and on disk.

A killed process leaves the old one, or none. Modes follow the umask, which `tempfile` does not: others may read what
they may read of any new file of this user's, and no more.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well, and is gone otherwise. Makes its folder.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with partial.open("xb") as file:
            yield file
            sync(file)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the place of `path` when the block ends well, and is gone otherwise. Makes the one above.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def sync(file: BinaryIO) -> None:
    """Have the disk take all that was written."""
    file.flush()
    os.fsync(file.fileno())


def _partial(path: Path) -> Path:
    return path.with_name(f".rollouts-{secrets.token_hex(8)}.part")
