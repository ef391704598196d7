"""What a model's server reports about tokens: ids, log probabilities and counts.

An agent can change what its program prints, but not what a server reports to the proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REQUEST_IDS: Mapping[str, Mapping[str, Any]] = {
    "chat_completions": {"return_token_ids": True, "logprobs": True},
    "responses": {"enable_response_messages": True},
    "anthropic": {},
}
"""What a request has to contain so that the server returns token ids, by protocol (vLLM 0.33; none on anthropic)."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a reply; None: not reported. `logprobs` are those of the sampled tokens, in order."""

    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None


_PROMPT = ("prompt_token_ids", "input_token_ids", "input_ids")
_SAMPLED = ("token_ids", "output_token_ids", "completion_token_ids", "output_ids", "response_token_ids")
_CHOSEN_BY_THE_MODEL = ("arguments", "input", "metadata", "tools")
"""Members that an agent or its model fills: what they call token ids is not what the server sampled."""
_NAMED = re.compile(r"token_id:(\d+)")


def tokens_of(reply: Any) -> Tokens:
    """Find tokens in a reply by names of members.

    `token_ids` and `prompt_token_ids` (vLLM), `input_messages` and `output_messages` (vLLM on the Responses protocol),
    `response_token_ids`, `output_token_logprobs`, `input_ids` and `output_ids` by choice (SGLang), `logprobs` (all).
    If a reply has several choices, only the first one counts.
    """
    found = _Found()
    found.look_into(reply)
    ids = found.ids or [id for id, _ in found.pairs if id is not None]
    whole = ids if found.ids or len(ids) == len(found.pairs) else []
    return Tokens(found.prompt, whole or None, [logprob for _, logprob in found.pairs] or None)


class _Found:
    def __init__(self) -> None:
        self.prompt: list[int] | None = None
        self.ids: list[int] = []
        self.pairs: list[tuple[int | None, float]] = []

    def look_into(self, value: Any) -> None:
        if isinstance(value, list):
            for member in value:
                self.look_into(member)
        if not isinstance(value, dict):
            return
        for name, member in value.items():
            if name in _PROMPT and self.prompt is None and _is_ids(member):
                self.prompt = member
            elif name in _SAMPLED and _is_ids(member):
                self.ids += member
            elif name == "output_ids" and isinstance(member, list) and _is_ids(member[0]):  # by choice
                self.ids += member[0]
            elif name == "input_messages":
                self.prompt = self.prompt or _ids_of_messages(member) or None
            elif name == "output_messages":
                self.ids += _ids_of_messages(member)
            elif name == "output_token_logprobs" and isinstance(member, list):
                self.pairs += _sglang_pairs(member)
            elif name == "logprobs":
                self.pairs += _pairs(member)
            elif name == "choices" and isinstance(member, list):
                self.look_into(member[:1])
            elif not name.endswith("logprobs") and name not in _CHOSEN_BY_THE_MODEL:
                self.look_into(member)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(member) is int for member in value)


def _ids_of_messages(messages: Any) -> list[int]:
    """Return the ids in vLLM's raw messages, in order; [] if there are none."""
    found: list[int] = []
    for message in messages if isinstance(messages, list) else ():
        is_raw = isinstance(message, dict) and message.get("type") == "raw_message_tokens"
        if is_raw and _is_ids(tokens := message.get("tokens")):
            found += tokens
    return found


def _pairs(value: Any) -> Iterator[tuple[int | None, float]]:
    """Read a list of {token, logprob}, {content: such a list}, or the older {tokens, token_logprobs}."""
    if isinstance(value, dict) and isinstance(logprobs := value.get("token_logprobs"), list):
        tokens = value.get("tokens") or []
        for index, logprob in enumerate(logprobs):
            yield _id_in(tokens[index]) if index < len(tokens) else None, _number(logprob)
        return
    entries = value.get("content") if isinstance(value, dict) else value
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and "logprob" in entry:
            id = entry.get("token_id")
            yield id if type(id) is int else _id_in(entry.get("token")), _number(entry["logprob"])


def _sglang_pairs(entries: list[Any]) -> Iterator[tuple[int | None, float]]:
    for entry in entries:
        if isinstance(entry, list) and len(entry) >= 2:
            yield entry[1] if type(entry[1]) is int else None, _number(entry[0])


def _id_in(token: Any) -> int | None:
    """Return the id in a token named `token_id:N`, which vLLM sends on request; else None."""
    match = _NAMED.fullmatch(token) if isinstance(token, str) else None
    return int(match[1]) if match else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


# ---- counts


_TOO_MANY = 2**53  # tokens of one reply; from here on JSON's readers don't agree on a whole number


def usage_of(reply: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the TokenUsage in a reply of any protocol, or in the event that ends one; None: not reported."""
    response = reply.get("response", reply)
    usage = response.get("usage") if isinstance(response, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    sent, cached = _counts(usage, ("input", "prompt"), "cached_tokens")
    sampled, reasoning = _counts(usage, ("output", "completion"), "reasoning_tokens")
    read = _count(usage, "cache_read_input_tokens")  # the Messages protocol does not count these as input
    sent += read + _count(usage, "cache_creation_input_tokens")
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": cached + read},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": sent + sampled,
    }


def _counts(usage: Mapping[str, Any], sides: Sequence[str], detail: str) -> tuple[int, int]:
    """Return the tokens of one side, by the name that the server's protocol has for it, and those of a detail."""
    side = next((name for name in sides if f"{name}_tokens" in usage), sides[0])
    return _count(usage, f"{side}_tokens"), _count(usage.get(f"{side}_tokens_details"), detail)


def sum_of(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of one or more usages, member by member."""
    return {
        name: sum_of([usage[name] for usage in usages]) if isinstance(value, Mapping) else sum(u[name] for u in usages)
        for name, value in usages[0].items()
    }


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if type(value) is int and 0 <= value < _TOO_MANY else 0
