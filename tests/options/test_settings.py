"""Options and ini keys become settings, and invalid values are refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.options.activation import rollouts_requested
from pytest_core_rollouts.options.agents import secure_url
from pytest_core_rollouts.options.settings import Settings, read_settings
from pytest_core_rollouts.options.values import (
    LayeredSetting,
    count,
    label,
    name,
    network,
    one_of,
    positive_integer,
    positive_seconds,
)
from pytest_core_rollouts.tasks.matrix import Agent
from tests.support.tables import rows


def settings_of(pytester: pytest.Pytester, *args: str) -> Settings:
    """What pytest, called with these arguments, reads."""
    return read_settings(pytester.parseconfig(*args))


@pytest.fixture
def tasks(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one task; no Core configured."""
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "MODEL_API_KEY", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    return make_task(pytester.path / "tasks/sum").parent


def make_task(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "expected.json").write_text('{"x": 1}')
    return folder


@rows(
    ("option", "task", "ini", "expected"),
    [(1, 2, 3, 1), (None, 2, 3, 2), (None, None, 3, 3), (None, None, None, 4), (0, 2, 3, 0)],
)
def test_command_line_wins_over_task_then_ini_then_default(
    option: int | None, task: int | None, ini: int | None, expected: int
) -> None:
    assert LayeredSetting(option, ini, 4).resolve(task) == expected


@pytest.mark.parametrize(
    ("args", "asked"),
    [((), False), ((".",), False), (("tasks",), True), (("tasks/sum",), True), (("--samples", "2"), True)],
)
def test_options_ini_and_task_paths_request_rollouts(
    pytester: pytest.Pytester, tasks: Path, args: tuple[str, ...], asked: bool
) -> None:
    assert tasks.is_dir()
    assert rollouts_requested(pytester.parseconfig(*args)) is asked


def test_settings_have_their_defaults(pytester: pytest.Pytester, tasks: Path) -> None:
    settings = settings_of(pytester, "tasks")
    assert not settings.aimed
    assert settings.agents == (Agent(),)
    assert (settings.samples.resolve(), settings.timeout.resolve(), settings.retries) == (1, 900.0, 1)
    assert settings.network.resolve().is_disabled
    assert not settings.soft
    assert settings.core is None


def test_options_are_read_into_settings(pytester: pytest.Pytester, tasks: Path) -> None:
    settings = settings_of(
        pytester,
        *("--harness", "codex", "--harness=claude_sdk", "--model", "m", "--model", "n", "--samples", "4"),
        *("--core", "https://core.example/", "--rollout-timeout", "2.5", "--rollout-retries", "0"),
        *("--rollout-label", "a=1=2", "--rollout-gate", "none", "--rollout-concurrency", "7"),
        *("--rollout-items", "none", "--rollout-hide-expected", "--rollout-task", "sum"),
    )
    assert settings.aimed
    assert [agent.slug for agent in settings.agents] == ["codex-m", "codex-n", "claude_sdk-m", "claude_sdk-n"]
    assert (settings.samples.resolve(9), settings.timeout.resolve(9.0), settings.retries) == (4, 2.5, 0)
    assert settings.core == "https://core.example/v1"
    assert settings.labels == {"a": "1=2"}
    assert settings.soft
    assert (settings.concurrency, settings.items, settings.hide_expected) == (7, "none", True)
    assert settings.tasks == {"sum"}


def test_embedded_core_runs_the_solutions_by_default(pytester: pytest.Pytester, tasks: Path) -> None:
    assert [agent.harness for agent in settings_of(pytester, "--core", "embedded").agents] == ["oracle"]
    assert [agent.harness for agent in settings_of(pytester, "--core=embedded", "--harness", "nop").agents] == ["nop"]


def test_no_repr_shows_a_key(pytester: pytest.Pytester, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "core-key-1234")
    monkeypatch.setenv("MODEL_API_KEY", "model-key-1234")
    settings = settings_of(pytester, "--harness", "codex", "--model", "m", "--model-base-url", "https://m.example")
    assert settings.secrets == ("core-key-1234", "model-key-1234")
    assert "key-1234" not in repr(settings)


@rows(
    ("convert", "text", "value"),
    [
        (positive_integer, "12", 12),
        (count, "0", 0),
        (positive_seconds, "0.5", 0.5),
        (name, "openai/gpt-5:free (v2)", "openai/gpt-5:free (v2)"),
        (label, "team=", ("team", "")),
        (one_of("a", "b"), "b", "b"),
    ],
)
def test_valid_texts_are_converted(convert: Any, text: str, value: Any) -> None:
    assert convert(text) == value


@rows(
    ("convert", "text"),
    [
        *((positive_integer, text) for text in ("0", "-1", "1.0", "1e3", "", " 1", "x", "٣", "1_000", "9999999999")),
        *((count, text) for text in ("-1", "1000", "")),
        *((positive_seconds, text) for text in ("0", "0.0", "nan", "inf", "-1", "1e3", "10:00", "60s", ".5")),
        *((network, text) for text in ("on", "Enabled", "")),
        *((label, text) for text in ("team", "=x", "1=x", "a b=c", "a=b\nc", "k" * 33 + "=x")),
        (name, "a\nb"),
        (one_of("a"), "A"),
    ],
)
def test_invalid_texts_are_refused_with_a_reason(convert: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"^(expected|invalid|unknown|must not|the value of) "):
        convert(text)


@rows("url", ["https://core.example/v1", "http://127.0.0.1:8000/v1", "http://[::1]:8000/v1", "http://localhost/v1"])
def test_urls_that_keep_the_key_encrypted_are_accepted(url: str) -> None:
    assert secure_url(url + "/", "--core") == url


@rows(
    "url",
    ["http://core.example/v1", "http://127.0.0.1.example/v1", "http://10.0.0.1/v1", "http://localhost.example/v1"],
)
def test_plain_http_to_another_machine_is_refused(url: str) -> None:
    with pytest.raises(pytest.UsageError, match="refusing to send the API key"):
        secure_url(url, "--core")
