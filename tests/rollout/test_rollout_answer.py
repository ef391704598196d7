"""What is fetched of a finished Turn, over real HTTP: the answer that counts, within its cap, and every Item."""

from __future__ import annotations

import json
import resource
from typing import Any

from pytest_core_rollouts.rollout.fetching import ANSWER_PATH
from pytest_core_rollouts.tasks.task import Task
from tests.support.api import quick
from tests.support.fake_core import FakeCore, FakeSession, Fault, Request, Script
from tests.support.rollouts import RIGHT, WRONG, on, only_session, plan, refused, run
from tests.support.tables import rows

MiB = 1024 * 1024
PATIENT_ONCE = quick(patience=0.2, wrong_body_tries=3)


def finished(core: FakeCore, act: Any) -> None:
    """Let `act(session)` change a Session's Artifacts or Items when they are first asked for."""
    done: list[str] = []

    def hook(request: Request) -> None:
        if request.route in ("artifacts", "items") and not done:
            done.append(request.route)
            act(only_session(core))

    core.fault = hook


def test_the_answer_is_found_on_a_later_page() -> None:
    others = {f"/workspace/outputs/{number:03}.txt": b"x" for number in range(250)}
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:

        def publish(session: FakeSession) -> None:
            for path, content in others.items():
                session.add_artifact(path, content)

        finished(core, publish)
        assert run(core).verdict == ("completed", 1.0)
        assert core.counts["artifacts"] == 3


def test_the_newest_answer_counts() -> None:
    with FakeCore(script=lambda body: Script(answer=WRONG)) as core:
        finished(core, lambda session: session.add_artifact(ANSWER_PATH, RIGHT))
        assert run(core).verdict == ("completed", 1.0)


def test_the_answer_of_the_last_turn_counts_before_that_of_an_earlier_one() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:

        def publish(session: FakeSession) -> None:
            session.add_artifact(ANSWER_PATH, WRONG)
            session.artifacts[-1]["turn_id"] = "turn_of_before"

        finished(core, publish)
        assert run(core).verdict == ("completed", 1.0)


@rows(
    "path",
    [
        "/workspace/outputs/Answer.json",
        "/workspace/outputs/x/answer.json",
        "/workspace/answer.json",
        "/workspace/outputs/answer.json ",
    ],
)
def test_an_answer_elsewhere_does_not_count_and_is_named(path: str) -> None:
    with FakeCore(script=lambda body: Script(artifacts={path: RIGHT})) as core:
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("completed", 0.0)
        assert ran.record.answer is None
        assert ran.record.error is None
        assert f"no answer.json; files found: {path}" in ran.record.notes[0]
        assert core.counts["content"] == 0
        assert len(core.sessions) == 1


def test_no_answer_at_all() -> None:
    with FakeCore() as core:
        ran = run(core)
        assert ran.verdict == ("completed", 0.0)
        assert "no answer.json: the agent left no files in /workspace/outputs" in ran.record.notes[0]


def test_of_many_artifacts_some_are_named() -> None:
    with FakeCore(script=lambda body: Script(artifacts={f"/workspace/outputs/{n:03}": b"" for n in range(40)})) as core:
        (note,) = run(core).record.notes
        assert "outputs/000" in note
        assert note.endswith("and 20 more")


def test_a_huge_answer_is_not_read() -> None:
    huge = b'{"n": 1, "padding": "' + b"x" * (150 * MiB) + b'"}'
    with FakeCore(script=lambda body: Script(answer=huge)) as core:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ran = run(core)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024
        assert ran.verdict == ("completed", 0.0)
        assert "at most 1,048,576 are read" in ran.record.notes[0]
        assert core.counts["content"] == 0
        assert len(ran.record.to_line()) < 10_000


def test_a_huge_answer_that_is_not_announced_is_only_read_to_the_cap() -> None:
    with FakeCore(script=lambda body: Script(answer=b" " * (30 * MiB))) as core:

        def hide(session: FakeSession) -> None:
            session.artifacts[0]["size_bytes"] = None

        finished(core, hide)
        ran = run(core)
        assert ran.verdict == ("completed", 0.0)
        assert "at most 1048576" in ran.record.notes[0]


def test_more_bytes_than_the_answer_has_are_a_fault_of_the_server() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("content", Fault(endless=True))
        ran = run(core, plan(retries=0))
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert "has 8 bytes, but the download had more" in ran.record.error


def test_an_answer_of_the_largest_size_is_graded() -> None:
    answer = b'{"n": 1, "padding": "'
    answer += b"x" * (MiB - len(answer) - 2) + b'"}'
    with FakeCore(script=lambda body: Script(answer=answer)) as core:
        assert run(core).verdict == ("completed", 1.0)


@rows("framing", ["length", "chunked", "close"])
def test_half_an_answer_is_never_graded(framing: str) -> None:
    answer = b'{"n": 1}            , "m": 2}'
    with FakeCore(script=lambda body: Script(answer=answer)) as core:
        core.fault = on("content", Fault(cut=8, framing=framing))  # by itself the half would be right
        ran = run(core, plan(retries=0), retry=PATIENT_ONCE)
        assert ran.verdict == ("error", None)
        assert ran.record.answer is None
        assert core.counts["content"] > 1


