"""Numbers as text, the same in verdicts and reports: shares, differences, p-values, intervals."""

from __future__ import annotations

from fractions import Fraction

from pytest_core_rollouts.results.significance import LEVEL

UNKNOWN = "-"
"""The text for an unknown number."""


def decimal(value: Fraction | float | None, digits: int = 3) -> str:
    """Return a share with `digits` decimals, `-` for None. Only 0 gives 0.000 and only 1 gives 1.000."""
    if value is None:
        return UNKNOWN
    one = 10**digits
    units = round(Fraction(value) * one)
    if 0 < value < 1:
        units = min(max(units, 1), one - 1)
    return f"{units // one}.{units % one:0{digits}d}"


def decimal_beyond(value: Fraction, threshold: Fraction) -> str:
    """Return a share with 3 decimals, or with more until the text is on the same side of `threshold` as the share."""
    digits = 3
    while _side(Fraction(text := decimal(value, digits)), threshold) != _side(value, threshold):
        digits += 1
    return text


def _side(value: Fraction, of: Fraction) -> int:
    return (value > of) - (value < of)


def signed(value: Fraction | float) -> str:
    """Return a difference with its sign: `+0.125`, `-0.500`, `0.000`."""
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + decimal(value if value > 0 else -value)


def p_value_text(p: Fraction) -> str:
    """Return a p-value with two significant digits (`0.029`, `<0.0001`), or more if rounding would cross 0.05."""
    if p < Fraction(1, 10_000):
        return "<0.0001"
    texts = (f"{float(p):.{digits}g}" for digits in range(2, 18))
    return next((text for text in texts if (Fraction(text) <= LEVEL) == (p <= LEVEL)), f"{float(p):.2g}")


def p_clause(p: Fraction) -> str:
    """Return a p-value for a sentence: `p = 0.029`, `p < 0.0001`."""
    text = p_value_text(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def between(ends: tuple[Fraction | float | None, Fraction | float | None] | None) -> str:
    """Return an interval as `0.393-1.000`, `-` for None."""
    return UNKNOWN if ends is None or None in ends else f"{decimal(ends[0])}-{decimal(ends[1])}"
