"""A key is in the request to its server and nowhere else, whatever agents print, servers repeat or pytest shows."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Fault, Script

MODEL_KEY = "9f3b2c6d8e1a4f7095b3d2c1e0f4a6b8"
"""32 hex digits: no known prefix."""
TASK_KEY = "db-password-canary-77"


@pytest.fixture
def secretive(project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An agent that says every key it knows, in its answer, its output and its files."""
    monkeypatch.setenv("MODEL_API_KEY", MODEL_KEY)
    monkeypatch.setenv("DB_PASSWORD", TASK_KEY)
    yaml = "env:\n  DB_PASSWORD:\n    from_env: DB_PASSWORD\n    secret: true\noutputs:\n  - '*.txt'\n"
    project.task("a", yaml=yaml)
    keys = " ".join((core.api_key, MODEL_KEY, TASK_KEY, base64.b64encode(MODEL_KEY.encode()).decode()))
    items = [{"id": "item_1", "type": "shell", "output": f"env: {keys}", "env": {"SOME_API_KEY": "unknown-to-us-42"}}]
    core.script = lambda body: Script(
        answer=json.dumps({"x": keys, keys: 1}).encode(),
        items=items,
        artifacts={"/workspace/outputs/all.txt": keys.encode()},
    )
    return project


def everything(project: Project, result: pytest.RunResult) -> Iterator[tuple[str, bytes]]:
    """All that was written: the output, and every file that is new."""
    yield "output", text_of(result).encode()
    for path in sorted(project.path.rglob("*")):
        if path.is_file() and "tasks" not in path.relative_to(project.path).parts:
            yield str(path.relative_to(project.path)), path.read_bytes()
    if (page := project.path / "r.html").exists():
        for number, packed in enumerate(re.findall(rb">(e[JN][A-Za-z0-9+/=]+)<", page.read_bytes())):
            yield f"r.html, part {number}", zlib.decompress(base64.b64decode(packed))


def assert_nowhere(project: Project, result: pytest.RunResult, *secrets: str) -> list[str]:
    names = []
    for name, content in everything(project, result):
        names.append(name)
        for secret in secrets:
            lines = [line for line in content.splitlines() if secret.encode() in line]
            assert not lines, (name, lines)
    return names


MODEL = ("--model", "m", "--harness", "codex", "--model-base-url", "https://models.example/v1")
LOUD = (
    "-vv",
    "-l",
    "-rA",
    "--junitxml",
    "j.xml",
    "--rollout-report",
    "r.md",
    "--rollout-html",
    "r.html",
    "--log-level=DEBUG",
    "--log-file=log.txt",
)


