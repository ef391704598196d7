"""What pytest calls: hooks that hand over, nothing else."""

from __future__ import annotations
