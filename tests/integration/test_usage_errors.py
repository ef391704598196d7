"""What can't be run is refused in one line, with exit code 4, before anything is paid for."""

from __future__ import annotations

import shlex

import pytest

from tests.integration.conftest import Project, text_of, usage_error
from tests.support.fake_core import FakeCore, Fault

ONE = "--harness=codex"
"""Enough to ask for rollouts."""

REFUSED = [
    ("--harness codex --harness codex", "harness codex with model default is named twice"),
    ("--model m --model n --model m", "harness default with model m is named twice"),
    ("--harness codx", "unknown harness 'codx'; known are default, codex, claude_sdk, mcode"),
    ("--harness ''", "--harness: is blank"),
    ("--model 'a\nb'", "--model: 'a\\nb' holds a control character"),
    ("--samples 0", "--samples: '0' is no whole number of at least 1"),
    ("--samples x", "--samples: 'x' is no whole number"),
    ("--samples 1.5", "--samples: '1.5' is no whole number"),
    ("--samples ٣", "--samples: '٣' is no whole number"),
    ("--rollout-samples -1", "--rollout-samples: '-1' is no whole number"),
    ("--rollout-timeout 0", "--rollout-timeout: '0' is no number of seconds above 0"),
    ("--rollout-timeout nan", "--rollout-timeout: 'nan' is no number of seconds"),
    ("--rollout-timeout inf", "--rollout-timeout: 'inf' is no number of seconds"),
    ("--rollout-timeout 10:00", "--rollout-timeout: '10:00' is no number of seconds"),
    ("--rollout-concurrency 0", "--rollout-concurrency: '0' is no whole number"),
    ("--rollout-retries -1", "--rollout-retries: '-1' is no whole number from 0"),
    ("--rollout-network on", "--rollout-network: 'on' is neither disabled nor enabled"),
    ("--rollout-items some", "--rollout-items: 'some' is none of inline, files, none"),
    ("--rollout-gate maybe", "--rollout-gate: 'maybe' is no gate"),
    ("--rollout-label team", "--rollout-label: 'team' is no KEY=VALUE"),
    ("--rollout-label 1=x", "--rollout-label: '1=x' is no KEY=VALUE"),
    ("--rollout-label a=1 --rollout-label a=2", "--rollout-label: 'a' is given twice"),
    ("--rollout-label a=" + "x" * 257, "has a value of 257 characters"),
    (" ".join(f"--rollout-label k{number}=1" for number in range(9)), "9 labels"),
    ("--rollout-task su", "--rollout-task: no task 'su'; an id is a folder's path in"),
    ("--rollout-task tasks/sum", "--rollout-task: no task 'tasks/sum'"),
    ("--rollout-task sql/../sum", "--rollout-task: no task 'sql/../sum'"),
    ("--core 'http://core.example/v1'", "--core: refusing to send the API key to http://core.example/v1"),
    ("--core 'https://me:pw@core.example/v1'", "--core: base URL 'https://***@core.example/v1': must not contain"),
    ("--core nonsense", "--core: base URL 'nonsense': expected http(s)://host[:port]/v1"),
    ("--core ''", "--core: is blank"),
    ("--harness oracle", "harness oracle: requires --core embedded"),
    ("--core embedded --harness mcode", "harness mcode: the embedded Core runs oracle, nop, codex, claude_sdk; mcode"),
    ("--core embedded --harness codex", "pass --model NAME --model-base-url https://api.openai.com/v1 and put the key"),
    ("--core embedded --harness claude_sdk --model m", "--model-base-url https://api.anthropic.com and put the key"),
    ("--rollout-capture x", "--rollout-capture: works on the embedded Core alone (--core embedded); on another one"),
    ("--rollout-model-params {}x", "--rollout-model-params: '{}x' is not valid JSON"),
    ("--rollout-model-params 1", "--rollout-model-params: '1' is no JSON object, such as"),
    ("--rollout-model-params '{\"stream\": false}'", "sets 'stream', which is the harness's own to say"),
    ("--rollout-model-params '{\"seed\": 1}'", "--rollout-model-params: works on the embedded Core alone"),
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
    ("--rollout-context-window 1e3", "--rollout-context-window: '1e3' is no whole number"),
    (f"{ONE} --rollout-harness-config effort=1", "is no HARNESS:KEY=JSON"),
    (f"{ONE} --rollout-harness-config codex:effort=low", 'a text needs its quotes: effort="low"'),
    (f"{ONE} --rollout-harness-config codex:x=NaN", "has no JSON after the '='"),
    (f"{ONE} --rollout-harness-config mcode:x=1", "no agent of this run has the harness 'mcode'"),
    (f"{ONE} --rollout-harness-config codex:x=1 --rollout-harness-config codex:x=2", "codex:x is given twice"),
    ("--rollout-report .", "is a folder; name a file in it"),
    ("--rollout-out ''", "--rollout-out: is blank"),
    ("--rollout-agent missing.yaml", "missing.yaml: can't be read"),
    ("--rollout-agent bad.yaml", "bad.yaml:1: harnes:"),
    ("--rollout-agent key.yaml", "a key never stands in a file"),
    ("--rollout-agent good.yaml --rollout-agent sub/good.yaml", "two agents are named 'good'"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "message"), REFUSED, ids=[args[:60] for args, _ in REFUSED])
