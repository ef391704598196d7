from __future__ import annotations

import pytest

from pytest_core_rollouts.agents_api.address import is_loopback, normalize_base_url, proxy_for, without_credentials
from tests.support.tables import rows

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@rows(
    ("url", "normal"),
    [
        ("http://127.0.0.1:8091", "http://127.0.0.1:8091/v1"),
        ("http://127.0.0.1:8091/", "http://127.0.0.1:8091/v1"),
        ("http://127.0.0.1:8091/v1", "http://127.0.0.1:8091/v1"),
        ("http://127.0.0.1:8091/v1/", "http://127.0.0.1:8091/v1"),
        ("http://127.0.0.1:8091//v1//", "http://127.0.0.1:8091/v1"),
        (" https://core.example/v1\n", "https://core.example/v1"),
        ("https://core.example/tenant/v1", "https://core.example/tenant/v1"),
        ("HTTPS://Core.example", "https://core.example/v1"),
        ("http://[::1]:80", "http://[::1]:80/v1"),
    ],
)
def test_base_url_is_normalized(url: str, normal: str) -> None:
    assert normalize_base_url(url) == normal
    assert normalize_base_url(normal) == normal


@rows(
    ("url", "reason"),
    [
        ("", "expected http"),
        ("127.0.0.1:8091", "expected http"),
        ("ftp://core/v1", "expected http"),
        ("http:///v1", "expected http"),
        ("http://core:99999/v1", "port"),
        ("http://core:x/v1", "port"),
        ("https://core/v1?key=1", "from the '\\?'"),
        ("https://core/v1#x", "from the '\\?'"),
        ("https://co re/v1", "space"),
        ("http://[::1/v1", "expected http"),
    ],
)
def test_invalid_base_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        normalize_base_url(url)


def test_base_url_with_credentials_is_refused_without_showing_them() -> None:
    with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
        normalize_base_url("https://user:hunter2hunter2@core.example/v1")
    assert "hunter2" not in str(caught.value)


@rows("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1"])
def test_host_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@rows("host", ["10.0.0.1", "core.example", "127.0.0.1.example", "::2", ""])
def test_host_is_another_machine(host: str) -> None:
    assert not is_loopback(host)


def test_proxy_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("http://core.example/v1") is None
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "other.example:1080")
    assert proxy_for("http://core.example/v1") == "http://proxy.example:3128"
    assert proxy_for("https://core.example/v1") == "http://other.example:1080"


@rows("base_url", ["http://127.0.0.1:8091/v1", "http://localhost:8091/v1", "http://[::1]:8091/v1"])
def test_requests_to_this_machine_use_no_proxy(monkeypatch: pytest.MonkeyPatch, base_url: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "somewhere.else")
    assert proxy_for(base_url) is None


@rows("no_proxy", ["core.example", ".example", "*", "a.b, core.example:80"])
def test_no_proxy_is_honored(monkeypatch: pytest.MonkeyPatch, no_proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_for("http://core.example:80/v1") is None
    assert proxy_for("http://core.test/v1") == (None if no_proxy == "*" else "http://127.0.0.1:9")


def test_credentials_of_a_proxy_are_not_shown() -> None:
    assert without_credentials("http://me:secret@proxy.example:3128") == "http://proxy.example:3128"
