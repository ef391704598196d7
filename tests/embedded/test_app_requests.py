"""Headers of requests and responses, and which bodies are refused."""

from __future__ import annotations

import copy
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.tables import rows
from tests.support.wire import HOSTED, Wire, oracle

NO_SUCH = "00000000-0000-4000-8000-000000000000"


def test_every_response_has_a_request_id(wire: Wire) -> None:
    answers = [
        wire.call("GET", "/sessions"),
        wire.call("GET", f"/sessions/{NO_SUCH}"),
        wire.call("GET", "/sessions", headers={"OpenAI-Beta": None}),
        wire.call("GET", "/sessions", headers={"Authorization": None}),
        wire.call("GET", "/nothing"),
        wire.call("PUT", "/sessions"),
        wire.call("POST", "/sessions", content=b"{", headers={"Content-Type": "application/json"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 401, 404, 405, 400]
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", id) for id in ids)
    assert len(set(ids)) == len(ids)


@rows("value", [None, "agents=v0", "agents=v1, agents=v1", ""])
def test_beta_header_is_required(wire: Wire, value: str | None) -> None:
    error = wire.refused(400, "GET", "/sessions", headers={"OpenAI-Beta": value})
    assert (error["type"], error["code"]) == ("invalid_beta", "invalid_beta")


def test_duplicate_beta_header_is_refused_before_the_key_is_checked(wire: Wire) -> None:
    headers = [("OpenAI-Beta", "agents=v1"), ("OpenAI-Beta", "agents=v1")]
    response = wire.client.get(f"{wire.base_url}/agents/sessions", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_beta")


@rows("value", [None, "Bearer wrong", "Bearer", "Basic abc", "Bearer schlüssel"])
def test_wrong_key_is_401(wire: Wire, value: str | None) -> None:
    headers = {b"OpenAI-Beta": b"agents=v1"} | ({} if value is None else {b"Authorization": value.encode()})
    response = wire.client.get(f"{wire.base_url}/agents/sessions", headers=headers)
    assert response.status_code == 401, response.text
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["error"]["code"] is None


@rows("path", ["/sessions/", "/nothing", f"/sessions/{NO_SUCH}/nothing", ""])
def test_unknown_path_is_404(wire: Wire, path: str) -> None:
    assert wire.refused(404, "GET", path)["code"] == "unsupported_operation"


def test_path_outside_v1_is_404(wire: Wire) -> None:
    response = wire.client.get(wire.base_url.removesuffix("/v1") + "/agents/sessions", headers=wire.headers)
    assert response.status_code == 404


def test_wrong_method_is_405_and_allow_names_the_right_ones(wire: Wire) -> None:
    response = wire.call("PUT", f"/sessions/{NO_SUCH}")
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "unsupported_operation"
    assert set(re.split(", ?", response.headers["Allow"])) >= {"GET", "POST", "DELETE"}


@rows("path", [f"/sessions/{NO_SUCH}/events", f"/sessions/{NO_SUCH}/artifacts/x/content"])
def test_head_of_a_stream_or_content_is_405(wire: Wire, path: str) -> None:
    assert wire.call("HEAD", path).status_code == 405


@rows(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/turns"),
        ("GET", "/turns/x"),
        ("GET", "/items"),
        ("GET", "/artifacts"),
        ("GET", "/artifacts/x"),
        ("GET", "/artifacts/x/content"),
        ("DELETE", "/artifacts/x"),
        ("GET", "/events"),
    ],
)
@rows("id", [NO_SUCH, "no uuid", "..%2f..%2fetc"])
def test_unknown_session_is_404(wire: Wire, method: str, path: str, id: str) -> None:
    error = wire.refused(404, method, f"/sessions/{id}{path}")
    assert (error["type"], error["code"], error["param"]) in {
        ("not_found_error", "not_found_error", None),
        ("invalid_request_error", "unsupported_operation", None),
    }
    if id == NO_SUCH:
        assert error["code"] == "not_found_error"


BROKEN = {
    "malformed": b'{"environment": ',
    "trailing data": b"{} {}",
    "byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"metadata": NaN}',
    "only blanks": b"   ",
    "lone surrogate": rb'{"input": "\ud800"}',
    "a trailing comma": b'{"input": "x",}',
    "nested too deeply": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "invalid UTF-8": b'{"input": "\xff"}',
    "an array": b"[]",
    "a number": b"3",
    "an endless number": b'{"metadata": ' + b"9" * 5000 + b"}",
}


@rows("content", BROKEN.values(), ids=BROKEN.keys())
def test_body_that_is_not_strict_json_is_400(wire: Wire, content: bytes) -> None:
    error = wire.refused(400, "POST", "/sessions", content=content, headers={"Content-Type": "application/json"})
    assert (error["code"], error["param"]) == ("invalid_request_error", None)


@rows(
    ("content", "key"),
    [
        (b'{"input": "a", "input": "b"}', "input"),
        (b'{"metadata": {"k": "a", "k": "a"}}', "k"),
        (rb'{"environment": {"files": [{"path": "a", "p\u0061th": "b"}]}}', "path"),
    ],
)
def test_duplicate_key_is_refused_at_any_depth(wire: Wire, content: bytes, key: str) -> None:
    error = wire.refused(400, "POST", "/sessions", content=content, headers={"Content-Type": "application/json"})
    assert f"duplicate key '{key}'" in error["message"]


LONG = "long" * 1000
LONG_TEXTS: dict[str, Any] = {
    "a member": {"environment": HOSTED, LONG: 1},
    "a variable": {"environment": {**HOSTED, "env": {LONG: 1}}},
    "metadata": {"environment": HOSTED, "metadata": {LONG: 1}},
    "a choice": {"environment": {"type": LONG}},
    "a harness": {"environment": HOSTED, "agent": {"x_agents_core": {"harness": LONG}}},
}


@rows("body", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_error_repeats_little_of_the_request(wire: Wire, body: dict[str, Any]) -> None:
    assert len(wire.call("POST", "/sessions", json=body).text) < 1200


def test_error_never_repeats_a_model_key(wire: Wire) -> None:
    for change in ({"api_key": ["sk-canary"]}, {"api_key": "sk-canary\n"}, {"base_url": "https://u:sk-canary@x"}):
        response = wire.call("POST", "/sessions", json=_with("x_agents_core.model_provider", {**PROVIDER, **change}))
        assert response.status_code == 400
        assert "canary" not in response.text


@pytest.mark.slow
def test_huge_invalid_bodies_are_refused(wire: Wire) -> None:
    """The client waits 30 s; without a bound pydantic would collect millions of errors."""

    def members(letter: str) -> dict[str, int]:
        return {f"{letter}{number}": 1 for number in range(700_000)}

    wire.refused(400, "POST", "/sessions", json=members("a"))
    for name, part in {
        "env": {"environment": {**HOSTED, "env": members("A")}},
        "files": {"environment": {**HOSTED, "files": [1] * 2_000_000}},
        "input": {"environment": HOSTED, "input": [{"role": "user", "content": [1] * 2_000_000}]},
        "metadata": {"environment": HOSTED, "metadata": members("a")},
    }.items():
        assert name in wire.refused(400, "POST", "/sessions", json=part)["param"]


def test_nul_character_is_refused(wire: Wire) -> None:
    error = wire.refused(400, "POST", "/sessions", json={"environment": HOSTED, "input": "a\x00b"})
    assert "U+0000" in error["message"]


@rows("type", [None, "text/plain", "application/jsonx", "application/x-www-form-urlencoded"])
def test_other_content_type_is_400(wire: Wire, type: str | None) -> None:
    error = wire.refused(400, "POST", "/sessions", content=b"{}", headers={"Content-Type": type})
    assert "Content-Type" in error["message"]


@rows("type", ["application/json; charset=utf-8", "Application/JSON", "application/merge+json"])
def test_json_content_types_are_accepted(wire: Wire, type: str) -> None:
    error = wire.refused(400, "POST", "/sessions", content=b"", headers={"Content-Type": type})
    assert error["param"] == "environment"  # an empty body counts as {}


def test_creation_over_16_mib_is_413(wire: Wire) -> None:
    headers: dict[str, str | None] = {"Content-Type": "application/json"}
    error = wire.refused(413, "POST", "/sessions", content=b" " * (16 * 2**20 + 1), headers=headers)
    assert error["code"] == "request_too_large"
    assert wire.refused(400, "POST", "/sessions", content=b" " * (16 * 2**20), headers=headers)


def test_events_over_1_mib_are_413(wire: Wire) -> None:
    headers: dict[str, str | None] = {"Content-Type": "application/json"}
    path = f"/sessions/{NO_SUCH}/events"
    assert wire.refused(413, "POST", path, content=b" " * (2**20 + 1), headers=headers)["code"] == "request_too_large"


def test_idempotency_key_over_128_bytes_is_400(wire: Wire) -> None:
    body = {"environment": HOSTED, "agent": oracle("true")}
    headers: dict[str, str | None] = {"Idempotency-Key": "x" * 129}
    assert wire.refused(400, "POST", "/sessions", json=body, headers=headers)["code"] == "invalid_request"
    wire.end(wire.create(key="x" * 128)["id"])


def test_core_still_answers_after_garbage_on_the_socket(wire: Wire) -> None:
    url = urlsplit(wire.base_url)
    for data in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/agents/sessions HTTP/1.1\r\nConte"):
        with socket.create_connection((url.hostname, url.port or 0), timeout=5) as connection:
            connection.sendall(data)
    assert wire.call("GET", "/sessions").status_code == 200


def _with(path: str, value: Any) -> dict[str, Any]:
    """Return a valid creation with one member changed; `path` as in `param`."""
    body: dict[str, Any] = {
        "environment": {
            **copy.deepcopy(HOSTED),
            "files": [{"type": "inline", "path": "/workspace/a", "data": "eA=="}],
            "setup_commands": [{"command": "true"}],
        },
        "agent": oracle("true"),
        "input": "do it",
    }
    target: Any = body
    steps = [int(step) if step.isdigit() else step for step in re.split(r"[.\[\]]+", path) if step]
    for step in steps[:-1]:
        target = target.setdefault(step, {}) if isinstance(target, dict) else target[step]
    target[steps[-1]] = value
    return body


INVALID: list[tuple[str, Any]] = [
    ("surprise", 1),
    ("Metadata", {}),
    ("environment", None),
    ("environment", "openai_hosted"),
    ("environment.type", None),
    ("environment.type", "vm"),
    ("environment.surprise", 1),
    ("environment.network.access", "off"),
    ("environment.network.surprise", 1),
    ("environment.env", ["A=b"]),
    ("environment.env", {"1A": "b"}),
    ("environment.env", {"": "b"}),
    ("environment.env.A", 1),
    ("environment.env.A", "x" * 65536),
    ("environment.env", {f"A{n}": "x" * 60000 for n in range(5)}),
    ("environment.files", {}),
    ("environment.files[0].type", "url"),
    ("environment.files[0].data", "no base64!"),
    ("environment.files[0].data", "eA"),
    ("environment.files[0].data", 3),
    ("environment.files[0].path", "a"),
    ("environment.files[0].path", "/etc/passwd"),
    ("environment.files[0].path", "/workspace"),
    ("environment.files[0].path", "/workspace/"),
    ("environment.files[0].path", "/workspace/../etc/passwd"),
    ("environment.files[0].path", "/workspace/./a"),
    ("environment.files[0].path", "/workspace//a"),
    ("environment.files[0].path", "/workspace/a\\b"),
    ("environment.files[0].path", "/workspacefoo/a"),
    ("environment.files[0].path", "/workspace/" + "n" * 256),
    ("environment.files[0].mode", 0o755),
    ("environment.setup_commands", "true"),
    ("environment.setup_commands", ["true"]),
    ("environment.setup_commands[0].command", " "),
    ("environment.setup_commands[0].command", 1),
    ("environment.setup_commands[0].command", "true #" + "x" * 65536),
    ("environment.setup_commands[0].cwd", "sub"),
    ("environment.setup_commands[0].timeout", 1),
    ("agent", "codex"),
    ("agent.surprise", 1),
    ("agent.model", 4),
    ("agent.model", " "),
    ("agent.instructions", []),
    ("agent.x_agents_core.surprise", 1),
    ("agent.x_agents_core.harness", 1),
    ("agent.service_tier", "gold"),
    ("agent.reasoning.effort", "heroic"),
    ("agent.text.verbosity", "loud"),
    ("agent.multi_agent.enabled", "yes"),
    ("agent.tools", {}),
    ("input", 3),
    ("input", ""),
    ("input", []),
    ("input", ["text"]),
    ("input", [{"role": "user", "content": "text"}]),
    ("metadata", []),
    ("metadata.k", 1),
    ("metadata.k", "v" * 513),
    ("metadata", {str(n): "" for n in range(17)}),
    ("stream", "yes"),
    ("x_agents_core.surprise", 1),
    ("x_agents_core.model_provider", {}),
]


@rows(("path", "value"), INVALID, ids=[f"{n}-{path}" for n, (path, _) in enumerate(INVALID)])
def test_invalid_member_is_400_and_named(wire: Wire, path: str, value: Any) -> None:
    error = wire.refused(400, "POST", "/sessions", json=_with(path, value))
    assert error["code"] in ("invalid_request_error", "invalid_request")
    assert error["param"] is not None
    assert error["param"].startswith(path) or path.startswith(error["param"])


UNSUPPORTED: list[tuple[str, Any, str]] = [
    ("environment.type", "none", "environment.type"),
    ("environment.type", "self_hosted", "environment.type"),
    ("environment.network.access", "enabled", "environment.network.access"),
    ("environment.network", {"access": "restricted", "allowed_domains": ["a.org"]}, "environment.network.access"),
    ("environment.packages.python", ["numpy"], "environment.packages.python"),
    ("environment.packages.npm", ["left-pad"], "environment.packages.npm"),
    ("environment.packages.system", ["jq"], "environment.packages.system"),
    ("environment.skills", [{"type": "skill_reference", "skill_id": "x"}], "environment.skills[0].type"),
    ("environment.plugins", [{}], "environment.plugins"),
    ("environment.environment_template_id", "t", "environment.environment_template_id"),
    ("environment.capability_directories", ["/workspace/x"], "environment.capability_directories"),
    ("environment.files", [{"type": "file_id", "file_id": "f", "path": "/workspace/f"}], "environment.files[0].type"),
    ("agent.tools", [{"type": "web_search"}], "agent.tools"),
    ("agent.reasoning.effort", "low", "agent.reasoning.effort"),
    ("agent.service_tier", "flex", "agent.service_tier"),
    ("agent.multi_agent.enabled", True, "agent.multi_agent.enabled"),
    ("agent.text.format.type", "json_schema", "agent.text.format"),
    ("agent.x_agents_core.harness_config", {}, "agent.x_agents_core.harness_config.solution"),
    ("agent.x_agents_core.harness_config.effort", "low", "agent.x_agents_core.harness_config.effort"),
    ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0]"),
    ("vault_ids", ["v"], "vault_ids"),
]


@rows(("path", "value", "param"), UNSUPPORTED)
def test_member_that_needs_another_core_is_400_and_named(wire: Wire, path: str, value: Any, param: str) -> None:
    error = wire.refused(400, "POST", "/sessions", json=_with(path, value))
    assert (error["code"], error["param"]) == ("unsupported_or_invalid_configuration", param)


def test_unknown_harness_is_400_and_the_known_ones_are_named(wire: Wire) -> None:
    error = wire.refused(400, "POST", "/sessions", json=_with("agent.x_agents_core.harness", "mcode"))
    assert error["param"] == "agent.x_agents_core.harness"
    assert "'oracle', 'nop', 'codex', 'claude_sdk'" in error["message"]


def test_saved_agent_is_404(wire: Wire) -> None:
    assert wire.refused(404, "POST", "/sessions", json=_with("agent_id", "agent_1"))["code"] == "not_found_error"


def test_null_counts_as_absent(wire: Wire) -> None:
    nothing = ("files", "env", "network", "packages", "setup_commands", "skills", "plugins", "capability_directories")
    environment = {"type": "openai_hosted", **dict.fromkeys(nothing)}
    agent = {
        **oracle("true"),
        "instructions": None,
        "tools": None,
        "multi_agent": None,
        "reasoning": None,
        "text": None,
    }
    body = {"environment": environment, "agent": agent, "input": None, "metadata": None, "vault_ids": None}
    wire.end(wire.ok("POST", "/sessions", 201, json=body)["id"])


def test_files_over_the_limits_are_400(wire: Wire) -> None:
    def files(sizes: list[int]) -> dict[str, Any]:
        data = ["A" * (size // 3 * 4) for size in sizes]
        return _with(
            "environment.files",
            [{"type": "inline", "path": f"/workspace/{n}", "data": text} for n, text in enumerate(data)],
        )

    five = 5 * 2**20 - 5 * 2**20 % 3
    for sizes in ([3] * 51, [five + 3], [five, five, 6 * 3]):
        error = wire.refused(400, "POST", "/sessions", json=files(sizes))
        assert error["param"].startswith("environment.files")
    wire.end(wire.ok("POST", "/sessions", 201, json=files([3] * 50))["id"])
    wire.end(wire.ok("POST", "/sessions", 201, json=files([five, five]))["id"])


@rows(("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b/c", "a")])
def test_files_with_clashing_paths_are_400(wire: Wire, first: str, second: str) -> None:
    files = [{"type": "inline", "path": f"/workspace/{name}", "data": ""} for name in (first, second)]
    assert (
        wire.refused(400, "POST", "/sessions", json=_with("environment.files", files))["param"] == "environment.files"
    )


PROVIDER = {"protocol": "responses", "base_url": "https://models.example/v1", "api_key": "sk-canary-1234567890"}


@rows(
    ("member", "value"),
    [
        ("protocol", "smoke_signals"),
        ("base_url", "http://models.example/v1"),
        ("base_url", "https://user:pass@models.example"),
        ("base_url", "https://models.example/?a=b"),
        ("base_url", "https://models.example/#a"),
        ("base_url", "https://models.example:port/"),
        ("base_url", "ftp://models.example"),
        ("base_url", "models.example"),
        ("api_key", " "),
        ("api_key", "a\nb"),
        ("context_window", 0),
        ("max_output_tokens", 1.5),
        ("surprise", 1),
    ],
)
def test_invalid_model_provider_member_is_400_and_named(wire: Wire, member: str, value: Any) -> None:
    body = _with("x_agents_core.model_provider", {**PROVIDER, member: value})
    assert wire.refused(400, "POST", "/sessions", json=body)["param"] == f"x_agents_core.model_provider.{member}"


@rows("url", ["https://models.example/v1", "http://127.0.0.1:9000/rollouts/x/v1", "http://[::1]:9/"])
def test_model_key_is_not_in_responses(wire: Wire, url: str) -> None:
    response = wire.call("POST", "/sessions", json=_with("x_agents_core.model_provider", {**PROVIDER, "base_url": url}))
    assert response.status_code == 201, response.text
    assert "canary" not in response.text
    wire.end(response.json()["id"])