@pytest.mark.parametrize(
    ("workers", "items"),
    [
        ((), "inline"),
        pytest.param(("-n", "1"), "files", marks=pytest.mark.slow),
        pytest.param((), "files", marks=pytest.mark.slow),
        pytest.param(("-n", "1"), "inline", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_keys_are_in_no_output_and_no_file(
    secretive: Project, core: FakeCore, workers: tuple[str, ...], items: str
) -> None:
    args = (*MODEL, *LOUD, *workers, "--rollout-items", items)
    result = secretive.run_apart("tasks", *args)
    assert outcomes(result) == {"failed": 1}, text_of(result)
    secrets = (core.api_key, MODEL_KEY, TASK_KEY, base64.b64encode(MODEL_KEY.encode()).decode()[:-2])
    names = assert_nowhere(secretive, result, *secrets, "unknown-to-us-42")
    assert {"j.xml", "r.md", "log.txt", "r.html", "r.html, part 1"} <= set(names)
    assert sum(name.endswith("/a1/0001") and ".files/" in name for name in names) == 1
    assert "[masked]" in text_of(result)
    sent = b"".join(request.body for request in core.requests)
    assert MODEL_KEY.encode() in sent, "the agent has its key"
    again = secretive.run_apart("tasks", *args, "--rollout-resume", str(secretive.results[0]))
    assert_nowhere(secretive, again, *secrets)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=len)
def test_keys_that_a_server_repeats_are_masked(secretive: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    text = f"bad request: x-api-key: {MODEL_KEY[::-1]} Authorization: Bearer {core.api_key} {MODEL_KEY}"
    body = json.dumps({"error": {"message": text, "code": "bad", "type": "invalid_request_error", "param": None}})
    core.fault = lambda request: Fault(status=400, body=body.encode()) if request.route == "create" else None
    result = secretive.run_apart("tasks", *MODEL, *LOUD, *workers)
    assert outcomes(result) == {"errors": 1}, text_of(result)
    assert_nowhere(secretive, result, core.api_key, MODEL_KEY, MODEL_KEY[::-1])
    assert "bad request: x-api-key: [masked]" in text_of(result)


def test_keys_in_the_locals_of_a_traceback_are_masked(secretive: Project, core: FakeCore) -> None:
    """An error of the plugin, or of a hook, is shown by pytest with its locals."""
    secretive.write(
        "conftest.py",
        "import os\nimport pytest\n\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_setup(item):\n"
        "    key = os.environ['MODEL_API_KEY']\n"
        "    yield\n"
        "    raise RuntimeError(f'no luck with {key}')\n\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_runtest_teardown(item):\n"
        "    print('printed', os.environ['MODEL_API_KEY'])\n"
        "    assert False\n",
    )
    result = secretive.run_apart("tasks", *MODEL, "-l", "-vv", "--tb=long", "--junitxml", "j.xml")
    assert outcomes(result) == {"errors": 2}, text_of(result)
    assert "no luck with [masked]" in text_of(result)
    assert "printed [masked]" in text_of(result)
    assert_nowhere(secretive, result, MODEL_KEY)


GIVEN = {
    "label": ("--rollout-label", "key={}"),
    "model": ("--model", "{}"),
    "harness-config": ("--rollout-harness-config", 'codex:token="{}"'),
    "model-base-url": ("--model-base-url", "https://models.example/{}/v1"),
    "out": ("--rollout-out", "runs/{}.jsonl"),
}


@pytest.mark.parametrize("option", GIVEN)
def test_an_option_that_contains_a_key_is_refused_without_showing_it(
    secretive: Project, core: FakeCore, option: str
) -> None:
    flag, value = GIVEN[option]
    result = secretive.run("tasks", "--harness", "codex", flag, value.format(MODEL_KEY))
    error = usage_error(result)
    assert f"{flag}: contains the value of MODEL_API_KEY; set keys only in the environment" in error
    assert MODEL_KEY not in error
    assert not core.sessions


@pytest.mark.parametrize(
    "text", ["sk-" + "proj" + "a1B2" * 6, "ghp_" + "a1B2c3" * 6, "AKIA" + "ABCD1234" * 2], ids=["sk", "gh", "aws"]
)
def test_an_option_that_looks_like_a_key_is_refused(project: Project, core: FakeCore, text: str) -> None:
    project.task("a")
    error = usage_error(project.run("tasks", "--rollout-label", f"k={text}"))
    assert "--rollout-label: looks like an API key" in error
    assert text not in error
    project.ini(f"rollout_label = k={text}")
    assert "ini key rollout_label: looks like an API key" in usage_error(project.run("tasks"))


def test_a_harness_parameter_named_like_a_key_is_refused(project: Project) -> None:
    project.task("a")
    error = usage_error(project.run("tasks", "--harness", "codex", "--rollout-harness-config", 'codex:api_key="abc"'))
    assert "--rollout-harness-config: sets an API key, by its name" in error


def test_short_and_placeholder_values_are_not_keys(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.task("a")
    for value in ("short", "EMPTY", "dummy-key"):
        monkeypatch.setenv("MODEL_API_KEY", value)
        assert project.run("tasks", "--rollout-label", f"k={value}").ret == 0


# What was expected

GRADER = """
from pytest_core_rollouts.grading.answers import Grade
from pytest_core_rollouts.grading.comparing import Reason

def grade(task, answer):
    {}
"""
CANARY = "canary-5c1d"


def hidden(project: Project, *args: str) -> pytest.RunResult:
    result = project.run_apart(
        "tasks", "--rollout-hide-expected", "-vv", "-l", "--junitxml", "j.xml", "--rollout-report", "r.md", *args
    )
    files = [path for path in project.path.rglob("*") if path.is_file() and "tasks" not in path.parts]
    assert {"j.xml", "r.md"} <= {path.name for path in files}
    for text in (text_of(result), *(path.read_text(errors="replace") for path in files)):
        assert CANARY not in text
    return result


GRADERS = {
    "note": f"return Grade(0.0, (Reason('x', '{CANARY}', 1),), note='expected {CANARY}')",
    "assert": f"assert answer.value == {{'x': '{CANARY}'}}, 'not {CANARY}'",
    "fail": f"import pytest; pytest.fail('not {CANARY}')",
}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=len)
def test_texts_of_the_project_s_graders_are_hidden(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    for name, grader in GRADERS.items():
        project.task(name)
        project.write(f"tasks/{name}/grader.py", GRADER.format(grader))
    result = hidden(project, *workers)
    rows = {row["task"]: row for row in project.records}
    assert rows.keys() == GRADERS.keys(), text_of(result)
    assert rows["note"]["reasons"] == [{"path": "x", "expected": "(hidden)", "answered": 1}]
    assert rows["note"]["notes"] == ["the grader's note is (hidden)"]
    for name in ("assert", "fail"):
        assert rows[name]["status"] == "error"
        assert "its text left out (--rollout-hide-expected) (grader.py:6)" in rows[name]["error"]


def test_expected_values_are_hidden_in_the_rows_of_a_resume_and_a_replay(project: Project, core: FakeCore) -> None:
    project.task("a", expected={"x": CANARY})
    hidden(project)
    [path] = project.results
    hidden(project, "--rollout-resume", str(path.relative_to(project.path)))
    hidden(project, "--rollout-replay", str(path.relative_to(project.path)))
    project.task("a", expected={"x": CANARY, "y": 2})
    hidden(project, "--rollout-resume", str(path.relative_to(project.path)))
    assert all(reason["expected"] == "(hidden)" for row in project.records for reason in row["reasons"])


def test_expected_values_are_shown_without_the_option(project: Project, core: FakeCore) -> None:
    project.task("a", expected={"x": CANARY})
    assert CANARY in text_of(project.run("tasks"))
