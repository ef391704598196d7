"""Servers and agents that mean harm: they make no reward up, take no memory or time, draw nothing on a terminal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.collecting.explain import explain_fault
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout import fetching, poll_schedule
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from tests.support.api import quick
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.rollouts import RIGHT, TIMEOUTS, grade, json_reply, on, only_session, plan, refused, run
from tests.support.waiting import no_hang

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\x00\r\n\u2028\u202e\ud835<script>alert(1)</script>|`\x7f"
MiB = 1024 * 1024
HASTY = dataclasses.replace(TIMEOUTS, outage=0.6)


@pytest.fixture(autouse=True)
def silence_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events is only believed for a moment."""
    monkeypatch.setattr(poll_schedule, "UNPROVEN_PAUSE", 0.3)


def shown_fault(record: RolloutRecord) -> str:
    """What a terminal shows of a fault."""
    return explain_fault(record)


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


# ---- text


def test_items_of_every_kind_are_kept_as_they_are_in_a_line_of_ascii() -> None:
    items: list[dict[str, Any]] = [
        {"type": HOSTILE, HOSTILE: [HOSTILE] * 3},
        {"type": "message", "text": "x" * (3 * MiB)},
    ]
    with FakeCore(script=lambda body: Script(answer=RIGHT, items=items)) as core:
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        row = json.loads(ran.record.to_line())
        assert [item["type"] for item in row["items"][1:]] == [HOSTILE.replace("\ud835", "\\ud835"), "message"]
        assert ran.record.to_line().isascii()
        assert ran.record.to_line().count(b"\n") == 1


@pytest.mark.parametrize(
    "script",
    [
        Script(turn_status="failed", error={"code": HOSTILE, "message": HOSTILE}),
        Script(session_failure=HOSTILE),
        Script(turn_status=HOSTILE),
        Script(never_ends=True, session_status=HOSTILE),
    ],
    ids=["Turn", "Session", "Turn status", "Session status"],
)
def test_what_a_server_says_reaches_no_terminal_as_it_is(script: Script) -> None:
    with FakeCore(script=lambda body: script) as core:
        ran = run(core, plan(timeout=1.0, retries=1))
        assert ran.record.reward is None
        assert harmless(shown_fault(ran.record))
        assert ran.record.to_line().isascii()


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_what_a_refusal_says_reaches_no_terminal_as_it_is(status: int) -> None:
    with FakeCore() as core:
        core.fault = on("create", refused(status, HOSTILE, HOSTILE, HOSTILE))
        ran = run(core, plan(retries=0), retry=quick(patience=0.1), timeouts=HASTY)
        assert ran.verdict == ("error", None)
        assert harmless(shown_fault(ran.record))
        assert harmless(ran.outcome.fatal or "")


def test_paths_of_artifacts_reach_no_terminal_as_they_are() -> None:
    artifacts = {f"/workspace/outputs/{HOSTILE}": b"", HOSTILE: b""}
    with FakeCore(script=lambda body: Script(artifacts=artifacts)) as core:
        ran = run(core)
        assert ran.verdict == ("completed", 0.0)
        assert "no answer.json" in ran.record.notes[0]
        assert harmless(ran.record.notes[0])


@pytest.mark.parametrize("session_id", [HOSTILE, "", ".", "..", 7, None, ["x"]])
def test_an_invalid_id_is_a_fault_of_the_server(session_id: object) -> None:
    with FakeCore() as core:
        core.fault = on("create", json_reply({"id": session_id, "status": "idle"}, 201))
        ran = run(core, plan(retries=0))
        assert ran.verdict == ("error", None)
        assert harmless(shown_fault(ran.record))


# ---- size


