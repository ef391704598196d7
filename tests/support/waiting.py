"""A bound against hanging, for tests of what must not be waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

HANG_SECONDS = 60.0
"""Seconds after which a test counts as hanging. A busy machine may take ten times as long as an idle one."""


@contextmanager
def no_hang(seconds: float = HANG_SECONDS) -> Iterator[None]:
    """Checks that the block ends. Give what it must not wait for much more time than this."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds, f"waited for more than {seconds:g} s"
