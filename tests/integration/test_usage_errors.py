"""What can't be run is refused in one line, with exit code 4, before anything is paid for."""

from __future__ import annotations

import shlex

import pytest

from tests.integration.conftest import Project, text_of, usage_error
from tests.support.fake_core import FakeCore, Fault
from tests.support.tables import rows

ONE = "--harness=codex"
"""Enough to ask for rollouts."""

REFUSED = [
    ("--harness codex --harness codex", "harness codex with model default is named twice"),
    ("--model m --model n --model m", "harness default with model m is named twice"),
    ("--harness codx", "unknown harness 'codx'; known are default, codex, claude_sdk, mcode"),
    ("--harness ''", "--harness: must not be blank"),
    ("--model 'a\nb'", "--model: must not contain control characters, got 'a\\nb'"),
    ("--samples 0", "--samples: expected a positive integer, got '0'"),
    ("--samples x", "--samples: expected a positive integer, got 'x'"),
    ("--samples 1.5", "--samples: expected a positive integer, got '1.5'"),
    ("--samples ٣", "--samples: expected a positive integer, got '٣'"),
    ("--rollout-samples -1", "--rollout-samples: expected a positive integer, got '-1'"),
    ("--rollout-timeout 0", "--rollout-timeout: expected a number of seconds above 0, such as 900 or 2.5, got '0'"),
    ("--rollout-timeout nan", "--rollout-timeout: expected a number of seconds above 0, such as 900 or 2.5, got 'nan'"),
    ("--rollout-timeout inf", "--rollout-timeout: expected a number of seconds above 0, such as 900 or 2.5, got 'inf'"),
    ("--rollout-timeout 10:00", "--rollout-timeout: expected a number of seconds above 0, such as 900"),
    ("--rollout-concurrency 0", "--rollout-concurrency: expected a positive integer, got '0'"),
    ("--rollout-retries -1", "--rollout-retries: expected an integer from 0 to 999, got '-1'"),
    ("--rollout-network on", "--rollout-network: invalid choice 'on'; choose from disabled, enabled"),
    ("--rollout-items some", "--rollout-items: invalid choice 'some'; choose from inline, files, none"),
    ("--rollout-gate maybe", "--rollout-gate: unknown gate 'maybe'; use each, none"),
    ("--rollout-label team", "--rollout-label: invalid label 'team'; use KEY=VALUE"),
    ("--rollout-label 1=x", "--rollout-label: invalid label '1=x'"),
    ("--rollout-label a=1 --rollout-label a=2", "--rollout-label: 'a' was given twice; remove one of them"),
    ("--rollout-label a=" + "x" * 257, "has 257 characters; at most 256"),
    (" ".join(f"--rollout-label k{number}=1" for number in range(9)), "9 labels"),
    ("--rollout-task su", "--rollout-task: unknown task 'su'; an id is a folder's path below"),
    ("--rollout-task tasks/sum", "--rollout-task: unknown task 'tasks/sum'"),
    ("--rollout-task sql/../sum", "--rollout-task: unknown task 'sql/../sum'"),
    ("--core 'http://core.example/v1'", "--core: refusing to send the API key to http://core.example/v1"),
    ("--core 'https://me:pw@core.example/v1'", "--core: base URL 'https://***@core.example/v1': must not contain"),
    ("--core nonsense", "--core: base URL 'nonsense': expected http(s)://host[:port]/v1"),
    ("--core ''", "--core: must not be blank"),
    ("--harness oracle", "harness oracle: requires --core embedded"),
    ("--core embedded --harness mcode", "harness mcode: the embedded Core runs oracle, nop, codex, claude_sdk; mcode"),
    ("--core embedded --harness codex", "pass --model NAME --model-base-url https://api.openai.com/v1 and put the key"),
    ("--core embedded --harness claude_sdk --model m", "--model-base-url https://api.anthropic.com and put the key"),
    ("--rollout-capture x", "--rollout-capture: requires --core embedded; on another Core set this"),
    ("--rollout-capture-tokens", "--rollout-capture-tokens: requires --rollout-capture DIR, which keeps the ids"),
    (
        "--core embedded --harness claude_sdk --model m --model-base-url https://m --rollout-capture x "
        "--rollout-capture-tokens",
        "harness claude_sdk: --rollout-capture-tokens: no known server returns token ids on the protocol anthropic",
    ),
    ("--rollout-model-params {}x", "--rollout-model-params: invalid JSON '{}x': "),
    ("--rollout-model-params 1", "--rollout-model-params: expected a JSON object such as"),
    ("--rollout-model-params '{\"stream\": false}'", "\"stream\" can't be set here; the harness sets it"),
    ("--rollout-model-params '{\"seed\": 1}'", "--rollout-model-params: requires --core embedded"),
    (f"{ONE} --model-base-url https://m.example", "a model base URL needs the model's name (--model)"),
    (f"{ONE} --model m --model-base-url http://m.example/v1", "base URL: refusing to send the API key to http://m.example/v1"),
    (f"{ONE} --model m --model-base-url https://k:v@m.example", "must not contain credentials"),
    (f"{ONE} --model m --model-base-url m.example", "model base URL: base URL 'm.example'"),
    (f"{ONE} --model m --model-base-url https://m --model-protocol anthropic", "speaks responses, not anthropic"),
    (f"{ONE} --model m --model-base-url https://m --model-protocol soap", "unknown model protocol 'soap'"),
    (f"{ONE} --model-protocol responses", "a model protocol needs a model base URL"),
    ("--harness mcode --model m --model-base-url https://m", "speaks several protocols; choose one"),
    (
        "--harness mcode --model m --model-base-url https://m --model-protocol anthropic",
        "needs --rollout-context-window and --rollout-max-output-tokens",
    ),
    ("--rollout-context-window 1e3", "--rollout-context-window: expected a positive integer, got '1e3'"),
    (f"{ONE} --rollout-harness-config effort=1", "expected HARNESS:KEY=JSON, got 'effort=1'"),
    (f"{ONE} --rollout-harness-config codex:effort=low", 'write a string in quotes: effort="low"'),
    (f"{ONE} --rollout-harness-config codex:x=NaN", "expected JSON after the '='"),
    (f"{ONE} --rollout-harness-config mcode:x=1", "no agent of this run uses the harness 'mcode'"),
    (f"{ONE} --rollout-harness-config codex:x=1 --rollout-harness-config codex:x=2", "codex:x was given twice"),
    ("--rollout-report .", "is a folder; add a file name"),
    ("--rollout-out ''", "--rollout-out: must not be blank"),
    ("--rollout-agent missing.yaml", "missing.yaml: can't be read"),
    ("--rollout-agent bad.yaml", "bad.yaml:1: harnes:"),
    ("--rollout-agent key.yaml", "a file must not contain a key"),
    ("--rollout-agent good.yaml --rollout-agent sub/good.yaml", "two agents are named 'good'"),
]  # fmt: skip