@pytest.mark.parametrize("usage", ["many", 5, [1], True])
def test_an_invalid_usage_is_unknown(usage: Any) -> None:
    """Also that of an attempt which makes way for another."""
    broke = Script(turn_status="failed", error={"code": "server_error", "message": "m"}, usage=usage)
    with FakeCore(script=lambda body: Script(answer=RIGHT, usage=usage) if core.sessions else broke) as core:
        ran = run(core, plan(retries=1))
        assert ran.verdict == ("completed", 1.0)
        assert (ran.record.usage, ran.record.attempt) == (None, 2)
        assert "the Turn's usage is not an object, so it counts as unknown" in ran.record.notes
        assert RolloutRecord.from_line(ran.record.to_line()).tokens is None


def test_tokens_of_a_spoiled_attempt_are_spent_too() -> None:
    """`usage` stays that of the Turn that counts; the sum is what a cap counts and a table shows."""
    usage = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
    broke = Script(turn_status="failed", error={"code": "server_error", "message": "m"}, usage=usage)
    counted: list[int | None] = []
    with FakeCore(script=lambda body: Script(answer=RIGHT, usage=usage) if core.sessions else broke) as core:
        ran = run(core, plan(retries=1), on_retry=lambda rollout, used: counted.append(used and used["total_tokens"]))
        assert ran.verdict == ("completed", 1.0)
        assert (ran.record.usage, ran.record.spent, ran.record.tokens) == (usage, 60, 60)
        assert counted == [30]


def test_a_turns_error_that_is_not_an_object_has_no_code() -> None:
    turn = {"id": "t", "status": "failed", "error": "it broke", "usage": None}
    with FakeCore(script=lambda body: Script()) as core:
        answer = json_reply({"data": [turn], "has_more": False, "last_id": None})
        core.fault = lambda request: answer if request.route == "turns" else None
        ran = run(core)
        assert (ran.verdict, ran.record.error) == (("failed", None), "the Turn failed: no code: no message")


@pytest.mark.parametrize("field", ["message", "code"])
def test_turn_error_of_any_length_is_bounded_in_the_row(field: str) -> None:
    """A Core elsewhere may send any length, which the row and every report of it kept."""
    broke = Script(turn_status="failed", error={"code": "server_error", "message": "m", field: "x" * 100_000})
    with FakeCore(script=lambda body: broke) as core:
        ran = run(core, plan(retries=0))
        assert ran.verdict == ("failed", None)
        assert ran.record.error is not None
        assert 1900 < len(ran.record.error) < 2100


