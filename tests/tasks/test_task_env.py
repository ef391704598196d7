"""What a task may take from this machine's environment: nothing of the run's own keys, and secrets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_core_rollouts.checking.checks import TaskChecks
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.strict_yaml import YamlError
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import FromEnv
from pytest_core_rollouts.tasks.task_yaml import read_settings
from tests.integration.conftest import Project, core, outcomes, project, text_of
from tests.support.fake_core import FakeCore
from tests.support.tables import rows

__all__ = ["core", "project"]  # fixtures


def env(text: str) -> dict[str, FromEnv]:
    settings: dict[str, FromEnv] = read_settings(Path("task.yaml"), text.encode())["env"]
    return settings


@rows("name", ["OPENAI_API_KEY", "MODEL_API_KEY", "openai_api_key"])
def test_the_runs_own_keys_are_refused(name: str) -> None:
    with pytest.raises(YamlError, match=rf"task.yaml:2: env.A: {name} holds a key of the run"):
        env(f"env:\n  A: {{from_env: {name}}}\n")
    with pytest.raises(TaskError, match="holds a key of the run"):
        Task(id="t", instruction="x", expected={"a": 1}, env={"A": FromEnv(name)})


@rows(
    ("variable", "source", "secret"),
    [
        ("C", "AWS_SECRET_ACCESS_KEY", True),
        ("D", "DB_PASSWORD", True),
        ("D", "db_passwd", True),
        ("D", "GITHUB_TOKEN", True),
        ("D", "GOOGLE_APPLICATION_CREDENTIALS", True),
        ("D", "SMTP_PASS", True),
        ("D", "MYSQL_PWD", True),
        ("API_TOKEN", "STAGING", True),  # renamed: either name decides
        ("PWD", "OLDPWD", False),
        ("D", "MAX_TOKENS", False),
        ("D", "COMPASS", False),
        ("D", "DATABASE_URL", False),
    ],
)
def test_names_that_look_secret_are_secret_unless_the_task_says_otherwise(
    variable: str, source: str, secret: bool
) -> None:
    assert env(f"env: {{{variable}: {{from_env: {source}}}}}")[variable].secret is secret
    task = Task(id="t", instruction="x", expected={"a": 1}, env={variable: FromEnv(source)})
    assert task.env[variable] == FromEnv(source, secret)
    for written in ("true", "false"):
        yaml = f"env: {{{variable}: {{from_env: {source}, secret: {written}}}}}"
        assert env(yaml)[variable].secret is (written == "true")


def test_check_warns_of_what_is_neither_listed_nor_secret() -> None:
    sources = {"URL": FromEnv("STAGING_URL"), "TOKEN": FromEnv("STAGING_TOKEN")}
    task = Task(id="t", instruction="x", expected={"a": 1}, env={**sources, "MODE": "fast"})

    def found(listed: bool) -> list[str]:
        checks = TaskChecks(task, lambda task, answer: task.grade(answer), env_listed=listed)
        return [finding.message for finding in checks.findings() if finding.code == "env-unlisted"]

    [message] = found(listed=False)
    assert message.startswith("env.URL reads STAGING_URL from this machine and is not masked")
    assert found(listed=True) == []


def test_keys_of_agents_and_unlisted_names_are_refused_and_secrets_masked(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run: a task each that takes an agent's key, the Core's key under another name, and an unlisted variable."""
    monkeypatch.setenv("TEAM_MODEL", "model-key-canary-1")
    monkeypatch.setenv("COPY", core.api_key)
    monkeypatch.setenv("MODEL_API_KEY", "model-key-canary-3")
    monkeypatch.setenv("MODEL_COPY", "model-key-canary-3")  # a key of the run, although no agent here uses it
    monkeypatch.setenv("DB_PASSWORD", "password-canary-2")
    monkeypatch.setenv("HOST_NAME", "host")
    project.write("agent.yaml", "harness: codex\nmodel: m\nbase_url: https://m.example/v1\napi_key_env: TEAM_MODEL\n")
    project.ini("rollout_task_env = TEAM_MODEL COPY MODEL_COPY DB_PASSWORD")
    named = {"a": "TEAM_MODEL", "b": "COPY", "c": "HOST_NAME", "d": "DB_PASSWORD", "e": "MODEL_COPY"}
    for name, source in named.items():
        project.task(name, yaml=f"env: {{A: {{from_env: {source}}}}}", expected={"x": "password-canary-2"})
    args = ("tasks", "--rollout-agent", "agent.yaml", "--continue-on-collection-errors", "-p", "no:cacheprovider")
    result = project.run(*args)
    assert outcomes(result) == {"errors": 4, "failed": 1}, text_of(result)
    text = text_of(result)
    for name, problem in (
        ("a", "env.A: TEAM_MODEL holds a key of the run"),
        ("b", "env.A: COPY holds a key of the run"),
        ("c", "env.A: tasks may not read HOST_NAME"),
        ("e", "env.A: MODEL_COPY holds a key of the run"),
    ):
        assert f"{project.path}/tasks/{name}/task.yaml: {problem}" in text
    [session] = core.sessions.values()
    assert session.body["environment"]["env"] == {"A": "password-canary-2"}
    assert "password-canary-2" not in project.results[0].read_text()
