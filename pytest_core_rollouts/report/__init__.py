"""Reports of runs as Markdown, as text for terminals, and as HTML. Numbers come from `results`."""

from __future__ import annotations