def test_an_answer_that_arrives_whole_in_the_end_is_graded() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("content", Fault(cut=4, framing="close"), last=2)
        assert run(core).verdict == ("completed", 1.0)
        assert core.counts["content"] == 3


def test_an_answer_that_core_cannot_give_is_an_error() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("content", refused(503, "no", "artifact_storage_unavailable"))
        ran = run(core, plan(retries=0), retry=PATIENT_ONCE)
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert "artifact_storage_unavailable" in ran.record.error
        assert "req_of_the_test" in ran.record.error


DEEP = b"[" * 100_000 + b"]" * 100_000


@rows(
    ("answer", "kept", "note"),
    [
        (b'[{"n": 1}]', [{"n": 1}], None),
        (b'"n"', "n", None),
        (b"42", 42, None),
        (b"null", None, None),
        (b"\xff\xfe{}", None, "UTF-8"),
        (b'{"n": NaN}', None, "NaN"),
        (b'{"n": ' + DEEP + b"}", None, "100"),
        (b'{"n": ' + b"9" * 5000 + b"}", None, "5,000"),
        (b'{"n": 2, "n": 1}', None, "duplicate key"),
        (b'```json\n{"n": 1}\n```', None, "not valid JSON"),
        (b"", None, "not valid JSON"),
        (b'{"n": true}', {"n": True}, None),
    ],
)
def test_whatever_an_agent_writes_is_graded(answer: bytes, kept: Any, note: str | None) -> None:
    with FakeCore(script=lambda body: Script(answer=answer)) as core:
        ran = run(core, plan(retries=3))
        assert ran.verdict == ("completed", 0.0)
        assert ran.record.error is None
        assert ran.record.answer == kept
        assert type(ran.record.answer) is type(kept)
        if note is not None:
            assert note in " ".join([*ran.record.notes, *map(str, ran.record.reasons)])
        assert len(ran.record.to_line()) < 200_000


def test_a_byte_order_mark_is_accepted() -> None:
    with FakeCore(script=lambda body: Script(answer=b"\xef\xbb\xbf" + RIGHT + b"\n\n")) as core:
        assert run(core).verdict == ("completed", 1.0)


# Items


def test_every_item_is_kept_in_order_over_all_pages() -> None:
    items = [{"type": "message", "role": "assistant", "number": number} for number in range(249)]
    with FakeCore(script=lambda body: Script(answer=RIGHT, items=items)) as core:
        ran = run(core)
        assert ran.record.items is not None
        assert [item["type"] for item in ran.record.items] == ["message"] * 250
        assert [item.get("number") for item in ran.record.items] == [None, *range(249)]
        assert ran.record.items == only_session(core).items
        assert core.counts["items"] == 3


def test_an_item_that_appears_while_pages_are_read_is_there_once() -> None:
    items = [{"type": "message", "number": number} for number in range(149)]
    with FakeCore(script=lambda body: Script(answer=RIGHT, items=items)) as core:

        def add(request: Request) -> None:
            only_session(core).add_item({"type": "message", "number": 149})

        core.fault = on("items", add, first=2, last=2)
        ran = run(core)
        assert ran.record.items is not None
        assert [item.get("number") for item in ran.record.items] == [None, *range(150)]


def test_items_that_can_not_be_read_take_nothing_from_the_result() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("items", refused(500, "no"))
        ran = run(core, plan(retries=3), retry=PATIENT_ONCE)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.items is None
        assert ran.record.notes[0].startswith("the Items could not be read: GET ")
        assert len(core.sessions) == 1


def test_items_are_left_out_where_nobody_wants_them() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        ran = run(core, keep_items=False)
        assert ran.record.items is None
        assert core.counts["items"] == 0


@rows("usage", [None, {"input_tokens": 3, "output_tokens": 0, "total_tokens": 3, "extra": {"a": 1}}])
def test_usage_is_kept_as_it_was_returned(usage: dict[str, Any] | None) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT, usage=usage)) as core:
        assert run(core).record.usage == usage


def test_text_that_no_encoding_takes_is_kept_in_a_line_of_ascii() -> None:
    answer = json.dumps({"n": 1, "s": "\ud835 a\u2028b"}).encode()
    with FakeCore(
        script=lambda body: Script(answer=answer, items=[{"type": "message", "text": "caf\u00e9 \u2028"}])
    ) as core:
        line = run(core).record.to_line()
        assert line.isascii()
        assert line.count(b"\n") == 1


def test_a_task_s_tolerance_applies() -> None:
    task = Task(id="t", instruction="x", expected={"n": 1.0})
    with FakeCore(script=lambda body: Script(answer=b'{"n": 1.0000001}')) as core:
        assert run(core, plan(task)).verdict == ("completed", 1.0)
