"""What a run amounts to, computed from its rows alone and shown as text."""

from __future__ import annotations