@rows(("args", "message"), REFUSED, ids=[args[:60] for args, _ in REFUSED])
def test_an_invalid_value_is_a_usage_error(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch, args: str, message: str
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "model-key-0123456789")
    project.task()
    project.write("good.yaml", "harness: codex")
    project.write("sub/good.yaml", "harness: claude_sdk")
    project.write("bad.yaml", "harnes: codex")
    project.write("key.yaml", "api_key: sk-123")
    if not args.startswith("--harness") and "--harness" not in args and ONE not in args:
        args = f"tasks {args}"
    line = usage_error(project.run(*shlex.split(args)))
    assert message in line
    assert "pw" not in line
    assert not core.requests
    assert not (project.path / "runs").exists()


def test_an_invalid_ini_key_is_named_in_the_error(project: Project) -> None:
    project.task()
    project.ini("rollout_timeout = soon")
    assert usage_error(project.run("tasks")).startswith(
        "ini key rollout_timeout: expected a number of seconds above 0, such as 900 or 2.5"
    )


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_a_missing_core_is_a_usage_error_before_workers_start(project: Project, workers: tuple[str, ...]) -> None:
    """Eight workers took most of a minute to start."""
    project.unit_tests()
    project.task()
    result = project.run_apart("tasks", "tests", "--harness", "codex", "-v", *workers)
    assert usage_error(result).startswith(
        "no Core configured; set OPENAI_BASE_URL and OPENAI_API_KEY, pass --core URL, or use --core embedded"
    )
    assert "bringing up nodes" not in text_of(result)


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_a_missing_key_is_a_usage_error(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    project.task()
    assert usage_error(project.run("tasks", *workers)) == f"the Core at {core.base_url} needs a key: set OPENAI_API_KEY"
    assert not core.requests


def test_an_invalid_url_in_the_environment_is_a_usage_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.task()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://core.example/v1")
    assert usage_error(project.run("tasks")).startswith(
        "OPENAI_BASE_URL: refusing to send the API key to http://core.example/v1"
    )
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    assert usage_error(project.run("tasks")).startswith("OPENAI_BASE_URL: base URL 'nonsense': expected")
    assert project.run("tasks", "--core", "https://core.example", "--collect-only").ret == 0


def test_a_missing_key_of_a_model_endpoint_is_a_usage_error(project: Project, core: FakeCore) -> None:
    project.task()
    args = ("--harness", "codex", "--model", "m", "--model-base-url", "https://m.example/v1")
    assert (
        usage_error(project.run(*args))
        == "harness codex: a model base URL needs its key; set the environment variable MODEL_API_KEY"
    )
    project.write("own.yaml", "harness: codex\nmodel: m\nbase_url: https://m.example\napi_key_env: OWN_KEY")
    assert "set the environment variable OWN_KEY" in usage_error(project.run("--rollout-agent", "own.yaml"))
    assert not core.requests


def test_a_name_that_is_not_utf8_is_a_usage_error(project: Project) -> None:
    project.task()
    line = usage_error(project.run("--model", b"m\xff".decode("utf-8", "surrogateescape")))
    assert line == "--model: 'm\\udcff' is not UTF-8"


def test_a_jsonl_with_other_content_is_a_usage_error(project: Project, core: FakeCore) -> None:
    project.task()
    project.write("notes.txt", "dear diary")
    line = usage_error(project.run("tasks", "--rollout-out", "notes.txt"))
    assert "notes.txt: not a file of rollout records; choose another file with --rollout-out" in line
    assert not core.requests
    assert (project.path / "notes.txt").read_text() == "dear diary"


def test_a_run_that_did_not_start_prints_no_path_and_no_resume_command(project: Project, core: FakeCore) -> None:
    project.task()
    core.fault = lambda request: Fault(status=401, body=b'{"error": {"message": "no"}}')
    result = project.run("tasks")
    assert result.ret == 2
    assert "check OPENAI_API_KEY" in text_of(result)
    assert "not run: " in text_of(result)
    assert "to finish" not in text_of(result)
    assert not [line for line in result.outlines if line.endswith(".jsonl") and "results in" not in line]