def test_a_trajectory_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_ITEMS_BYTES", 20 * MiB)
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:

        def page(request: Request) -> Fault:
            data = [{"id": f"item-{request.nth}-{n}", "type": "message", "text": "x" * 50_000} for n in range(100)]
            return json_reply({"object": "list", "data": data, "has_more": True, "last_id": data[-1]["id"]})

        core.fault = on("items", page)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert core.counts["items"] == 5
        assert ran.record.items is not None
        assert len(ran.record.items) == 401
        assert ran.record.notes == ["the trajectory is cut after 401 Items: more than 20,971,520 bytes"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_artifact_time_that_is_not_a_number_counts_as_the_oldest() -> None:
    """A time of another type next to a number raised TypeError, so the rollout was an internal error."""
    with FakeCore(script=lambda body: Script(answer=b'{"sum": -1}')) as core:

        def publish(request: Request) -> None:
            session = only_session(core)
            session.artifacts[0]["created_at"] = "yesterday"
            session.add_artifact(fetching.ANSWER_PATH, RIGHT)

        core.fault = on("artifacts", publish)
        assert run(core).verdict == ("completed", 1.0)


@pytest.mark.parametrize("size", [10 * 1024**3, 10**30])
def test_an_answer_of_ten_gigabytes_is_not_asked_for(size: int) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:

        def grow(request: Request) -> None:
            only_session(core).artifacts[0]["size_bytes"] = size

        core.fault = on("artifacts", grow)
        ran = run(core)
        assert ran.verdict == ("completed", 0.0)
        assert f"has {size:,} bytes" in ran.record.notes[0]
        assert core.counts["content"] == 0


@pytest.mark.parametrize("size", [-1, 0, True, "8", 8.0, [8]])
def test_an_invalid_artifact_size_gives_no_reward(size: object) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:

        def lie(request: Request) -> None:
            only_session(core).artifacts[0]["size_bytes"] = size

        core.fault = on("artifacts", lie)
        ran = run(core, plan(retries=0))
        assert ran.verdict in [("error", None), ("completed", 1.0)]


@pytest.mark.parametrize("route", ["turns", "session", "artifacts", "items"])
def test_endless_answers_are_given_up(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Client.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "max_json_bytes", MiB)
    with FakeCore(script=lambda body: Script(answer=RIGHT, prepare_seconds=0.6, stream="silent")) as core:
        core.fault = on(route, Fault(endless=True))
        ran = run(core, plan(retries=0, timeout=5))
        expected = {"items": ("completed", 1.0)}.get(route, ("error", None))
        assert ran.verdict == expected
        said_so = ran.record.notes if route == "items" else [str(ran.record.error)]
        assert any("1048576" in text for text in said_so)


# ---- time


@pytest.mark.parametrize("route", ["turns", "session"])
@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(drip=0.2)], ids=["hangs", "drips"])
def test_a_server_that_takes_its_time_ends_with_the_limit(route: str, fault: Fault) -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, stream="silent")) as core:
        core.fault = on(route, fault)
        with no_hang():
            ran = run(core, plan(retries=0, timeout=0.8), retry=quick(read_timeout=0.5, try_timeout=1.0))
        assert ran.verdict == ("error", None)


@contextmanager
def mute_server() -> Iterator[int]:
    """It accepts connections, reads nothing and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in held:
            connection.close()


def test_a_server_that_never_says_a_word_is_waited_for_and_the_run_stops() -> None:
    kept: list[RolloutRecord] = []

    async def main(port: int) -> Outcome:
        runner = RolloutRunner(grade=grade, save=kept.append, timeouts=HASTY)
        async with Client(f"http://127.0.0.1:{port}", "key", retry=quick(read_timeout=0.2, patience=0.3)) as client:
            return await runner.run(client, plan(retries=0, timeout=10), Stop())

    with mute_server() as port:
        outcome = asyncio.run(asyncio.wait_for(main(port), 30))
    assert outcome.fatal is not None
    assert "the Core has not created a Session for 1 s" in outcome.fatal
    assert [record.reward for record in kept] == [None]


# ---- a race that is lost


def test_a_turn_that_completes_after_its_timeout_makes_no_second_row() -> None:
    """It ignores the cancel, and completes while its Session is being deleted."""
    with FakeCore(script=lambda body: Script(turn_seconds=1.2, ignore_cancel=True, answer=RIGHT)) as core:
        ran = run(core, plan(timeout=0.4, retries=3), timeouts=dataclasses.replace(TIMEOUTS, delete=5.0))
        assert ran.verdict == ("timeout", 0.0)
        assert len(core.sessions) == 1
        assert only_session(core).deleted
        assert [what for _, what in only_session(core).history][-2:] == ["completed", "deleted"]


def test_throttled_creation_does_not_count_towards_the_limit() -> None:
    waits: dict[str, Any] = {"Retry-After": "0.6"}
    with FakeCore(script=lambda body: Script(turn_seconds=0.2, answer=RIGHT)) as core:
        core.fault = on("create", Fault(status=429, headers=waits), last=3)
        began = time.monotonic()
        ran = run(core, plan(timeout=1.0, retries=0), retry=quick(chance=lambda: 0.999))  # the longest pauses
        assert time.monotonic() - began > 1.8
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 1.0
        [note] = ran.record.notes
        expected = r"waited [234] s for the Core, which the limit does not count \(HTTP 429: \(an empty body, .*\)\)"
        assert re.fullmatch(expected, note)
