"""The verdicts of gates as lines: one for each gate and agent."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_core_rollouts.report.cells import width
from pytest_core_rollouts.results.gate import WORDS, Judgment
from pytest_core_rollouts.results.gate_kinds import Verdict
from pytest_core_rollouts.text import one_line


def verdict_lines(judgments: Iterable[Judgment], *, aligned: bool = False) -> list[tuple[str, Verdict]]:
    """Return a line for each gate and agent, with its verdict: `gate mean>=0.7 [codex]: passed: 0.800 >= 0.7`.

    `aligned`: verdicts and reasons begin in the same columns, for a terminal.
    """
    rows = [(one_line(f"gate {name}:"), verdict) for judgment in judgments for name, verdict in judgment.rows]
    heads = max((width(name) for name, _ in rows), default=0) if aligned else 0
    words = max((len(WORDS[verdict.passed]) + 1 for _, verdict in rows), default=0) if aligned else 0
    return [
        (
            f"{name}{' ' * (heads - width(name))} {f'{WORDS[verdict.passed]}:':<{words}} {one_line(verdict.text)}",
            verdict,
        )
        for name, verdict in rows
    ]
