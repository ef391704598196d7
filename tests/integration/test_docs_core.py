"""docs/core.md: every message is what its command prints, and every table agrees with the code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.tasks.matrix import HARNESS_PROTOCOLS, MODELLESS
from tests.integration.conftest import Project, text_of
from tests.support.fake_core import FakeCore, Fault, Script

TEXT = (Path(__file__).parents[2] / "docs" / "core.md").read_text()
PAIRS = re.findall(r"^```\n([^`]*)^```\n\n```text\n([^`]*)^```$", TEXT.partition("## Usage errors")[2], re.MULTILINE)
HERE, BY_DEPLOYMENT = PAIRS[:-8], PAIRS[-8:]


def refusal(status: int, code: str, message: str, param: str | None = None) -> Fault:
    error = {"type": "invalid_request_error", "code": code, "message": message, "param": param}
    return Fault(status=status, body=json.dumps({"error": error}).encode())


def failed_turn(code: str, message: str) -> Script:
    return Script(turn_status="failed", error={"code": code, "message": message})


DEPLOYMENTS: list[tuple[str, int, Fault | Script]] = [
    ("401", 2, refusal(401, "invalid_api_key", "A valid Agents API bearer key is required.")),
    ("no Core", 2, Fault(status=404, body=b"<html>", headers={"Content-Type": "text/html"})),
    (
        "network",
        2,
        refusal(
            400,
            "unsupported_or_invalid_configuration",
            "network access cannot be disabled here",
            "environment.network.access",
        ),
    ),
    ("no model", 2, refusal(400, "model_provider_required", "a model provider is required")),
    ("harness", 2, refusal(400, "invalid_request_error", "unknown harness", "agent.x_agents_core.harness")),
    ("private host", 1, failed_turn("connection_failed", "no route to infer.internal")),
    ("model's key", 1, failed_turn("authentication_error", "401 from infer.example")),
    ("no sandbox", 1, Script(prepare_seconds=0.3, session_failure="no sandbox: the image is missing")),
]
"""What each deployment of the page does, in its order, and pytest's exit code."""


@pytest.fixture
def core() -> Iterator[FakeCore]:
    with FakeCore() as running:
        yield running


Printed = tuple[int, str]


@pytest.fixture
def run(project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Printed]:
    """Runs `[env -u NAME ...] pytest ...`; gives exit code and output, with the Core's URL as the page has it."""
    monkeypatch.setenv("MODEL_API_KEY", "model-key-0123456789")
    project.task()
    project.ini()

    def run(command: str) -> Printed:
        before, _, arguments = command.partition("pytest ")
        for name in before.replace("env ", "").replace("-u ", "").split():
            monkeypatch.delenv(name)
        result = project.run(*shlex.split(arguments))
        return int(result.ret), text_of(result).replace(core.base_url, "https://core.example/v1")

    return run


@pytest.mark.parametrize(("command", "text"), HERE, ids=[command.strip() for command, _ in HERE])
def test_each_usage_error_of_the_page_is_printed_by_its_command(
    run: Callable[[str], Printed], core: FakeCore, command: str, text: str
) -> None:
    code, output = run(command)
    assert code == 4
    assert [line for line in output.splitlines() if line.startswith("ERROR")] == [text.strip()]
    assert not core.requests


@pytest.mark.parametrize(
    ("pair", "code", "deployment"),
    [(pair, code, does) for pair, (_, code, does) in zip(BY_DEPLOYMENT, DEPLOYMENTS, strict=True)],
    ids=[name for name, _, _ in DEPLOYMENTS],
)
def test_each_error_of_a_deployment_is_printed_by_its_command(
    run: Callable[[str], Printed],
    project: Project,
    core: FakeCore,
    pair: tuple[str, str],
    code: int,
    deployment: Fault | Script,
) -> None:
    if isinstance(deployment, Fault):
        core.fault = lambda request: deployment if request.route == "create" else None
    else:
        core.script = lambda body: deployment
    command, text = pair
    ended, output = run(command)
    assert ended == code, output
    assert text.strip() in output
    [row] = project.records
    assert row["reward"] is None


def test_every_message_of_the_page_has_a_case() -> None:
    assert len(HERE) == 11
    assert TEXT.count("```text") == len(PAIRS)


def test_the_table_of_protocols_is_that_of_the_code() -> None:
    table = TEXT.partition("| harness | `--model-protocol` |")[2].partition("\n\n")[0]
    shown = {cells[0]: cells[1:] for row in table.splitlines()[2:] if (cells := re.findall(r"`([a-z_]+)`", row))}
    spoken = {name: list(protocols) for name, protocols in HARNESS_PROTOCOLS.items() if name not in MODELLESS}
    assert shown == {**spoken, "default": []}


def test_every_option_in_the_table_of_options_is_accepted(run: Callable[[str], Printed], project: Project) -> None:
    table = TEXT.partition("| option | the deployment needs |")[2].partition("\n\n")[0]
    shown = [span for row in table.splitlines()[2:] for span in re.findall(r"`([^`]+)`", row.split("|")[1])]
    settings = [span for span in shown if re.match(r"\w+: ", span)]
    options = [span for span in shown if span.startswith("--")]
    assert (len(settings), len(options)) == (2, 9)
    for number, setting in enumerate(settings):
        project.task(f"t{number}", yaml=setting.replace("...", "numpy") + "\n")
    values = {"NAME": "my-policy", "URL": "https://infer.example/v1", "codex:KEY=JSON": "codex:verbosity=1"}
    embedded = {"--harness oracle": "", "--rollout-capture": "captures", "--rollout-model-params": '{"seed": 1}'}
    for span in options:
        arguments = [values.get(part, part) for part in shlex.split(span)]
        if span in embedded:
            arguments += (
                ["--core", "embedded"] if span == "--harness oracle" else [embedded[span], "--core", "embedded"]
            )
        if "--harness" not in arguments:
            arguments += ["--harness", "nop" if span in embedded else "codex"]
        code, output = run(f"pytest tasks --collect-only {shlex.join(arguments)}")
        assert code == 0, (span, output)
