"""Ids: unique, not secret (the key guards everything), and cheap, for every request has one."""

from __future__ import annotations

import random
import uuid

_random = random.Random()


def new_uuid() -> str:
    """A random UUID, without asking the kernel each time."""
    return str(uuid.UUID(int=_random.getrandbits(128), version=4))


def new_id(prefix: str) -> str:
    """`prefix_` and 32 hex digits."""
    return f"{prefix}_{_random.getrandbits(128):032x}"
