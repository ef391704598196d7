"""Lists: `limit`, `order` and `after` of the query, and one page of what they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import QueryParams

from .errors import APIError, invalid

DEFAULT_LIMIT, MAX_LIMIT = 20, 100

_QUERY = "Failed to deserialize query string: "

T = TypeVar("T")


@dataclass(frozen=True)
class PageQuery:
    limit: int = DEFAULT_LIMIT
    descending: bool = True
    after: str | None = None


def read_query(query: QueryParams, *, clamps: bool, filters: Sequence[str] = ()) -> PageQuery:
    """Check a list's query. `clamps`: whether a limit out of range is moved into it, or refused.

    `filters` are further keys of the list that may come once; unknown keys are ignored. Raises APIError (400).
    """
    for key in ("limit", "order", "after", *filters):
        if len(query.getlist(key)) > 1:
            raise invalid(f"{_QUERY}duplicate field `{key}`")
    limit = DEFAULT_LIMIT
    if "limit" in query:
        limit = _read_limit(query["limit"], clamps)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        shown = order if len(order) <= 256 and order.isprintable() else "(not shown)"
        raise invalid(f"{_QUERY}order: unknown variant `{shown}`, expected `asc` or `desc`")
    return PageQuery(limit, order == "desc", query["after"].strip() if "after" in query else None)


def page(
    values: Sequence[T], query: PageQuery, *, id: Callable[[T], str], wire: Callable[[T], Any], no_cursor: APIError
) -> dict[str, Any]:
    """One page of `values` (oldest first). Raises `no_cursor` when `after` is the id of none of them."""
    start = 0
    if query.after is not None:
        start = next((index for index, value in enumerate(values) if id(value) == query.after), -1)
        if start < 0:
            raise no_cursor
        start = len(values) - start if query.descending else start + 1
    ordered = values[::-1] if query.descending else values
    shown = ordered[start : start + query.limit]
    return {
        "object": "list",
        "data": [wire(value) for value in shown],
        "has_more": start + len(shown) < len(values),
        "first_id": id(shown[0]) if shown else None,
        "last_id": id(shown[-1]) if shown else None,
    }


def _read_limit(text: str, clamps: bool) -> int:
    if not re.fullmatch(r"\+?[0-9]+", text):
        raise invalid(f"{_QUERY}limit: invalid digit found in string")
    if len(text) > 20 or int(text) >= 2**63:
        raise invalid(f"{_QUERY}limit: number too large to fit in target type")
    limit = int(text)
    if not clamps and not 1 <= limit <= MAX_LIMIT:
        raise invalid(f"limit must be between 1 and {MAX_LIMIT}")
    return min(max(limit, 1), MAX_LIMIT)
