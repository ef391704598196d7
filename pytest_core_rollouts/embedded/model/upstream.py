"""Where a model is served, and what a request from a sandbox becomes on its way there."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from pytest_core_rollouts.embedded.model_provider import ModelProvider

CONNECT_S = 30.0

Header = tuple[bytes, bytes]

_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
# Set by the proxy: the host, the framing of the body, and that replies are not compressed.
_SET_HERE = {b"host", b"expect", b"content-length", b"accept-encoding"}
# Set by the proxy too: key and account. With another one the server would answer 401, and an agent must not be able to
# cause that.
_CREDENTIALS = {
    *(b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"ocp-apim-subscription-key", b"cookie"),
    *(b"openai-organization", b"openai-project"),
}
_DECODINGS = 16  # how often a path may be percent-encoded, one encoding within the other


class RefusedTarget(Exception):
    """A request's target is not below the model's base URL; str: why."""


@dataclass(frozen=True)
class Upstream:
    """A base URL in parts, and the headers that carry the key. `path` does not end with a slash."""

    host: str
    port: int
    secure: bool
    authority: bytes
    path: bytes
    v1_is_base: bool  # in a sandbox, /v1 stands for the base URL
    credentials: tuple[Header, ...] = field(repr=False)

    @classmethod
    def of(cls, provider: ModelProvider) -> Upstream:
        """Return the parts of a provider's base URL."""
        url = urlsplit(provider.base_url)
        assert url.hostname is not None, "read_model_provider refuses a URL without a host"
        secure = url.scheme == "https"
        return cls(
            host=url.hostname,
            port=url.port or (443 if secure else 80),
            secure=secure,
            authority=url.netloc.encode("ascii"),
            path=(path := url.path.rstrip("/").encode("ascii")),
            v1_is_base=provider.protocol != "anthropic" or path.endswith(b"/v1"),
            credentials=_credentials(provider.protocol, url.hostname, provider.api_key.encode()),
        )

    @property
    def shown(self) -> str:
        """The base URL's scheme and host, for messages."""
        return f"{'https' if self.secure else 'http'}://{self.authority.decode()}"

    def target(self, inside: bytes) -> bytes:
        """Return the target at the server for a target inside a sandbox. Raises RefusedTarget."""
        plain_path(inside)
        if self.v1_is_base and inside.startswith(b"/v1/"):
            inside = inside[3:]  # base URLs of the Messages protocol are written with and without it
        return self.path + inside

    def request_headers(self, given: Iterable[Header]) -> list[Header]:
        """Return the headers without hop-by-hop ones, with the model's key in place of any other."""
        own = [(b"host", self.authority), (b"accept-encoding", b"identity"), (b"connection", b"close")]
        return [*own, *self.credentials, *end_to_end(given, _SET_HERE | _CREDENTIALS)]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and check the certificate. Raises OSError (ssl's errors are OSErrors), asyncio.TimeoutError."""
        connecting = asyncio.open_connection(
            self.host,
            self.port,
            ssl=tls() if self.secure else None,
            server_hostname=self.host if self.secure else None,
            limit=1 << 18,
        )
        return await asyncio.wait_for(connecting, CONNECT_S)


def plain_path(target: bytes) -> bytes:
    """Return the path of a request's target, decoded as the most lenient server would do. Raises RefusedTarget.

    Servers differ in how often they decode a path, in what separates its parts, and in which odd bytes they let
    through. So a path is refused if any server could read it as leading out of the base URL.
    """
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):
        raise RefusedTarget("only paths of the model's API can be requested")
    for _ in range(_DECODINGS):
        _refuse_escape(path)
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return path
        path = decoded
    raise RefusedTarget(f"the path is percent-encoded more than {_DECODINGS} times")


def _refuse_escape(path: bytes) -> None:
    try:
        text = path.decode()  # overlong forms, such as C0 AE for a dot, are not UTF-8
    except UnicodeDecodeError:
        raise RefusedTarget("the path is not UTF-8") from None
    text = unicodedata.normalize("NFKC", text)  # some servers read a full-width dot as a dot
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in text) or "%u" in text.lower():
        raise RefusedTarget("the path holds control characters")
    parts = [part.partition(";")[0] for part in text.replace("\\", "/").split("/")[1:]]
    if any(part.strip() in (".", "..") for part in parts):
        raise RefusedTarget("the path leads out of the model's API")
    if any(not part for part in parts[:-1]):
        raise RefusedTarget("the path has an empty part")


def _credentials(protocol: str, host: str, key: bytes) -> tuple[Header, ...]:
    """Return the headers that carry the key, the same for every request of a Turn.

    Servers of the Messages protocol read `x-api-key` (as the SDK sends it) or a bearer key (vLLM), so they get both.
    Anthropic's own server accepts API keys only in `x-api-key`, and OAuth tokens only as bearer keys.
    """
    bearer, api_key = (b"authorization", b"Bearer " + key), (b"x-api-key", key)
    if protocol != "anthropic":
        return (bearer,)
    if f".{host}".endswith(".anthropic.com"):
        return (bearer,) if key.startswith(b"sk-ant-oat") else (api_key,)
    return (api_key, bearer)


def end_to_end(headers: Iterable[Header], dropped: Iterable[bytes] = ()) -> list[Header]:
    """Return headers (names in lower case) without those that only concern one connection."""
    headers = list(headers)
    named = {
        name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",") if name
    }
    out = _HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in headers if name not in out]


@cache
def tls() -> ssl.SSLContext:
    """Return a context with OpenSSL's certificates ($SSL_CERT_FILE, $SSL_CERT_DIR, the system's), else certifi's."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or (paths.capath and any(os.scandir(paths.capath)))):
        import certifi  # a dependency of httpx

        context.load_verify_locations(certifi.where())
    return context


# ---- parameters of `--rollout-model-params`


SAMPLE, ROLLOUT_ID = "{sample}", "{rollout_id}"


class MissingLabel(Exception):
    """The Session's metadata has no value for a placeholder; str: which."""


def fill(params: Mapping[str, Any], *, sample: str | None, rollout_id: str | None) -> dict[str, Any]:
    """Return `params` with `{sample}` and `{rollout_id}` filled in. The string "{sample}" becomes a number.

    Raises MissingLabel.
    """
    labels = {SAMPLE: sample, ROLLOUT_ID: rollout_id}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(member) for name, member in value.items()}
        if isinstance(value, list):
            return [filled(member) for member in value]
        if not isinstance(value, str):
            return value
        for placeholder, label in labels.items():
            if placeholder in value:
                if label is None:
                    raise MissingLabel(f"{placeholder} needs metadata.{placeholder[1:-1]} in the Session's creation")
                value = int(label) if value == SAMPLE and label.isdigit() else value.replace(placeholder, label)
                if isinstance(value, int):
                    return value
        return value

    result = filled(dict(params))
    assert isinstance(result, dict)
    return result


def merge(body: bytes, params: Mapping[str, Any]) -> bytes:
    """Merge `params` into a request's JSON body by the rules of JSON Merge Patch (RFC 7396).

    Objects are merged, null removes a member, all else replaces. Raises ValueError if the body is not a JSON object.
    """
    request = json.loads(body)
    if not isinstance(request, dict):
        raise ValueError("the body is not a JSON object")
    return json.dumps(_merged(request, params), ensure_ascii=False, separators=(",", ":")).encode()


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
