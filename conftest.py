"""What this repository's own test runs need: `pytester`, to run pytest inside the tests."""

from __future__ import annotations

pytest_plugins = ["pytester"]