def test_a_value_that_cannot_be_is_refused(
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


def test_an_ini_key_is_named_as_such(project: Project) -> None:
    project.task()
    project.ini("rollout_timeout = soon")
    assert usage_error(project.run("tasks")).startswith("ini key rollout_timeout: 'soon' is no number of seconds")


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_no_core(project: Project, workers: tuple[str, ...]) -> None:
    project.unit_tests()
    project.task()
    line = usage_error(project.run_apart("tasks", "tests", "--harness", "codex", *workers))
    assert line.startswith(
        "no Core configured; set OPENAI_BASE_URL and OPENAI_API_KEY, pass --core URL, or use --core embedded"
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_no_key(project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    project.task()
    assert usage_error(project.run("tasks", *workers)) == f"the Core at {core.base_url} needs a key: set OPENAI_API_KEY"
    assert not core.requests


def test_rubbish_in_the_environment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.task()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://core.example/v1")
    assert usage_error(project.run("tasks")).startswith(
        "OPENAI_BASE_URL: refusing to send the API key to http://core.example/v1"
    )
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    assert usage_error(project.run("tasks")).startswith("OPENAI_BASE_URL: base URL 'nonsense': expected")
    assert project.run("tasks", "--core", "https://core.example", "--collect-only").ret == 0


def test_no_key_for_a_models_own_endpoint(project: Project, core: FakeCore) -> None:
    project.task()
    args = ("--harness", "codex", "--model", "m", "--model-base-url", "https://m.example/v1")
    assert (
        usage_error(project.run(*args))
        == "harness codex: a model base URL needs its key; set the environment variable MODEL_API_KEY"
    )
    project.write("own.yaml", "harness: codex\nmodel: m\nbase_url: https://m.example\napi_key_env: OWN_KEY")
    assert "set the environment variable OWN_KEY" in usage_error(project.run("--rollout-agent", "own.yaml"))
    assert not core.requests


def test_a_name_that_is_not_utf8(project: Project) -> None:
    project.task()
    line = usage_error(project.run_apart("--model", b"m\xff".decode("utf-8", "surrogateescape")))
    assert line == "--model: 'm\\udcff' is not UTF-8"


def test_a_results_file_that_holds_something_else(project: Project, core: FakeCore) -> None:
    project.task()
    project.write("notes.txt", "dear diary")
    line = usage_error(project.run("tasks", "--rollout-out", "notes.txt"))
    assert "notes.txt: holds something else than rollout records; choose another file with --rollout-out" in line
    assert not core.requests
    assert (project.path / "notes.txt").read_text() == "dear diary"


def test_a_run_that_never_began_names_no_file_and_no_way_to_go_on(project: Project, core: FakeCore) -> None:
    project.task()
    core.fault = lambda request: Fault(status=401, body=b'{"error": {"message": "no"}}')
    result = project.run("tasks")
    assert result.ret == 2
    assert "check OPENAI_API_KEY" in text_of(result)
    assert "not run: " in text_of(result)
    assert "to finish" not in text_of(result)
    assert not [line for line in result.outlines if line.endswith(".jsonl") and "results in" not in line]
