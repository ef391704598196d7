"""Ids: unique and cheap, because every request gets one. They are not secret: access needs the API key."""

from __future__ import annotations

import random
import uuid

_random = random.Random()


def new_uuid() -> str:
    """Return a random UUID; without a system call, unlike uuid4."""
    return str(uuid.UUID(int=_random.getrandbits(128), version=4))


def new_id(prefix: str) -> str:
    """Return `prefix`, an underscore and 32 hex digits."""
    return f"{prefix}_{_random.getrandbits(128):032x}"
