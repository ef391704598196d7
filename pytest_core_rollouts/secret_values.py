"""Which keys are secrets, and which are only stand-ins for one."""

from __future__ import annotations

MIN_LENGTH = 8
"""Characters; masking a shorter one would mask parts of ordinary words."""

# Stand-ins people give where a server wants no key. Masking them would only eat ordinary words out of the records.
_DUMMIES = frozenset(
    (
        *("changeme", "default", "dummy", "dummy-key", "empty", "example", "fake", "fake-key", "lm-studio", "local"),
        *("localhost", "no-key", "no-key-needed", "no-key-required", "nokey", "none", "not-needed", "not-used"),
        *("notneeded", "null", "ollama", "placeholder", "secret", "test", "test-key", "testing", "token-abc123"),
        *("undefined", "unused", "your-api-key", "your-key-here"),
    )
)


def is_secret(text: str) -> bool:
    """Whether a key is one to be masked: long enough, and no stand-in."""
    bare = text.lower().removeprefix("sk-")
    return len(text) >= MIN_LENGTH and bare not in _DUMMIES and len(set(bare)) > 1
