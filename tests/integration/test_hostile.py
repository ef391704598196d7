"""What agents and servers write never acts on a terminal, a log, a JUnit file or a Markdown report."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Fault, Request, Script

pytestmark = pytest.mark.slow

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\x00\r\u2028\u202e\ud835<script>alert(1)</script>|`[x](http://x)\x7f"
SCRIPTS: dict[str, Script] = {
    "value": Script(answer=json.dumps({"x": HOSTILE}).encode()),
    "key": Script(answer=json.dumps({HOSTILE: 1}).encode()),
    "text": Script(answer=HOSTILE.encode("utf-8", "surrogatepass")),
    "path": Script(artifacts={f"/workspace/outputs/{HOSTILE}": b"x"}),
    "turn": Script(turn_status="failed", error={"code": HOSTILE, "message": HOSTILE}),
    "own": Script(turn_status="failed", error={"code": "cyber_policy", "message": HOSTILE}),
    "session": Script(session_failure=HOSTILE),
    "refused": Script(),
}


def refusing(request: Request) -> Fault | None:
    if request.route == "create" and b'"task":"refused"' in request.body:
        error = {"type": "x", "message": HOSTILE, "code": HOSTILE, "param": HOSTILE}
        return Fault(400, json.dumps({"error": error}).encode())
    return None


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_hostile_text_has_no_effect_in_any_output(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    for name in SCRIPTS:
        project.task(name)
    items: list[dict[str, Any]] = [{"type": HOSTILE, "text": HOSTILE}, {"type": "message", "text": "x" * 2_000_000}]
    usage = {"total_tokens": 3, HOSTILE: HOSTILE}

    def script(body: dict[str, Any]) -> Script:
        chosen = SCRIPTS[body["metadata"]["task"]]
        return Script(**{**vars(chosen), "items": items, "usage": usage})

    core.script, core.fault = script, refusing
    report = ("--rollout-report", "report.md", "--junitxml", "junit.xml")
    result = project.run_apart("tasks", "-vv", "-rA", "--rollout-retries", "1", "-l", *report, *workers)
    assert result.ret == 1, text_of(result)
    assert "INTERNALERROR" not in text_of(result)
    assert len(project.records) == len(SCRIPTS)

    for line in [*result.outlines, *result.errlines]:
        assert line.isprintable(), repr(line)
    junit = (project.path / "junit.xml").read_text("utf-8")
    ElementTree.fromstring(junit)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", junit)
    markdown = (project.path / "report.md").read_text("utf-8")
    assert "<script" not in markdown
    assert "\x1b" not in markdown
    lines = project.results[0].read_bytes().split(b"\n")
    assert len(lines) == len(SCRIPTS) + 1
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("workers", [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "2")], ids=" ".join)
def test_a_log_says_what_the_run_waits_for(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    """On no terminal there is a line now and then, and the row keeps what it was."""
    project.task("a")
    project.write("conftest.py", "from pytest_core_rollouts.running import display\ndisplay.LINE = 0.5\n")
    core.fault = lambda request: (
        Fault(503, b'{"error": {"type": "x", "message": "no \\u001b[2Jroom", "code": "execution_unavailable"}}')
        if request.route == "create" and request.nth <= 5
        else None
    )
    result = project.run_apart("tasks", *workers)
    assert result.ret == 0, text_of(result)
    shown = [line for line in result.outlines if "waiting for the Core" in line]
    assert shown, text_of(result)
    assert "HTTP 503 execution_unavailable" in shown[-1]
    assert all(line.isprintable() for line in shown)
    [row] = project.records
    assert re.match(r"waited \d+ s for the Core, which the limit does not count \(HTTP 503", row["notes"][0])
    assert row["duration_s"] < 3


OTHERS = {
    "property": "item.user_properties.append(('shown', shown))",
    "path": "item.user_properties.append(('path', item.path))",
    "decimal": "item.user_properties.append(('d', __import__('decimal').Decimal('1.5')))",
    "section": "item.add_report_section('call', 'shown', shown)",
    "log": "__import__('logging').warning(shown)",
    "error": "raise RuntimeError(shown)",
}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
@pytest.mark.parametrize("what", OTHERS)
def test_values_that_other_hooks_put_on_a_report_do_not_abort_xdist(
    project: Project, core: FakeCore, what: str, workers: tuple[str, ...]
) -> None:
    for name in "abc":
        project.task(name)
    core.script = lambda body: Script(answer=b'{"x": "\\ud835"}')
    hook = "import pytest\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_setup(item):\n    yield\n"
    project.write("conftest.py", f"{hook}    shown = item.outcome.record.answer['x']\n    {OTHERS[what]}\n")
    result = project.run_apart("tasks", *workers)
    assert result.ret == 1
    assert "INTERNALERROR" not in text_of(result)
    assert outcomes(result) == ({"errors": 3} if what == "error" else {"failed": 3})
    assert len(project.records) == 3


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_malformed_responses_to_one_rollout_do_not_stop_the_run(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    """They come to the first call of its connection; that there is a Core at all has been seen by then."""
    project.task("a", yaml="samples: 30")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.8)
    core.fault = lambda request: (
        Fault(cut=7, framing="close") if request.route == "create" and b'"sample":"1"' in request.body else None
    )
    limits = ("--rollout-timeout", "5", "--rollout-retries", "0", "--rollout-concurrency", "2")
    result = project.run_apart("tasks", *limits, *workers)
    assert result.ret == 1, text_of(result)
    assert outcomes(result) == {"passed": 29, "errors": 1}
    assert [row["sample"] for row in project.records if row["reward"] is None] == [1]


def test_a_first_request_without_a_response_does_not_end_the_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write(
        "conftest.py", "from pytest_core_rollouts.engine import core_access\ncore_access.FIRST_ANSWER = 1.0\n"
    )
    core.script = lambda body: Script(answer=RIGHT)
    core.fault = lambda request: Fault(hang=True) if request.route == "sessions" and request.nth == 1 else None
    result = project.run_apart("tasks")
    assert result.ret == 0, text_of(result)
    assert core.counts["sessions"] >= 2
