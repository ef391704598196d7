"""Tokens as the model's server counts them: an agent can write what its program prints, but not what a server says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST = 2**53  # tokens of one reply; from here on JSON's readers don't agree on a whole number


def usage_of(reply: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a reply of the Responses wire, or the event that ends one, says was used; None if it does not say."""
    response = reply.get("response", reply)
    said = response.get("usage") if isinstance(response, Mapping) else None
    if not isinstance(said, Mapping):
        return None
    given, made = _count(said, "input_tokens"), _count(said, "output_tokens")
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": _count(said.get("input_tokens_details"), "cached_tokens")},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": _count(said.get("output_tokens_details"), "reasoning_tokens")},
        "total_tokens": given + made,
    }


def sum_of(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of one usage or more, member by member."""
    return {
        name: sum_of([usage[name] for usage in usages]) if isinstance(value, Mapping) else sum(u[name] for u in usages)
        for name, value in usages[0].items()
    }


def _count(said: Any, name: str) -> int:
    value = said.get(name) if isinstance(said, Mapping) else None
    return value if type(value) is int and 0 <= value < _MOST else 0
