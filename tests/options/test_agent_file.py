"""Agent files: every key, its default, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_core_rollouts.options.agent_file import AgentError, load_agent
from pytest_core_rollouts.tasks.matrix import Agent
from tests.support.tables import rows


def agent_from(tmp_path: Path, content: str) -> Agent:
    """The agent in a file `careful.yaml` with this content."""
    path = tmp_path / "careful.yaml"
    path.write_bytes(content.encode())
    return load_agent(path)


def test_file_can_set_every_key(tmp_path: Path) -> None:
    content = """
name: careful é
harness: mcode
model: openai/gpt-5:free
protocol: chat_completions
base_url: https://models.example.com/v1/{rollout_id}
api_key_env: TEAM_KEY
instructions: |
  Think {twice}.
tools:
  - {type: web_search, depth: 2}
skills:
  - {name: csv, paths: [a, b]}
harness_config: {effort: high, nested: {n: 1.5, ok: true, none: }}
context_window: 200000
max_output_tokens: 8000
"""
    assert agent_from(tmp_path, content) == Agent(
        name="careful é",
        harness="mcode",
        model="openai/gpt-5:free",
        protocol="chat_completions",
        base_url="https://models.example.com/v1/{rollout_id}",
        api_key_env="TEAM_KEY",
        instructions="Think {twice}.\n",
        tools=({"type": "web_search", "depth": 2},),
        skills=({"name": "csv", "paths": ["a", "b"]},),
        harness_config={"effort": "high", "nested": {"n": 1.5, "ok": True, "none": None}},
        context_window=200000,
        max_output_tokens=8000,
    )


def test_missing_keys_take_their_defaults(tmp_path: Path) -> None:
    assert agent_from(tmp_path, "") == Agent(name="careful")
    assert agent_from(tmp_path, "harness: codex") == Agent(name="careful", harness="codex")


def test_each_value_changes_the_digest(tmp_path: Path) -> None:
    one = agent_from(tmp_path, "instructions: Be brief.")
    assert one.digest != agent_from(tmp_path, "instructions: Be careful.").digest
    assert one.digest == agent_from(tmp_path, "# the same\ninstructions: 'Be brief.'").digest


@rows(
    ("content", "problem"),
    [
        ("harnes: codex", "harnes: unknown key; did you mean harness?"),
        (
            "harness: cursor",
            "harness: invalid choice 'cursor'; choose from default, codex, claude_sdk, mcode, oracle, nop",
        ),
        ("harness: [codex]", "harness: invalid choice ['codex']; choose from default, codex"),
        ("name: ''", "name: must not be blank"),
        ("model: no", "model: YAML reads no as a boolean; put it in quotes if it is a string, or write true or false"),
        ("model: 1.10", "model: expected a string, got 1.1; put it in quotes"),
        ("model:", "model: expected a string, got nothing; fill it in, or remove the key"),
        ("model: a\nmodel: b", "model: a duplicate key"),
        ("protocol: grpc", "protocol: invalid choice 'grpc'; choose from anthropic, responses, chat_completions"),
        ("base_url: models.example.com", "base_url: invalid URL 'models.example.com'; write https://host/v1"),
        ("base_url: ftp://x/v1", "base_url: invalid URL 'ftp://x/v1'; write https://host/v1"),
        ("base_url: 'https://[x/v1'", "base_url: invalid URL: "),
        ("base_url: https:///v1", "base_url: invalid URL 'https:///v1'; write https://host/v1"),
        ("base_url: https://x/v1?a=b", "base_url: the URL 'https://x/v1?a=b' has a query or a fragment; remove it"),
        ("tools: web_search", "tools: expected a list of mappings, got"),
        ("tools: [web_search]", "tools[0]: expected a mapping of names to values, got 'web_search'"),
        ("skills: {a: b}", "skills: expected a list of folders, got a mapping; write it as [skills/one]"),
        ("skills: [5]", "skills[0]: expected a mapping of names to values, got 5"),
        ("harness_config: high", "harness_config: expected a mapping of names to values, got 'high'"),
        ("harness_config: {limit: .inf}", "harness_config.limit: .inf is not finite; write a plain number"),
        ("harness_config: {since: 2026-01-31}", "harness_config.since: YAML reads 2026-01-31 as a date"),
        ("context_window: 0", "context_window: expected a positive integer, got 0"),
        ("context_window: 200k", "context_window: expected an integer, got '200k'; write it without a unit"),
        ("max_output_tokens: 1.5", "max_output_tokens: expected an integer, got 1.5"),
    ],
)
def test_error_names_file_line_and_key(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(AgentError) as caught:
        agent_from(tmp_path, f"\n{content}")
    line = 3 if "\n" in content else 2
    assert str(caught.value).startswith(f"{tmp_path / 'careful.yaml'}:{line}: {problem}")


@rows("key", ["sk-abc123", "0F3A" * 8, "0f3a" * 8, "abc", "A B", ""])
def test_api_key_env_that_holds_a_key_is_refused_without_showing_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(AgentError) as caught:
        agent_from(tmp_path, f"api_key_env: '{key}'")
    message = str(caught.value).partition("api_key_env: ")[2]
    assert message.startswith("expected the name of an environment variable")
    assert not key or f"'{key}'" not in message


def test_key_in_the_file_is_refused(tmp_path: Path) -> None:
    for content in ("api_key: s3cret-value", "base_url: https://user:s3cret-value@x/v1"):
        with pytest.raises(AgentError, match="api_key_env") as caught:
            agent_from(tmp_path, content)
        assert "s3cret" not in str(caught.value)


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"gone\.yaml: can't be read: No such file or directory; pass the path"):
        load_agent(tmp_path / "gone.yaml")
    with pytest.raises(AgentError, match="can't be read: Is a directory"):
        load_agent(tmp_path)


def test_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"model: x\nname: caf\xe9")
    with pytest.raises(AgentError, match=r"a\.yaml:2: byte 18 is not UTF-8; save the file as UTF-8"):
        load_agent(tmp_path / "a.yaml")


def test_link_to_an_agent_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_bytes(b"model: x")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    assert load_agent(tmp_path / "link.yaml") == Agent(name="link", model="x")
