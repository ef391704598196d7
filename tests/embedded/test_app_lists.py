"""Lists: pages, orders, cursors, limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.tables import rows
from tests.support.wire import Wire

TURNS = 5


@pytest.fixture(scope="module")
def session_ids(core_wire: Wire) -> Iterator[list[str]]:
    """Four Sessions, oldest first; the last one has five Turns of three Items and one Artifact each."""
    ids = [core_wire.create(input=None, metadata={"n": str(n)})["id"] for n in range(3)]
    last, _ = core_wire.run("mkdir -p outputs; date +%N >outputs/answer.json")
    for _ in range(TURNS - 1):
        assert core_wire.say(last, "again").status_code == 202
        core_wire.wait(last)
    yield [*ids, last]
    for id in [*ids, last]:
        core_wire.end(id)


def _pages(wire: Wire, path: str, order: str, limit: int) -> list[str]:
    """All ids of a list, page by page; every page is checked."""
    ids: list[str] = []
    query = f"order={order}&limit={limit}"
    while True:
        page = wire.ok("GET", f"{path}?{query}" + (f"&after={ids[-1]}" if ids else ""))
        assert page["object"] == "list"
        shown = [one["id"] for one in page["data"]]
        assert (page["first_id"], page["last_id"]) == ((shown[0], shown[-1]) if shown else (None, None))
        ids += shown
        if not page["has_more"]:
            return ids
        assert len(shown) == limit
        assert len(ids) < 1000


@rows("limit", [1, 2, 7, 100])
@rows(("name", "total"), [("turns", TURNS), ("items", TURNS * 3), ("artifacts", TURNS)])
def test_pages_cover_a_list_once_in_both_directions(
    wire: Wire, session_ids: list[str], name: str, total: int, limit: int
) -> None:
    path = f"/sessions/{session_ids[-1]}/{name}"
    ascending = _pages(wire, path, "asc", limit)
    assert len(set(ascending)) == len(ascending) == total
    assert _pages(wire, path, "desc", limit) == ascending[::-1]


def test_sessions_are_listed_newest_first(wire: Wire, session_ids: list[str]) -> None:
    listed = [one["id"] for one in wire.ok("GET", "/sessions?limit=100")["data"]]
    assert [id for id in listed if id in session_ids] == session_ids[::-1]
    assert [id for id in _pages(wire, "/sessions", "asc", 2) if id in session_ids] == session_ids
    assert wire.ok("GET", f"/sessions/{session_ids[1]}")["metadata"] == {"n": "1"}


@rows("query", ["sessions?agent_id=x", "sessions/{}/artifacts?environment_id=x"])
def test_filter_is_refused(wire: Wire, session_ids: list[str], query: str) -> None:
    error = wire.refused(400, "GET", f"/{query.format(session_ids[-1])}")
    assert error["code"] == "unsupported_or_invalid_configuration"


def test_empty_list_has_no_first_and_last_id(wire: Wire, session_ids: list[str]) -> None:
    empty = wire.ok("GET", f"/sessions/{session_ids[0]}/turns")
    assert empty == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


def test_default_page_has_20_and_is_descending(wire: Wire, session_ids: list[str]) -> None:
    page = wire.ok("GET", f"/sessions/{session_ids[-1]}/items?surprise=1")
    assert page == wire.ok("GET", f"/sessions/{session_ids[-1]}/items?limit=20&order=desc")


@rows("name", ["", "items"])
@rows(("limit", "same_as"), [("0", "1"), ("101", "100"), ("100000", "100"), ("%2B2", "2")])
def test_limit_of_sessions_and_items_is_clamped(
    wire: Wire, session_ids: list[str], name: str, limit: str, same_as: str
) -> None:
    path = f"/sessions/{session_ids[-1]}/{name}" if name else "/sessions"
    assert wire.ok("GET", f"{path}?limit={limit}") == wire.ok("GET", f"{path}?limit={same_as}")


@rows("name", ["turns", "artifacts"])
@rows("limit", ["0", "101", "200"])
def test_limit_of_turns_and_artifacts_out_of_range_is_400(
    wire: Wire, session_ids: list[str], name: str, limit: str
) -> None:
    error = wire.refused(400, "GET", f"/sessions/{session_ids[-1]}/{name}?limit={limit}")
    assert error["message"] == f"limit: expected an integer from 1 to 100, got {limit}"


@rows("name", ["", "/x/turns", "/x/items", "/x/artifacts"])
@rows(
    "query",
    [
        "limit=",
        "limit=-1",
        "limit=1.5",
        "limit=ten",
        "limit=9223372036854775808",
        "limit=" + "9" * 5000,
        "order=",
        "order=up",
        "limit=1&limit=2",
        "order=asc&order=asc",
        "after=a&after=b",
    ],
)
def test_invalid_query_is_400_before_the_session_is_looked_up(wire: Wire, name: str, query: str) -> None:
    assert wire.refused(400, "GET", f"/sessions{name}?{query}")["code"] == "invalid_request_error"


@rows(("name", "status"), [("", 404), ("turns", 404), ("items", 400), ("artifacts", 400)])
def test_cursor_that_is_not_in_the_list_is_refused(wire: Wire, session_ids: list[str], name: str, status: int) -> None:
    path = f"/sessions/{session_ids[-1]}/{name}" if name else "/sessions"
    wire.refused(status, "GET", f"{path}?after=unknown")
    if name:
        last = wire.ok("GET", f"{path}?limit=1")["last_id"]
        assert wire.ok("GET", f"{path}?limit=1&after=%20{last}%20")["data"]
